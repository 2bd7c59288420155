"""The page of JAX's error messages has them as this release of JAX writes them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "error-messages.md"

# What goes wrong, by the heading under which the page has the message.
PROGRAMS = {
    "jax.device_put_replicated is deprecated": "jax.device_put_replicated(1, jax.devices())",
    "device_put_replicated, imported": "from jax import device_put_replicated",
    "jax.device_put_sharded is deprecated": "jax.device_put_sharded([1] * 8, jax.devices())",
    "PmapSharding": "jax.sharding.PmapSharding",
    "PmapSharding, imported": "from jax.sharding import PmapSharding",
    "the flag": "jax.config.update('jax_pmap_shmap_merge', False)",
    "the flag, read": "jax.config.jax_pmap_shmap_merge",
    "the other flag": "jax.config.update('jax_pmap_no_rank_reduction', False)",
    "tree_map": "jax.tree_map(abs, 1)",
    "soft_pmap": "jax.soft_pmap",
    "ShardedDeviceArray": "jax.interpreters.pxla.ShardedDeviceArray",
    "xla_pmap_p": "jax.interpreters.pxla.xla_pmap_p",
    "use_mesh": "jax.sharding.use_mesh",
    "KeyArray": "jax.random.KeyArray",
    "Primitive": "jax.core.Primitive",
    "axis_frame": "jax.core.axis_frame",
    "device_buffers": "jnp.ones(3).device_buffers",
    "enable_x64": "from jax.experimental import enable_x64",
    "config": "from jax.config import config",
    "maps": "from jax.experimental.maps import xmap",
    "check_rep": "jax.shard_map(abs, mesh=mesh, in_specs=P(), out_specs=P(), check_rep=False)",
    "a committed argument": "jax.pmap(abs)(one)",
    "an operator": "jax.pmap(abs)(np.ones(8, 'f')) + jax.device_put(jnp.ones(8), one.device)",
    "compiled": "jax.pmap(abs).lower(np.ones((8, 4), 'f')).compile()(one)",
    "nested": "jax.pmap(jax.pmap(abs, axis_name='j'), axis_name='i')(np.ones((4, 2)))",
    "too many": "jax.pmap(abs)(np.ones(9))",
    "unequal sizes": "jax.pmap(lambda x, y: x)(np.ones(8), np.ones(4))",
    "nothing mapped": "jax.pmap(abs, in_axes=None)(1.0)",
    "an unbound axis": "jax.pmap(lambda x: jax.lax.psum(x, 'batch'))(np.ones(8))",
    "in_axes": "jax.pmap(abs, in_axes='a')(np.ones(8))",
    "out_axes": "jax.pmap(abs, out_axes='a')(np.ones(8))",
    "too many in_axes": "jax.pmap(lambda x, y: x, in_axes=(0, 0, 0))(np.ones(8), np.ones(8))",
    "a static argument": "jax.pmap(lambda x, n: x, static_broadcasted_argnums=1)(np.ones(8))",
    "a list": "jax.pmap(lambda x, n: x, static_broadcasted_argnums=1)(np.ones(8), [1])",
    "no devices": "jax.pmap(abs, devices=[])(np.ones(8))",
    "donated": "s = jax.device_put(np.ones((8, 4), 'f'), by_device)\n"
    "jax.pmap(lambda s: s + 1, donate_argnums=0)(s)\ns + 1",
    "explicit": "jax.jit(jax.shard_map(abs, mesh=jax.make_mesh((8,), ('i',)), in_specs=P('i'), "
    "out_specs=P('i')))(jnp.ones((8, 4)))",
    "replication": "mapped(P())(jnp.ones((8, 4)))",
    "indivisible": "mapped(P('i'))(jnp.ones((9, 4)))",
    "rank": "mapped(P('i'), lambda x: x.sum())(jnp.ones((8, 4)))",
}

HEAD = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
import json, sys
import jax, jax.interpreters.pxla, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("i",))
by_device = NamedSharding(mesh, P("i"))
one = jax.device_put(jnp.ones((8, 4)), jax.devices()[0])
def mapped(out, f=abs):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=out))
said = {}
for name, program in json.loads(sys.argv[1]).items():
    try:
        exec(program, dict(globals()))
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
print(json.dumps([jax.__version__, said]))
"""


@pytest.fixture(scope="module")
def said():
    """The version of JAX, and what it says of each program, in a process without pmapx."""
    command = [sys.executable, "-c", HEAD, json.dumps(PROGRAMS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def on_the_page():
    """Each message of the page as a pattern; `...` is any text."""
    text = PAGE.read_text("utf-8")
    for block in re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            words = " ".join(line.removeprefix("jax.errors.").split())
            yield re.escape(words).replace(r"\.\.\.", ".*")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_message_of_jax_is_on_the_page_word_for_word(said, name):
    version, messages = said
    if tuple(map(int, version.split(".")[:2])) < (0, 10):
        pytest.skip(f"JAX {version} still has many of these names, and other words")
    message = " ".join(messages[name].split())
    assert any(re.match(pattern, message) for pattern in on_the_page()), message
