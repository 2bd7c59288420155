"""What unstack and stack decide for each leaf, and what they leave on the disk."""

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from pmapx._src.checkpoint import new_path
from pmapx._src.checkpoint.base import CheckpointError, LeavesDifferError
from pmapx._src.checkpoint.conversion import stack, unstack
from pmapx._src.checkpoint.device_axis import difference
from pmapx._src.checkpoint.object_tree import matches

N = 4


def copies(x, n=N):
    return np.broadcast_to(x, (n, *np.shape(x))).copy()


@pytest.fixture
def old(tmp_path):
    """A file whose `rng` is one per device."""
    path = str(tmp_path / "old.npz")
    np.savez(path, w=copies(np.ones((2, 3))), rng=np.arange(2 * N).reshape(N, 2), step=7)
    return path


@pytest.fixture
def new(tmp_path):
    return str(tmp_path / "new.npz")


def only(folder):
    return sorted(os.listdir(folder))


def test_leaves_that_differ_are_all_named_and_nothing_is_written(old, new, tmp_path):
    with pytest.raises(LeavesDifferError) as raised:
        unstack(old, new)
    assert raised.value.summary == "1 of 2 leaves are not equal on all devices"
    assert raised.value.leaves == [
        "rng: device 1's copy (and 2 more) differs from device 0's in 2 of 2 values, by up to 2"
    ]
    assert '--keep "rng"' in raised.value.advice
    assert only(tmp_path) == ["old.npz"]


def test_keep_leaves_the_axis_and_first_takes_device_0s_copy(old, new):
    done = unstack(old, new, keep=["rng"])
    assert done.kept == ("rng",)
    assert np.load(new)["rng"].shape == (N, 2)
    done = unstack(old, new, first=["r*"], force=True)
    assert done.changed == ("w", "rng")
    np.testing.assert_array_equal(np.load(new)["rng"], [0, 1])


def test_bytes_are_those_of_the_arrays(old, new):
    done = unstack(old, new, keep=["rng"])
    assert done.bytes_before == N * 6 * 8 + N * 2 * 8 + 8
    assert done.bytes_after == 6 * 8 + N * 2 * 8 + 8


def test_a_pattern_without_a_leaf_names_the_closest(old, new):
    with pytest.raises(CheckpointError, match="--keep 'rgn' matches no leaf; the closest is rng"):
        unstack(old, new, keep=["rgn"])


def test_patterns_that_contradict_are_refused(old, new):
    with pytest.raises(CheckpointError, match="--keep and --first both match rng"):
        unstack(old, new, keep=["rng"], first=["*"])
    with pytest.raises(CheckpointError, match="--first matches step, which has no device axis"):
        unstack(old, new, first=["step"])


@pytest.mark.parametrize(
    ("pattern", "path", "is_matched"),
    [
        ("params", "params['a']", True),
        ("params['a']", "params['a']['b']", True),
        ('params["a"]', "params['a']", True),
        ("params['a", "params['ab']", False),
        ("*['bias']", "params['a']['bias']", True),
        ("state.rng", "state.rng", True),
        ("state.r", "state.rng", False),
        ("1/default", "1/default/params", True),
        ("*", "anything", True),
        ("", "anything", False),
    ],
)
def test_a_pattern_is_a_path_or_above_it(pattern, path, is_matched):
    assert matches(pattern, path) is is_matched


def test_the_device_count_is_the_leading_size_that_all_arrays_share(tmp_path, new):
    old = str(tmp_path / "old.npz")
    np.savez(old, w=copies(np.ones(3)), other=np.ones((7, 2)))
    message = r"w has 4, other has 7\): .*; pass the number of devices with -n"
    with pytest.raises(CheckpointError, match=message):
        unstack(old, new)
    done = unstack(old, new, n=N)
    assert done.changed == ("w",)
    assert done.left == (("other", "float64[7,2]"),)
    with pytest.raises(CheckpointError, match="no array has a leading axis of size 5"):
        unstack(old, new, n=5, force=True)


def test_a_checkpoint_that_is_not_stacked_is_not_taken_for_one(tmp_path, new):
    old = str(tmp_path / "old.npz")
    np.savez(old, a=np.arange(3.0), b=np.arange(6.0).reshape(3, 2))
    with pytest.raises(LeavesDifferError, match="the checkpoint may not be stacked"):
        unstack(old, new)
    np.savez(old, a=1.0, b=2)
    with pytest.raises(CheckpointError, match="no array has a leading axis"):
        unstack(old, new)
    np.savez(old, a=np.ones((0, 3)))
    with pytest.raises(CheckpointError, match="the arrays are empty"):
        unstack(old, new)


def test_equal_means_equal_to_the_bit():
    nan = np.full((2, 3), np.nan)
    assert difference(nan) is None
    assert "signs of zeros" in difference(np.array([0.0, -0.0]))
    assert difference(np.array([[1.0, np.nan], [1.0, 2.0]])).endswith("in 1 of 2 values")
    assert difference(np.array([[1, 2], [1, 5]], ml_dtypes.bfloat16)).endswith("by up to 3")
    assert difference(np.array([1, 1 + 2j])).endswith("by up to 2")
    assert difference(np.array([b"ab", b"cd"], "V2")).endswith("in its values")
    assert difference(np.array(["a", "b"])).endswith("in its values")
    assert difference(np.array([True, False])).endswith("in 1 of 1 values, by up to 1")


def test_stack_is_the_inverse_of_unstack(old, new, tmp_path):
    unstack(old, new, first=["rng"])
    back = str(tmp_path / "back.npz")
    done = stack(new, back, n=N, keep=["step"])
    assert done.changed == ("w", "rng")
    np.testing.assert_array_equal(np.load(back)["w"], np.load(old)["w"])
    assert np.load(back)["step"] == 7
    assert done.bytes_after == N * (6 + 2) * 8 + 8


def test_a_dry_run_compares_and_writes_nothing(old, new, tmp_path):
    with pytest.raises(LeavesDifferError):
        unstack(old, new, dry_run=True)
    assert unstack(old, new, keep=["rng"], dry_run=True).changed == ("w",)
    assert stack(old, new, n=2, dry_run=True).n == 2
    assert only(tmp_path) == ["old.npz"]


def test_old_is_never_changed_and_new_not_overwritten_unasked(old, new, tmp_path):
    before = Path(old).read_bytes()
    linked = str(tmp_path / "linked.npz")
    os.link(old, linked)
    os.symlink(old, str(tmp_path / "symlink.npz"))
    for same in (old, linked, str(tmp_path / "symlink.npz")):
        with pytest.raises(CheckpointError, match="is the old checkpoint, which is never changed"):
            unstack(old, same, keep=["rng"], force=True)
    with open(new, "w") as file:
        file.write("mine")
    with pytest.raises(CheckpointError, match="exists; --force overwrites it"):
        unstack(old, new, keep=["rng"])
    with pytest.raises(LeavesDifferError):
        unstack(old, new, force=True)
    assert Path(new).read_text() == "mine"
    unstack(old, new, keep=["rng"], force=True)
    assert np.load(new)["w"].shape == (2, 3)
    assert Path(old).read_bytes() == before


def test_new_must_be_a_place_to_write(old, tmp_path):
    with pytest.raises(CheckpointError, match="there is no folder"):
        unstack(old, str(tmp_path / "nosuch" / "new.npz"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=r"is a folder and .* is not"):
        unstack(old, str(tmp_path / "folder"), force=True)
    with pytest.raises(CheckpointError, match="no such file or folder"):
        unstack(str(tmp_path / "nosuch"), str(tmp_path / "new"))
    with pytest.raises(CheckpointError, match="inside one another"):
        unstack(str(tmp_path), str(tmp_path / "new"))


@pytest.mark.parametrize("raised", [KeyboardInterrupt, OSError("disk full")])
def test_nothing_is_left_when_writing_stops(old, new, tmp_path, raised, monkeypatch):
    with open(new, "w") as file:
        file.write("mine")

    def fail(*args, **options):
        raise raised

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    with pytest.raises((KeyboardInterrupt, OSError)):
        unstack(old, new, keep=["rng"], force=True)
    assert only(tmp_path) == ["new.npz", "old.npz"]
    assert Path(new).read_text() == "mine"


def test_a_folder_is_replaced_or_stays(tmp_path, monkeypatch):
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "file").write_text(folder.name)

    def stop():
        with new_path.written(str(old), str(new)) as made:
            os.mkdir(made)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert (new / "file").read_text() == "new"
    with new_path.written(str(old), str(new)) as made:
        os.mkdir(made)
    assert only(new) == []
    assert only(tmp_path) == ["new", "old"]


def test_the_mode_of_a_file_is_kept(old, new):
    os.chmod(old, 0o600)
    unstack(old, new, keep=["rng"])
    assert os.stat(new).st_mode & 0o777 == 0o600


def test_progress_ends_at_the_total(old, new):
    seen = []
    unstack(old, new, keep=["rng"], progress=lambda *numbers: seen.append(numbers))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
