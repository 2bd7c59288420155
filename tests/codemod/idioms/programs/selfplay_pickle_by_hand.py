"""Self-play on all devices, games shuffled by the host, decorators, a pickle."""

import os
import pickle
import tempfile
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

n = jax.device_count()
mesh = jax.make_mesh((n,), ("players",), axis_types=(AxisType.Auto,))
shard_map = partial(jax.shard_map, mesh=mesh, check_vma=False)
GAMES, BATCH, TURNS = 16, 32, 4


class Position(NamedTuple):
    obs: jnp.ndarray
    value: jnp.ndarray


def network(params, state, obs, is_frozen=False):
    h = jnp.tanh(obs @ params["w1"])
    if not is_frozen:
        state = {"count": state["count"] + 1}
    return h @ params["w2"], state


@jax.jit
@partial(shard_map, in_specs=(P(), P("players")), out_specs=P(None, "players"))
def play(model, key):
    params, state = model
    count = GAMES // n

    def turn(obs, key):
        value, _ = network(params, state, obs, is_frozen=True)
        obs = 0.5 * obs + value[:, None] + jax.random.normal(key, obs.shape)
        return obs, Position(obs, jnp.sign(obs.sum(-1)))

    start_key, key = jax.random.split(key[0])
    obs = jax.random.normal(start_key, (count, 3))
    _, data = jax.lax.scan(turn, obs, jax.random.split(key, TURNS))
    return data


@jax.jit
def backwards(data):
    return jax.tree.map(lambda x: jnp.flip(jnp.swapaxes(x, 0, 1), axis=1), data)


def loss_fn(params, state, games):
    value, state = network(params, state, games.obs)
    return jnp.mean((value - games.value) ** 2), state


@jax.jit
@partial(shard_map, in_specs=(P(), P(), P("players")), out_specs=(P(), P(), P("players")))
def learn(model, moment, data):
    params, state = model
    (loss, state), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, state, data)
    grads = jax.lax.pmean(grads, axis_name="players")
    moment = jax.tree.map(lambda s, g: 0.5 * s + g, moment, grads)
    params = jax.tree.map(lambda p, s: p - 0.25 * s, params, moment)
    return (params, state), moment, loss[None]


@jax.jit
@partial(shard_map, in_specs=(P("players"), P()), out_specs=P("players"))
def compete(key, model):
    params, state = model
    obs = jax.random.normal(key[0], (4, 3))
    value, _ = network(params, state, obs, is_frozen=True)
    return jnp.sign(value) * jnp.sign(obs.sum(-1))


def main():
    rng = np.random.RandomState(0)
    params = {
        "w1": rng.normal(size=(3, 4)).astype(np.float32),
        "w2": rng.normal(size=4).astype(np.float32),
    }
    model = (params, {"count": np.int32(0)})
    moment = jax.tree.map(np.zeros_like, params)
    model, moment = jax.device_put((model, moment), NamedSharding(mesh, P()))

    key = jax.random.PRNGKey(7)
    losses, won, seen = [], [], 0
    for _ in range(2):
        now, key = jax.random.split(key)
        outcome = compete(jax.random.split(now, n), model)
        won.append(((outcome == 1).sum() / outcome.size).item())

        now, key = jax.random.split(key)
        # (games, turns, ...) on the host
        games = jax.device_get(backwards(play(model, jax.random.split(now, n))))
        seen += int(np.prod(games.obs.shape[:2]))
        games = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), games)
        now, key = jax.random.split(key)
        order = np.asarray(jax.random.permutation(now, len(games.obs)))
        games = jax.tree.map(lambda leaf: leaf[order], games)
        updates = len(games.obs) // BATCH
        for part in range(updates):
            batch = jax.tree.map(lambda leaf: np.split(leaf, updates)[part], games)
            model, moment, loss = learn(model, moment, batch)
            losses.append(float(loss.mean()))

    with tempfile.TemporaryDirectory() as folder:
        first = jax.tree.map(np.asarray, (model, moment))
        with open(os.path.join(folder, "000002.ckpt"), "wb") as f:
            pickle.dump({"key": key, "first": first, "seen": seen}, f)
        with open(os.path.join(folder, "000002.ckpt"), "rb") as f:
            saved = pickle.load(f)
    print("losses", losses, "won", won)
    return {"losses": losses, "won": won, "saved": saved}


if __name__ == "__main__":
    main()
