"""Several steps a call: a map of a scan, its carry a key a device and a replicated state."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

SUBSTEPS = 3


class State(NamedTuple):
    step: Any
    params: Any
    average: Any


def dataset(per_device_batch):
    """Batches of (devices * substeps, examples, features), as nested batching makes them."""
    rng = np.random.RandomState(0)
    batch_dims = [jax.device_count() * SUBSTEPS, per_device_batch]
    while True:
        x = rng.normal(size=(int(np.prod(batch_dims)), 2)).astype(np.float32)
        for size in reversed(batch_dims[1:]):
            x = x.reshape((-1, size) + x.shape[1:])
        yield {"image": x}


def make_body(is_training):
    def loss_fn(params, key, image):
        noise_key, time_key = jax.random.split(key)
        t = jax.random.uniform(time_key, (image.shape[0], 1))
        z = jax.random.normal(noise_key, image.shape)
        score = (image + t * z) @ params["w"] + params["b"]
        return jnp.mean((score * t + z) ** 2)

    def body(carry, batch):
        key, state = carry
        key, now = jax.random.split(key[0], 2)
        if is_training:
            both = jax.value_and_grad(loss_fn)(state.params, now, batch["image"])
            loss, grads = jax.lax.pmean(both, axis_name="batch")
            params = jax.tree.map(lambda p, g: p - 0.1 * g, state.params, grads)
            average = jax.tree.map(lambda e, p: 0.75 * e + 0.25 * p, state.average, params)
            state = State(state.step + 1, params, average)
        else:
            loss = jax.lax.pmean(loss_fn(state.average, now, batch["image"]), "batch")
        return (key[None], state), loss

    return body


def main():
    params = {"w": np.eye(2, dtype=np.float32) / 4, "b": np.zeros(2, np.float32)}
    state = State(np.int32(0), params, params)
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    carry_specs = (P("batch"), P())
    shard_map = functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(carry_specs, P("batch")),
        out_specs=(carry_specs, P()),
        check_vma=False,
    )
    train = jax.jit(shard_map(functools.partial(jax.lax.scan, make_body(is_training=True))))
    evaluate = jax.jit(shard_map(functools.partial(jax.lax.scan, make_body(is_training=False))))
    state = jax.device_put(state, NamedSharding(mesh, P()))
    train_data, eval_data = dataset(4), dataset(2)
    key = jax.random.PRNGKey(4)
    losses = []
    for _ in range(2):
        key, *keys = jax.random.split(key, 1 + jax.device_count())
        (_, state), loss = train((jnp.stack(keys), state), next(train_data))
        losses.append(float(loss.mean()))
    key, *keys = jax.random.split(key, 1 + jax.device_count())
    _, eval_loss = evaluate((jnp.stack(keys), state), next(eval_data))
    state = jax.tree.map(np.asarray, state)
    print("step", state.step, "losses", losses)
    return {"losses": losses, "eval": np.asarray(eval_loss), "state": state}


if __name__ == "__main__":
    main()
