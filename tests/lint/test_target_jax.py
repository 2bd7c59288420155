"""``--target-jax``: what is reported for a release of JAX, and that the releases are right."""

import contextlib
import importlib
import inspect
import warnings

import jax
import numpy as np
import pytest

from pmapx._src.analysis.project import Project
from pmapx._src.lint import settings
from pmapx._src.lint.fixing import fix_file
from pmapx._src.lint.rules.removed.removed_names import SINCE
from pmapx._src.source.command_error import CommandError
from reading import codes, findings

INSTALLED = tuple(map(int, jax.__version__.split(".")[:3]))
# What no release since 0.8 has, what 0.9, 0.10 and later releases removed, and what is deprecated.
PROGRAM = """
import jax
from jax.experimental.pjit import pjit
from jax.sharding import Mesh
y = jax.tree_map(f, x)
jax.config.update("jax_pmap_no_rank_reduction", False)
x = jax.device_put_replicated(x, devices)
m = jax.make_mesh(axis_shapes=(8,), axis_names=("i",), axis_types=types)
n = jax.make_mesh((8,), ("i",))
with Mesh(devices, ("i",)):
    pass
"""


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (None, ["PMX519", "PMX515", "PMX511", "PMX563"]),
        ("0.8", ["PMX561", "PMX519"]),
        ("0.9.1", ["PMX561", "PMX519", "PMX515", "PMX564"]),
        ("0.10", ["PMX561", "PMX519", "PMX515", "PMX511", "PMX564"]),
        ("0.10.2", ["PMX561", "PMX519", "PMX515", "PMX511", "PMX564", "PMX562"]),
        ("0.12", ["PMX561", "PMX519", "PMX515", "PMX511", "PMX563", "PMX564", "PMX562"]),
    ],
)
def test_a_target_reports_what_it_removed_changed_or_deprecated(tmp_path, target, expected):
    assert codes(tmp_path, PROGRAM, target_jax=target) == expected


def test_what_is_selected_is_reported_without_a_target(tmp_path):
    assert codes(tmp_path, PROGRAM, select=("PMX56",)) == ["PMX561", "PMX563", "PMX564", "PMX562"]


def test_the_target_is_a_setting_of_the_project(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.pmapx]\ntarget-jax = "0.10"\n')
    table = settings.load([str(tmp_path)])
    assert settings.make(table).target_jax == (0, 10)
    assert settings.make(table, target_jax="0.12").target_jax == (0, 12)


@pytest.mark.parametrize("wrong", ["new", "0", "0.x", "", "0.7.2", 0.12])
def test_a_target_that_is_not_a_jax_release_from_0_8_on_is_rejected(wrong):
    with pytest.raises(CommandError, match="target-jax is"):
        settings.make({"target-jax": wrong})


def exists(name):
    """Whether the installed JAX has a name, and whether it warns."""
    module, _, leaf = name.rpartition(".")
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module(module).__getattr__.cache_clear()  # JAX warns once.
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            getattr(importlib.import_module(module), leaf)
        except (ImportError, AttributeError):
            return False, False
    return True, any(issubclass(each.category, DeprecationWarning) for each in seen)


@pytest.mark.parametrize("name", SINCE)
def test_the_release_that_removed_a_name_is_right(name):
    is_there, _ = exists(name)
    assert is_there == (SINCE[name] > INSTALLED)


def test_the_releases_around_meshes_are_right():
    parameters = inspect.signature(jax.make_mesh).parameters
    assert ("axis_shapes" in parameters) == (INSTALLED < (0, 11))
    mesh = jax.make_mesh((1,), ("i",), devices=jax.devices()[:1])
    assert (mesh.axis_types[0] == jax.sharding.AxisType.Explicit) == (INSTALLED >= (0, 9))
    assert exists("jax.experimental.pjit.pjit") == (True, True)
    held = exists("jax.interpreters.pxla.thread_resources")
    assert held == (True, INSTALLED >= (0, 8, 2))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with mesh:
            pass
    assert bool(seen) == (INSTALLED >= (0, 10, 1))


@pytest.mark.parametrize(
    ("statement", "confidence"),
    [
        ("with mesh:", "medium"),
        ("with self._mesh, open(x):", "medium"),
        ("with config.global_mesh:", "medium"),
        ("with jax.sharding.Mesh(d, 'i'):", "high"),
        ("with jax.set_mesh(mesh):", None),
        ("with mesh_scope():", None),
        ("with jax.sharding.AbstractMesh((8,), ('i',)):", None),
    ],
)
def test_a_mesh_that_a_with_statement_enters_is_known_by_value_or_name(
    tmp_path, statement, confidence
):
    text = f"import jax\ndef run(self, mesh, config):\n    {statement}\n        jax.jit(f)()\n"
    found = findings(tmp_path, text, select=("PMX562",))
    assert [str(f.confidence) for f in found] == [confidence] * (confidence is not None)


def test_a_mesh_of_a_file_without_jax_is_none_of_its_meshes(tmp_path):
    assert codes(tmp_path, "import trimesh\nwith mesh:\n    jax = 1\n", select=("PMX562",)) == []


RUNNABLE = """
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.experimental.pjit import pjit
from jax.experimental.shard_map import shard_map
from jax.sharding import PartitionSpec as P
n = jax.device_count()
mesh = jax.make_mesh(axis_names=("i",), axis_shapes=(n,))

@partial(pjit, in_shardings=(P("i"),), out_shardings=P("i"))
def double(x):
    return jax.tree_map(lambda leaf: 2 * leaf, x)

@pjit
def shifted(x):
    return x + jax.host_count()

total = shard_map(lambda x: jax.lax.psum(x, "i"), mesh, P("i"), P(), check_rep=False)
x = np.arange(2.0 * n, dtype=np.float32)
with mesh:
    result = shifted(total(double(x)))
"""


def test_a_program_runs_after_its_fixes_and_does_what_it_meant():
    path = "program.py"
    fixed = fix_file(Project([path]), path, RUNNABLE.encode(), is_unsafe=True).after.decode()
    for old in ("pjit", "check_rep", "axis_shapes", "tree_map", "host_count", "with mesh"):
        assert old not in fixed
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        exec(compile(fixed, path, "exec"), namespace := {})
    expected = 2 * namespace["x"].reshape(-1, 2).sum(axis=0) + 1
    np.testing.assert_array_equal(np.asarray(namespace["result"]), expected)
