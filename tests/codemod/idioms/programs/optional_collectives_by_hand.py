"""Steps that are mapped or only jitted by a flag."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "parts"


def is_mapped():
    try:
        jax.lax.axis_index(AXIS)
    except NameError:
        return False
    return True


def average(tree):
    """The mean over devices, or the tree itself outside of a map."""
    return jax.lax.pmean(tree, AXIS) if is_mapped() else tree


def copies(tree, mesh):
    return jax.device_put(tree, NamedSharding(mesh, P()))


def parts(tree, mesh):
    return jax.device_put(tree, NamedSharding(mesh, P(AXIS)))


def make_update(rate, mesh=None):
    def update(params, x, y):
        def loss_fn(params):
            return jnp.mean((jnp.tanh(x @ params["w"]) + params["b"] - y) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        loss, grads = average((loss, grads))
        return jax.tree.map(lambda p, g: p - rate * g, params, grads), loss

    if mesh is None:
        return jax.jit(update)
    return jax.jit(
        jax.shard_map(
            update,
            mesh=mesh,
            in_specs=(P(), P(AXIS), P(AXIS)),
            out_specs=P(),
            check_vma=False,
        ),
        donate_argnums=(0,),
    )


def train(is_parallel):
    rng = np.random.RandomState(0)
    x = rng.normal(size=(32, 3)).astype(np.float32)
    y = np.sin(x.sum(1))
    params = {"w": np.full(3, 0.5, np.float32), "b": np.float32(0.25)}
    mesh = None
    if is_parallel:
        mesh = jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(AxisType.Auto,))
        params, (x, y) = copies(params, mesh), parts((x, y), mesh)
    update = make_update(0.25, mesh)
    losses = []
    for _ in range(4):
        params, loss = update(params, x, y)
        losses.append(float(loss))
    return losses, jax.device_get(params)


def main():
    losses, params = train(is_parallel=True)
    alone, _ = train(is_parallel=False)
    print("losses", losses, "on one device", alone)
    assert np.allclose(losses, alone)
    return {"losses": losses, "params": params, "alone": alone}


if __name__ == "__main__":
    main()
