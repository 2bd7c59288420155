"""A state initialized once, for all devices; keys from a generator."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


class Keys:
    """A source of new keys, one at a time or some together."""

    def __init__(self, key):
        self._key = key

    def one(self):
        return self.some(1)[0]

    def some(self, count):
        self._key, *new = jax.random.split(self._key, 1 + count)
        return new


@jax.jit
def initialize(key):
    encoder_key, decoder_key = Keys(key).some(2)
    encoder = jax.random.normal(encoder_key, (6, 3))
    decoder = jax.random.normal(decoder_key, (3, 6))
    return {"encoder": encoder, "decoder": decoder, "step": jnp.int32(0)}


def fetched(metrics, stack=False):
    if stack:
        return jax.tree.map(lambda *steps: np.stack(steps), *jax.device_get(metrics))
    return {name: float(value) for name, value in metrics.items()}


def loss_fn(state, images, key):
    mask = jax.random.bernoulli(key, 0.5, images.shape)
    code = jnp.tanh(jnp.where(mask, images, 0) @ state["encoder"])
    return jnp.mean((code @ state["decoder"] - images) ** 2), mask.mean()


def update(state, key, images):
    keys = Keys(key[0])
    weights = {name: state[name] for name in ("encoder", "decoder")}
    cost_and_grads = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, ratio), grads = cost_and_grads(weights, images, keys.one())
    grads, metrics = jax.lax.pmean((grads, {"loss": loss, "ratio": ratio}), axis_name="dp")
    weights = jax.tree.map(lambda p, g: p - 0.1 * g, weights, grads)
    return {**weights, "step": state["step"] + 1}, keys.one()[None], metrics


def main():
    n = jax.device_count()
    mesh = jax.make_mesh((n,), ("dp",), axis_types=(AxisType.Auto,))
    p_update = jax.jit(
        jax.shard_map(
            update,
            mesh=mesh,
            in_specs=(P(), P("dp"), P("dp")),
            out_specs=(P(), P("dp"), P()),
            check_vma=False,
        ),
        donate_argnums=0,
    )
    source = Keys(jax.random.PRNGKey(5))
    # The first key is used, as when devices took over the first one's state.
    state = jax.device_put(initialize(source.some(n)[0]), NamedSharding(mesh, P()))
    own_keys = jnp.stack(source.some(n))
    rng = np.random.RandomState(0)
    metrics = []
    for _ in range(4):
        images = rng.normal(size=(32, 6)).astype(np.float32)
        state, own_keys, step_metrics = p_update(state, own_keys, images)
        metrics.append(step_metrics)
    last = fetched(metrics[-1])
    every = fetched(metrics, stack=True)
    print(last)
    final = jax.device_get(state)
    return {"last": last, "every": every, "state": final, "keys": np.asarray(own_keys)}


if __name__ == "__main__":
    main()
