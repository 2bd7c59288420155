"""What an engineer writes by hand gives what the program gave under pmap, to the bit."""

import pytest
from example_programs import run_jobs
from yardstick import PROGRAMS

pytest.importorskip("click", reason="needs pmapx[tools]")

from migrated_programs import differences

# Of every kind of state: named tuples, a class, a package, maps compiled ahead, a map in a map.
FAST = ("anakin_learner", "compiled_ahead", "device_grid", "observable_package", "replay_learner")
OTHERS = [name for name in PROGRAMS if name not in FAST]
CHUNK = 5
# How far results may be apart, of the largest of each array, where they are not equal to the bit.
TOLERANCE = {
    # In one body instead of one within the other, XLA fuses the sum of the weights and their noise.
    "device_grid": 1e-6,
}


def wrong(names, folder):
    """Run programs before and after in one process; what differs, by name."""
    jobs = []
    for name in names:
        versions = zip(("before", "by hand"), PROGRAMS[name], ("installed", "plain"), strict=True)
        for version, path, mode in versions:
            main = path / "main.py" if path.is_dir() else path
            jobs.append({"name": f"{name} {version}", "path": str(main), "mode": mode})
    results = run_jobs(jobs, folder / "results.pickle")
    found = {
        name: differences(
            results[f"{name} before"], results[f"{name} by hand"], TOLERANCE.get(name, 0.0)
        )
        for name in names
    }
    return {name: text for name, text in found.items() if text}


@pytest.mark.slow
@pytest.mark.needs_devices(8)
def test_what_is_written_by_hand_gives_the_same(tmp_path):
    assert not wrong(FAST, tmp_path)


@pytest.mark.slow
@pytest.mark.needs_devices(8)
@pytest.mark.parametrize("start", range(0, len(OTHERS), CHUNK))
def test_the_others_written_by_hand_give_the_same(tmp_path, start):
    assert not wrong(OTHERS[start : start + CHUNK], tmp_path)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_written_by_hand_has_no_map_left(name):
    _, after = PROGRAMS[name]
    files = after.rglob("*.py") if after.is_dir() else [after]
    text = "".join(file.read_text() for file in files)
    assert "jax.pmap" not in text
    assert "pmapx" not in text
    assert text.count("make_mesh(") + text.count(" Mesh(") == 1
    assert "axis_types=" in text
