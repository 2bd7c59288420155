"""Comments beside what migrate rewrites."""

import pytest

from pmapx import migrate

PROGRAM = """\
import jax


def main(step, state, batches):
    # {comment}
    step = jax.pmap(step, axis_name="batch")
    for batch in batches:
        state = step(state, batch)
    return state
"""


def migrated(tmp_path, comment, **options):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.replace("{comment}", comment))
    done = migrate([str(path)], **options)
    (file,) = done.files
    return file.after.decode(), [line for _, line in done.old_comments]


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("pmap the step over the devices.", "shard_map the step over the devices."),
        ("Pmap (and jit-compile) the step.", "shard_map (and jit-compile) the step."),
        ("The pmapped step.", "The sharded step."),
        ("For pmapping, see `jax.pmap`.", "For sharding, see `jax.shard_map`."),
    ],
)
def test_the_comment_above_a_shard_map_names_it(tmp_path, comment, expected):
    after, old = migrated(tmp_path, comment)
    assert f"    # {expected}\n" in after
    assert "pmap" not in after
    assert not old


@pytest.mark.parametrize(
    "comment",
    [
        "We use pmap instead of jit.",
        "TODO: replace pmap by something else.",
        "An axis_name is passed to pmap.",
        "The function that is traced by pmap.",
        "The result has a leading device axis.",
        # Longer than the lines of the file when it is renamed.
        "pmap the step over all the devices that there are, one shard of the batch each",
    ],
)
def test_a_comment_that_may_not_hold_is_left_and_reported(tmp_path, comment):
    after, old = migrated(tmp_path, comment)
    (line,) = old
    assert after.splitlines()[line - 1] == f"    # {comment}"


def test_comments_elsewhere_and_those_of_migrate_are_not_reported(tmp_path):
    after, old = migrated(tmp_path, "The step.\n\n    # pmap is far away.\n    print()\n\n    # x")
    assert "# pmap is far away." in after
    assert not old


def test_to_pmapx_keeps_comments(tmp_path):
    after, old = migrated(tmp_path, "pmap the step.", to="pmapx")
    assert "# pmap the step." in after
    assert not old
