"""Names that JAX removed are replaced in the pass that rewrites pmap."""

import pytest

from pmapx._src.codemod.migration import migrate

PMAP = "import jax\nstep = jax.pmap(abs, axis_name='i')\n"
OLD = "y = jax.tree_map(abs, x)\nn = jax.host_count()\n"
NEW = "y = jax.tree.map(abs, x)\nn = jax.process_count()\n"


@pytest.fixture
def migrated(tmp_path):
    def migrated(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        done = migrate([str(tmp_path)])
        after = {file.path.rpartition("/")[2]: file.after.decode() for file in done.files}
        return done, after

    return migrated


@pytest.mark.parametrize("to", ["shard_map", "pmapx"])
def test_removed_names_are_replaced_beside_a_pmap(tmp_path, to):
    (tmp_path / "a.py").write_text(PMAP + OLD)
    done = migrate([str(tmp_path)], to=to)
    (file,) = done.files
    assert file.after.decode().endswith(NEW)
    assert b"jax.pmap(" not in file.after
    assert (done.renamed, file.before.decode()) == (2, PMAP + OLD)
    assert [outcome.place.line for outcome in file.outcomes] == [2]


def test_files_without_a_pmap_have_current_names_too(migrated):
    done, after = migrated(a=PMAP, b="import jax\n" + OLD, c="import jax\n" + NEW)
    assert sorted(after) == ["a.py", "b.py"]
    assert after["b.py"] == "import jax\n" + NEW
    assert done.renamed == 2
    assert not done.left


@pytest.mark.parametrize(
    "left",
    [
        "y = jax.tree_map(abs, x)  # noqa: PMX519\n",
        "is_key = isinstance(k, jax.random.KeyArray)\n",
        "if hasattr(jax, 'tree_map'):\n    y = jax.tree_map(abs, x)\n",
        "from jax.experimental.pjit import pjit\nf = pjit(g)\n",
        "with jax.sharding.Mesh(d, 'i'):\n    pass\n",
    ],
    ids=["suppressed", "unsafe", "guarded", "deprecated", "deprecated and unsafe"],
)
def test_what_is_suppressed_unsafe_guarded_or_deprecated_is_left(migrated, left):
    done, after = migrated(a="import jax\n" + left)
    assert (after, done.renamed) == ({}, 0)


def test_a_second_pass_has_nothing_to_do(migrated, tmp_path):
    _, after = migrated(a=PMAP + OLD)
    (tmp_path / "a.py").write_text(after["a.py"])
    again = migrate([str(tmp_path)])
    assert (again.changed, again.renamed) == ((), 0)
