"""What ``migrate`` writes for each idiom gives the same, and adds about what an engineer adds."""

import shutil

import pytest
from yardstick import PROGRAMS, added_lines, new_functions

pytest.importorskip("click", reason="needs pmapx[tools]")

from example_programs import Program
from migrated_programs import wrong_after_migration

from pmapx._src.codemod.migration import migrate

# Where axes are a tree of the program's own, a function is still added.
WITH_FUNCTIONS = {"walkers_checkpoint"}
OTHERS = [name for name in PROGRAMS if name not in WITH_FUNCTIONS]
# The others are shown by the programs of ``../programs``.
WRITTEN = ("global", "stacked")
FAST = ("anakin_learner", "named_evaluators", "render_chunks", "snapshot_attributes")


def migrated(name, folder):
    before, _ = PROGRAMS[name]
    folder.mkdir(exist_ok=True)
    after = folder / before.name
    if before.is_dir():
        shutil.copytree(before, after, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copyfile(before, after)
    done = migrate([str(after)])
    assert done.failure is None
    for file in done.changed:
        folder.joinpath(file.path).write_bytes(file.after)
    return before, after


# With one device, the simulator calls the function itself, which therefore cannot be edited. The
# files of the package have their mesh from one module, as by hand.
ALSO_CALLED = {
    "population_simulator": ["Simulator.__init__.sharded_rollout"],
    "observable_package": ["parallel.device_mesh"],
}


@pytest.mark.parametrize("name", OTHERS)
def test_no_function_is_added(tmp_path, name):
    found = new_functions(*migrated(name, tmp_path))
    # The body of a decorated function with static arguments is moved into an inner one.
    found = [each for each in found if not each.endswith(".per_device")]
    assert found == ALSO_CALLED.get(name, [])


def test_lines_are_added_as_by_hand(tmp_path):
    ours = by_hand = 0
    for name in OTHERS:
        before, after = migrated(name, tmp_path / name)
        ours += added_lines(before, after)
        by_hand += added_lines(before, PROGRAMS[name][1])
    assert ours <= 1.5 * by_hand, (ours, by_hand)


@pytest.mark.needs_devices(8)
def test_migrated_idioms_give_the_same(tmp_path):
    programs = [Program(name, PROGRAMS[name][0]) for name in FAST]
    assert not wrong_after_migration(programs, tmp_path, WRITTEN)


@pytest.mark.slow
@pytest.mark.needs_devices(8)
@pytest.mark.parametrize("start", range(0, len(PROGRAMS), 5))
def test_all_migrated_idioms_give_the_same(tmp_path, start):
    programs = [Program(name, PROGRAMS[name][0]) for name in list(PROGRAMS)[start : start + 5]]
    assert not wrong_after_migration(programs, tmp_path, WRITTEN)
