"""Names around pmap that later releases of JAX removed are back under install() (I7)."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmapx
from pmapx._src.legacy import renamed_names

pytestmark = pytest.mark.behaviour("I7")

ARRAY = type(jnp.zeros(()))
OWNERS = [jax, jnp, jax.core, jax.experimental, jax.lax, jax.nn, jax.ops, jax.random, jax.sharding]
OWNERS += [jax.tree_util, type(jax.config), ARRAY, jax.interpreters.pxla, jax.interpreters.xla]


@pytest.fixture(autouse=True, scope="module")
def installed():
    before = [dict(vars(owner)) for owner in OWNERS]
    modules = {name: sys.modules.get(name) for name in renamed_names.MODULES}
    with pmapx.install() as handle:
        yield handle
    assert [dict(vars(owner)) for owner in OWNERS] == before
    assert {name: sys.modules.get(name) for name in renamed_names.MODULES} == modules


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", renamed_names.NAMES)
def test_a_removed_name_is_there(name, installed):
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)

    if name in installed.patched:
        assert found is renamed_names._find(renamed_names.NAMES[name])


def test_trees():
    tree = {"a": 1, "b": [2, 3]}

    assert jax.tree_map(lambda x, y: x + y, tree, tree) == {"a": 2, "b": [4, 6]}
    assert jax.tree_multimap(lambda x, y: x * y, tree, tree) == {"a": 1, "b": [4, 9]}
    assert jax.tree_util.tree_multimap(lambda x: -x, tree) == {"a": -1, "b": [-2, -3]}
    leaves, treedef = jax.tree_flatten(tree)
    assert leaves == jax.tree_leaves(tree) == [1, 2, 3]
    assert jax.tree_unflatten(treedef, leaves) == tree
    assert (jax.tree_structure(tree), jax.tree_reduce(max, tree)) == (treedef, 3)
    assert jax.tree_all({"a": True})


def test_index_updates():
    x = np.arange(4.0)

    assert jax.ops.index_update(x, jax.ops.index[1:3], 9.0).tolist() == [0, 9, 9, 3]
    assert jax.ops.index_add(x, 0, 5.0).tolist() == [5, 1, 2, 3]
    assert jax.ops.index_mul(x, jax.ops.index[2:], 2.0).tolist() == [0, 1, 4, 6]
    assert jax.ops.index_min(x, 3, 1.0).tolist() == [0, 1, 2, 1]
    assert jax.ops.index_max(x, 0, 1.0, unique_indices=True).tolist() == [1, 1, 2, 3]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_functions_of_numpy():
    x = jnp.array([[3.0, 1.0], [2.0, 4.0]])

    assert jnp.msort(x).tolist() == [[2, 1], [3, 4]]
    assert jnp.in1d(x, jnp.array([1.0, 2.0])).tolist() == [False, True, True, False]
    assert jnp.in1d(x, jnp.array([1.0]), invert=True).sum() == 3
    assert (jnp.product(x), jnp.sometrue(x > 3), jnp.alltrue(x > 3)) == (24, True, False)
    assert jnp.cumproduct(x).tolist() == [3, 3, 6, 24]
    assert jnp.row_stack([x[0], x[1]]).shape == (2, 2)
    assert (jnp.trapz(x[0]), jnp.round_(1.2), jnp.asscalar(x[0, :1])) == (2, 1, 3)
    assert jnp.fix(jnp.array([-1.5, 1.5])).tolist() == [-1, 1]
    assert jnp.clip(x, a_min=2, a_max=3).tolist() == [[3, 2], [2, 3]]
    assert jnp.clip(a=x, a_max=3).tolist() == jnp.clip(x, None, 3).tolist()
    assert jnp.clip(x, 2, 3).tolist() == [[3, 2], [2, 3]]
    assert jnp.reshape(x, newshape=(4,)).shape == jnp.reshape(x, (4,)).shape == (4,)
    with pytest.raises(TypeError, match="no_such_name"):
        jnp.clip(x, no_such_name=2)


def test_random_keys():
    assert isinstance(jax.random.PRNGKey(0), jax.random.KeyArray)
    assert isinstance(jax.random.key(0), jax.random.PRNGKeyArray)
    assert not isinstance(jax.random.PRNGKey(0), jax.random.PRNGKeyArray)
    assert not isinstance(0, jax.random.PRNGKeyArray)
    x = jnp.arange(12).reshape(4, 3)
    shuffled = jax.random.shuffle(jax.random.key(0), x)
    np.testing.assert_array_equal(np.sort(shuffled, axis=0), x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_settings():
    from jax.config import config

    assert config is jax.config is jax.config.config
    assert jax.config.omnistaging_enabled
    jax.config.enable_omnistaging()
    with jax.experimental.enable_x64():
        assert jnp.ones(()).dtype == np.float64
        with jax.experimental.disable_x64():
            assert jnp.ones(()).dtype == np.float32
    with jax.experimental.enable_x64(False):
        assert jnp.ones(()).dtype == np.float32


def test_primitives_are_made_with_names_of_core():
    doubled = jax.core.Primitive("doubled")
    doubled.def_impl(lambda x: 2 * x)
    doubled.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))

    assert doubled.bind(3) == 6
    closed = jax.make_jaxpr(doubled.bind)(1.0)
    assert isinstance(closed, jax.core.ClosedJaxpr)
    assert isinstance(closed.jaxpr.eqns[0], jax.core.JaxprEqn)
    aval = jax.core.raise_to_shaped(jax.core.get_aval(np.float32(1)))
    assert aval.dtype == np.float32


def test_the_size_of_a_named_axis():
    def sizes(x):
        frame = jax.core.axis_frame("i")
        return x * frame.size + int(frame)

    assert jax.vmap(sizes, axis_name="i")(jnp.ones(3)).tolist() == [6, 6, 6]
    with pytest.raises(NameError):
        jax.core.axis_frame("i")


@pytest.mark.needs_devices(2)
def test_isinstance_of_sharded_device_array_is_true_only_for_pmap_outputs():
    n = jax.device_count()
    x = jax.pmap(lambda a: a)(np.arange(n))

    assert isinstance(x, jax.interpreters.pxla.ShardedDeviceArray)
    assert not isinstance(jnp.ones(3), jax.interpreters.pxla.ShardedDeviceArray)
    assert isinstance(x, jax.interpreters.xla.DeviceArray)
    assert [buffer.devices() for buffer in x.device_buffers] == [{d} for d in jax.devices()]
    assert jnp.ones(3).device_buffer.shape == (3,)


def test_more_elements_than_devices():
    n = 2 * jax.device_count()
    total = jax.soft_pmap(lambda a: jax.lax.psum(a, "i"), "i")(np.ones(n, np.float32))
    np.testing.assert_array_equal(total, np.full(n, n))


IMPORTS = """
import jax
from jax.config import config
config.update("jax_enable_x64", False)
import jax.config as configuration
from jax.experimental import optimizers, stax
import jax.linear_util as lu
from jax.linear_util import wrap_init
from jax.abstract_arrays import ShapedArray
from jax.api import pmap, jit
from jax.lib import xla_bridge
from jax.experimental.maps import Mesh
from jax.experimental.pjit import PartitionSpec, with_sharding_constraint
from jax.interpreters.pxla import PartitionSpec, ShardedDeviceArray
from jax.util import safe_map, safe_zip, split_list, unzip2
from jax.core import Primitive
from jax.random import KeyArray
from jax import tree_map, tree_multimap, tree_util
import jax.numpy as jnp, pmapx, pickle
assert pmap is jax.pmap is pmapx.pmap and jit is jax.jit
assert xla_bridge.get_backend().platform == jax.default_backend()
assert lu.wrap_init is wrap_init
init, apply = stax.serial(stax.Dense(3), stax.Relu)
_, parameters = init(jax.random.PRNGKey(0), (-1, 2))
start, update, get = optimizers.sgd(0.1)
state = update(0, tree_map(jnp.ones_like, parameters), start(parameters))
assert apply(get(state), jnp.ones((5, 2))).shape == (5, 3)
assert safe_map(max, [1, 5], [4, 2]) == [4, 5] and safe_zip([1], [2]) == [(1, 2)]
assert split_list([1, 2, 3], [1]) == [[1], [2, 3]] and unzip2([(1, 2)]) == ((1,), (2,))
assert pickle.loads(pickle.dumps(tree_map)) is jax.tree_util.tree_map
try:
    from jax.experimental.maps import xmap
except ImportError as error:
    print(error)
"""


def test_a_program_imports_what_is_gone_under_pmapx_run(tmp_path):
    pytest.importorskip("click", reason="needs pmapx[tools]")
    (tmp_path / "train.py").write_text(IMPORTS)

    done = subprocess.run(
        [sys.executable, "-m", "pmapx", "run", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(pmapx.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "xmap" in done.stdout
