"""What running other people's programs before and after showed, each as a small program."""

import os
import sys

import jax
import pytest

from pmapx._src.codemod.migration import migrate
from pmapx._src.verify.verify import verify


@pytest.fixture
def verified(tmp_path):
    """Migrates files, runs ``train.py`` of both versions, and gives the sites by line."""

    def verified(**files):
        for version in ("before", "after"):
            (tmp_path / version).mkdir()
            for name, text in files.items():
                (tmp_path / version / f"{name}.py").write_text(text)
        for file in migrate([str(tmp_path / "after")]).changed:
            with open(file.path, "wb") as out:
                out.write(file.after)
        command = [sys.executable, "train.py"]
        found = verify(command, tmp_path / "before", tmp_path / "after", devices=8)
        assert (found.errors, found.differences) == ((), ())
        return found

    return verified


def states(found):
    return [(site.line, site.state, site.detail) for site in found.sites]


def test_lambdas_of_a_file_that_others_call_are_not_mixed_up(verified):
    maps = """import jax
HERE = jax.process_index()
mean = jax.pmap(lambda x: jax.lax.pmean(x, "i"), axis_name="i")
total = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
same = jax.pmap(lambda x: x)
split = jax.pmap(lambda key: tuple(jax.random.split(key)))
"""
    train = """import jax, numpy as np
import maps
rows = np.arange(16, dtype=np.float32).reshape(8, 2)
maps.same(rows)
maps.split(jax.random.split(jax.random.PRNGKey(0), 8))
maps.total(rows)
maps.mean(rows)
"""
    assert states(verified(maps=maps, train=train)) == [
        (line, "verified", "") for line in (3, 4, 5, 6)
    ]


def test_a_library_that_needs_removed_names_is_not_a_difference(verified, tmp_path, monkeypatch):
    library = """import jax
def replicate(x):
    return jax.device_put_replicated(x, jax.local_devices())
"""
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "oldlib.py").write_text(library)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "libraries"), prepend=os.pathsep)
    train = """import jax, numpy as np
import oldlib
double = jax.pmap(lambda x: 2 * x)
double(oldlib.replicate(np.ones(3, np.float32)))
"""
    found = verified(train=train)
    assert states(found) == [(3, "verified", "")]
    if jax.__version_info__ >= (0, 10):  # It was removed there.
        assert found.notes[0].startswith("A library that the program uses needs device_put_repl")


COMMITTED = """import jax, numpy as np
mesh = jax.sharding.Mesh(jax.devices(), ("i",))
rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
add = lambda s, x: s + jax.lax.psum(x, "i")
step = jax.pmap(add, axis_name="i", in_axes=(None, 0), out_axes=None)
restored = jax.device_put(np.float32(1), jax.devices()[0])
step(restored, jax.device_put(np.arange(8.0, dtype=np.float32), rows))
"""


def test_state_that_a_checkpoint_put_on_one_device_is_taken(verified):
    assert states(verified(train=COMMITTED)) == [(5, "verified", "")]


def test_a_setting_of_pythons_among_metrics_is_returned(verified):
    train = """import jax, numpy as np
N = jax.local_device_count()
class Scale:
    loss_scale = 2.0
def main():
    scale = Scale()
    def step(x):
        scalars = {"loss": x.sum(), "loss_scale": scale.loss_scale}
        return x, scalars
    jax.pmap(step)(np.ones((N, 2), np.float32))
main()
"""
    assert states(verified(train=train)) == [(10, "verified", "")]


def test_an_optimizers_init_that_becomes_jax_jit_is_compared(verified, tmp_path):
    train = """import jax, jax.numpy as jnp, numpy as np

class Momentum:
    def init(self, params):
        return {"mu": jnp.zeros_like(params), "n": jnp.zeros((), jnp.int32)}

opt = Momentum()

def step(params, state, batch):
    grads = jax.lax.pmean(jax.grad(lambda p: jnp.mean((batch @ p) ** 2))(params), "batch")
    return params - 0.1 * grads, {"mu": state["mu"] + grads, "n": state["n"] + 1}

def main():
    n = jax.local_device_count()
    params = jax.device_put_replicated(np.ones(3, np.float32), jax.local_devices())
    state = jax.pmap(opt.init)(params)
    p_step = jax.pmap(step, axis_name="batch")
    for i in range(2):
        batch = np.full((16, 3), i + 1, np.float32).reshape(n, -1, 3)
        params, state = p_step(params, state, batch)
    print(params[0])

main()
"""
    found = verified(train=train)
    assert [(site.function, site.state) for site in found.sites] == [
        ("init", "verified"),
        ("step", "verified"),
    ]
    assert "state = jax.jit(opt.init)(params)" in (tmp_path / "after" / "train.py").read_text()


KEYWORDS = """import functools, jax, numpy as np
def train_step(state, batch, config, scale, dropout_rng=None):
    noise = jax.random.normal(dropout_rng, batch.shape)
    return state - config * scale * jax.lax.pmean((batch + noise).mean(), "batch")
def main():
    step = jax.pmap(functools.partial(train_step, config=3.0, scale=2.0), axis_name="batch")
    state = jax.device_put_replicated(np.float32(1), jax.local_devices())
    rngs = jax.random.split(jax.random.PRNGKey(0), jax.local_device_count())
    for i in range(3):
        batch = np.full((16, 2), i, np.float32)
        state = step(state, batch.reshape((len(rngs), -1, 2)), dropout_rng=rngs)
main()
"""


def test_keywords_behind_those_that_a_partial_has_need_no_function(verified, tmp_path):
    assert states(verified(train=KEYWORDS)) == [(6, "verified", "")]
    after = (tmp_path / "after" / "train.py").read_text()
    assert after.count("def ") == 2


def test_keywords_behind_those_of_a_partial_reach_a_function_of_another_file(verified):
    steps = """import jax
def train_step(state, batch, config, dropout_rng=None):
    return state - config * (batch + jax.random.normal(dropout_rng, batch.shape)).mean()
"""
    train = """import functools, jax, numpy as np, steps
def main():
    step = jax.pmap(functools.partial(steps.train_step, config=3.0), axis_name="batch")
    rngs = jax.random.split(jax.random.PRNGKey(0), jax.local_device_count())
    state = np.arange(len(rngs), dtype=np.float32)
    state = step(state, np.ones((len(rngs), 2), np.float32), dropout_rng=rngs)
main()
"""
    assert states(verified(steps=steps, train=train)) == [(3, "verified", "")]
