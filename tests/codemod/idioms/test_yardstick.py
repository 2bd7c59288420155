"""The yardstick measures as a reader of a diff does, and the README's table is what it measures."""

import textwrap
from pathlib import Path

import yardstick

BEFORE = textwrap.dedent(
    """
    import jax

    def replicate(tree):
        return jax.device_put_replicated(tree, jax.local_devices())

    class Trainer:
        def step(self, state):
            return state

    p_step = jax.pmap(Trainer().step)
    """
)
AFTER = textwrap.dedent(
    """
    import jax
    from jax.sharding import PartitionSpec as P


    def to_devices(tree):
        return jax.device_put_replicated(tree, jax.local_devices())

    class Trainer:
        def step(self, state):
            return state

        def first(self, state):
            return state[0]

    p_step = jax.jit(jax.shard_map(Trainer().step, in_specs=(P(), P("i")), out_specs=P()))
    """
)


def test_a_changed_line_is_added_and_removed_and_blank_ones_do_not_count():
    assert yardstick.added_lines(BEFORE, AFTER) == 5
    assert yardstick.added_lines(AFTER, BEFORE) == 2
    assert yardstick.difference(BEFORE, AFTER).net == 3
    assert yardstick.added_lines(BEFORE, BEFORE) == 0


def test_a_renamed_function_is_not_new():
    assert yardstick.new_functions(BEFORE, AFTER) == ["Trainer.first"]


def test_replicated_arguments_are_those_of_the_input():
    assert yardstick.replicated_arguments(BEFORE) == 0
    assert yardstick.replicated_arguments(AFTER) == 1


def test_folders_are_measured_file_by_file(tmp_path):
    for name, text in (("old", BEFORE), ("new", AFTER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "main.py").write_text(text)
    (tmp_path / "new" / "mesh.py").write_text("def mesh():\n    return None\n")
    found = yardstick.difference(tmp_path / "old", tmp_path / "new")
    assert (found.before, found.added, found.removed) == (7, 7, 2)
    assert found.functions == ("main.Trainer.first", "mesh.mesh")


def test_the_table_of_the_readme_is_measured():
    text = Path(yardstick.__file__).with_name("README.md").read_text()
    for row in yardstick.table().splitlines():
        assert row in text, "run `python yardstick.py` and paste its table into README.md"


def test_every_program_has_a_version_by_hand():
    assert len(yardstick.PROGRAMS) == 20
    assert all(after.exists() for _, after in yardstick.PROGRAMS.values())
