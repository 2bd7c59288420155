"""Arrays as they are written down by one program, compared with those of another."""

import numpy as np
import pytest

from pmapx._src.verify import limits
from pmapx._src.verify.compare.compare_arrays import Grade, RecordedLeaf, Tolerance, compare
from pmapx._src.verify.record import writer
from pmapx._src.verify.record.array_record import note, note_object
from pmapx._src.verify.record.reader import Records

STATE = np.arange(12, dtype=np.float32).reshape(3, 4) + 1


def written(folder, *leaves, devices=8):
    """Write leaves down as a watched program does, and read them again."""
    folder.mkdir()
    recorder = writer.Recorder(folder)
    recorder.write("devices", processes=1, devices=devices)
    recorder.write(
        "function", number=0, kind="jit", name="f", file="a", line=1, scope="", parameters=()
    )
    noted = [note(x, str(x.dtype)) if isinstance(x, np.ndarray) else note_object(x) for x in leaves]
    recorder.write_call(0, 0, [], [({"path": ""}, leaf) for leaf in noted], "")
    (path,) = folder.glob("*.calls")
    records = Records(path)
    return [RecordedLeaf(records, leaf) for leaf in records.call(records.functions[0], 0).outputs]


@pytest.fixture
def compared(tmp_path):
    def compared(before, after, tolerance=None):
        (was,), (now,) = written(tmp_path / "was", before), written(tmp_path / "now", after)
        return compare(was, now, tolerance or Tolerance())

    return compared


@pytest.mark.parametrize(
    "x",
    [
        STATE,
        np.zeros((0, 3), np.int32),
        np.float32(3).reshape(()),
        np.array([np.nan, 1]),
        np.array([True, False]),
        np.stack([STATE] * 8),
    ],
)
def test_the_same_is_equal_to_the_bit(compared, x):
    found = compared(x, x.copy())
    assert (found.grade, found.detail, found.form) == (Grade.EQUAL, "", "")


def test_another_order_of_sums_is_within_tolerance(compared):
    found = compared(STATE, STATE * np.float32(1 + 1e-6))
    assert found.grade == Grade.WITHIN
    assert found.detail.startswith("by up to ")


def test_a_tolerance_of_the_users_counts(compared):
    assert compared(STATE, STATE + 1, Tolerance(atol=1.5)).grade == Grade.WITHIN


def test_zero_tolerance_is_equality(compared):
    nearly = STATE * np.float32(1 + 1e-6)
    assert compared(STATE, nearly, Tolerance(0, 0)).grade == Grade.DIFFERENT


def test_a_constant_factor_is_reported(compared):
    assert compared(STATE, 8 * STATE).detail == "about 8 times as large"


def test_the_largest_difference_is_reported_with_its_index(compared):
    after = STATE.copy()
    after[1, 2] = 70
    assert compared(STATE, after).detail == "by up to 63 (7 became 70 at (1, 2)), in 1 of 12"


def test_a_nan_in_one_version_is_reported(compared):
    after = STATE.copy()
    after[0, 0] = np.nan
    assert compared(STATE, after).detail == "1 values are NaN or infinite in one version only"


def test_integers_have_no_tolerance(compared):
    assert compared(np.array([1000000]), np.array([1000001])).grade == Grade.DIFFERENT


def test_types_are_compared(compared):
    found = compared(STATE, STATE.astype(np.float64))
    assert (found.grade, found.detail) == (Grade.DIFFERENT, "float32 became float64")


def test_equal_shards_may_become_one_replicated_array(compared):
    found = compared(np.stack([STATE] * 8), STATE)
    assert (found.grade, found.form) == (
        Grade.EQUAL,
        "(8, 3, 4) of equal shards is one replicated (3, 4)",
    )


def test_a_python_number_is_equal_to_the_array_that_it_becomes(tmp_path):
    def leaf(name, x, dtype):
        folder = tmp_path / name
        folder.mkdir()
        recorder = writer.Recorder(folder)
        recorder.write("devices", processes=1, devices=8)
        recorder.write(
            "function", number=0, kind="jit", name="f", file="a", line=1, scope="", parameters=()
        )
        recorder.write_call(0, 0, [], [({"path": ""}, note(x, dtype))], "")
        records = Records(next(folder.glob("*.calls")))
        return RecordedLeaf(records, records.call(records.functions[0], 0).outputs[0])

    was, now = leaf("was", np.array(3), "int"), leaf("now", np.array(3, np.int32), "int32")
    assert compare(was, now, Tolerance()).grade == Grade.EQUAL
    assert (
        compare(was, leaf("4", np.array(4, np.int32), "int32"), Tolerance()).grade
        == Grade.DIFFERENT
    )


@pytest.mark.parametrize("now", [3, 4])
def test_the_only_shard_of_a_number_may_become_the_number(compared, now):
    expected = Grade.EQUAL if now == 3 else Grade.DIFFERENT
    assert compared(np.array([3]), np.array(now)).grade == expected


def test_a_replicated_array_that_differs_is_reported_with_the_amount(compared):
    found = compared(np.stack([STATE] * 8), 2 * STATE)
    assert (found.grade, found.detail) == (Grade.DIFFERENT, "about 2 times as large")


def test_rows_that_differ_cannot_become_one_array(compared):
    found = compared(np.arange(8.0), np.array(0.0))
    assert (found.grade, found.detail) == (
        Grade.DIFFERENT,
        "shape (8,) became (), though its shards differ",
    )


def test_the_device_axis_may_be_merged_into_the_batch_axis(compared):
    x = np.arange(8 * 12.0).reshape(8, 3, 4)
    found = compared(x, x.reshape(24, 4))
    assert (found.grade, found.form) == (Grade.EQUAL, "(8, 3, 4) is now (24, 4)")


def test_swapped_axes_of_a_square_are_named(compared):
    found = compared(STATE[:, :3], STATE[:, :3].T)
    assert found.detail.endswith("the same with axes 0 and 1 swapped")


def test_no_tolerance_applies_to_shards_that_were_equal_before(compared):
    rows = np.ones((8, 4), np.float32)
    after = rows.copy()
    after[3] += np.float32(1e-7)
    found = compared(rows, after)
    assert found.grade == Grade.DIFFERENT
    assert found.detail.startswith("equal on all devices before, and not after; by up to")


@pytest.mark.parametrize(("after", "grade"), [("adam", Grade.EQUAL), ("sgd", Grade.DIFFERENT)])
def test_static_arguments_are_compared(compared, after, grade):
    assert compared("adam", after).grade == grade


LARGE = np.random.RandomState(0).randn(1 << 20).astype(np.float32)


def test_a_large_array_is_sampled(tmp_path):
    (noted,) = written(tmp_path / "a", LARGE)
    assert noted.leaf["kept"] == "sample"
    (values,) = (tmp_path / "a").glob("*.values")
    assert values.stat().st_size < 50_000


def test_large_arrays_are_compared_in_samples(compared):
    found = compared(LARGE, LARGE * 8)
    assert found.detail == "about 8 times as large (of 4,096 sampled values of 1,048,576)"


def test_a_large_array_may_become_replicated(compared):
    found = compared(np.stack([LARGE] * 2), LARGE * np.float32(1 + 1e-7))
    assert (found.grade, bool(found.form)) == (Grade.WITHIN, True)


def test_a_difference_between_the_samples_is_found(compared):
    after = LARGE.copy()
    after[1000:3000] = 0
    places = np.linspace(0, LARGE.size - 1, limits.SAMPLES).astype(int)
    after[places] = LARGE[places]
    found = compared(LARGE, after)
    assert (found.grade, found.detail) == (
        Grade.DIFFERENT,
        "it differs between the sampled values",
    )


def test_values_stop_at_a_bound_and_hashes_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "MOST_BYTES", 60)
    was = written(tmp_path / "was", STATE, STATE + 1)
    now = written(tmp_path / "now", STATE, STATE + 2)
    assert [leaf.leaf["kept"] for leaf in was] == ["all", "nothing"]
    assert compare(was[0], now[0], Tolerance()).grade == Grade.EQUAL
    found = compare(was[1], now[1], Tolerance())
    assert found.grade == Grade.DIFFERENT
    assert "by an unknown amount" in found.detail
