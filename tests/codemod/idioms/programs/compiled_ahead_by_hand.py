"""Steps compiled ahead of time, kept in a dictionary and called with an unpacked carry."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def update(params, momentum, x, y):
    def loss_fn(params):
        return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    loss, grads = jax.lax.pmean((loss, grads), axis_name="d")
    momentum = jax.tree.map(lambda m, g: 0.5 * m + g, momentum, grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum)
    return params, momentum, loss


def accuracy(params, x, y):
    hits = jnp.sum(jnp.sign(x @ params["w"] + params["b"]) == jnp.sign(y))
    return jax.lax.psum(hits, axis_name="d")


def compile_all(mesh, **arguments):
    steps = {
        "train": jax.jit(
            jax.shard_map(
                update,
                mesh=mesh,
                in_specs=(P(), P(), P("d"), P("d")),
                out_specs=P(),
                check_vma=False,
            ),
            donate_argnums=(0, 1),
        ),
        "eval": jax.jit(
            jax.shard_map(
                accuracy,
                mesh=mesh,
                in_specs=(P(), P("d"), P("d")),
                out_specs=P(),
                check_vma=False,
            )
        ),
    }
    compiled = {}
    for name, step in steps.items():
        lowered = step.lower(*arguments[name])
        compiled[name] = lowered.compile()
        print(name, len(lowered.as_text()) > 0)
    return compiled


def batches(count):
    rng = np.random.RandomState(0)
    for _ in range(count):
        x = rng.normal(size=(64, 5)).astype(np.float32)
        y = (x[:, 0] - x[:, 3]).astype(np.float32)
        yield x, y


def main():
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
    params = {"w": np.linspace(-1, 1, 5, dtype=np.float32), "b": np.float32(0)}
    carry = (params, jax.tree.map(np.zeros_like, params))
    carry = jax.device_put(carry, NamedSharding(mesh, P()))
    # A compiled step takes arrays that are placed as it was lowered for.
    sharded = NamedSharding(mesh, P("d"))
    sample = jax.device_put(next(batches(1)), sharded)
    steps = compile_all(mesh, train=(*carry, *sample), eval=(carry[0], *sample))
    history = []
    for batch in batches(4):
        batch = jax.device_put(batch, sharded)
        *carry, loss = steps["train"](*carry, *batch)
        history.append((float(loss), int(steps["eval"](carry[0], *batch))))
    print(history)
    return {"history": history, "params": jax.tree.map(np.asarray, carry[0])}


if __name__ == "__main__":
    main()
