"""The idioms of programs for many hosts, on one: who am I, which part of the data is mine."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

AXIS = "hosts_and_devices"


class HostShardedDataset:
    """Reads every process_count()-th example, from process_index() on."""

    def __init__(self, size, batch_size):
        assert batch_size % jax.process_count() == 0, "batch must be divisible by hosts"
        self.indices = np.arange(size)[jax.process_index() :: jax.process_count()]
        self.host_batch = batch_size // jax.process_count()

    def epoch(self, seed):
        order = np.random.RandomState(seed + jax.process_index()).permutation(self.indices)
        for start in range(0, len(order) - self.host_batch + 1, self.host_batch):
            x = order[start : start + self.host_batch].astype(np.float32) / 100
            x = x.reshape(jax.local_device_count(), -1)
            yield {"x": x, "y": 3 * x + 0.5}


def is_main_host():
    return jax.process_index() == 0


def log(*words):
    if is_main_host():
        print(*words)


def wait_for_all():
    """Nobody goes on before everybody is here."""
    ones = jnp.ones(jax.local_device_count())
    total = jax.pmap(lambda x: jax.lax.psum(x, "all"), axis_name="all")(ones)
    assert total[0].block_until_ready() == jax.device_count()


def broadcast_from_first(tree):
    """Every device gets what device 0 of host 0 has."""

    def select(x):
        is_source = jax.lax.axis_index(AXIS) == 0
        return jax.lax.psum(jnp.where(is_source, x, jnp.zeros_like(x)), AXIS)

    return jax.pmap(lambda t: jax.tree.map(select, t), axis_name=AXIS)(tree)


@functools.partial(jax.pmap, axis_name=AXIS, donate_argnums=0)
def step(params, batch):
    def loss_fn(params):
        return jnp.mean((params["a"] * batch["x"] + params["b"] - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    grads = jax.lax.pmean(grads, AXIS)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), jax.lax.pmean(loss, AXIS)


def main():
    data = HostShardedDataset(size=96, batch_size=32)
    key = jax.random.fold_in(jax.random.PRNGKey(0), jax.process_index())
    drawn = jax.random.normal(key, (2, jax.local_device_count()))
    params = broadcast_from_first({"a": drawn[0], "b": drawn[1]})
    losses = []
    for epoch in range(2):
        for batch in data.epoch(epoch):
            params, loss = step(params, batch)
            losses.append(float(loss[0]))
        log(f"epoch {epoch}: loss {losses[-1]:.5f}, learning rate 0.1")
    wait_for_all()
    local = jax.tree.map(lambda x: np.asarray(x.addressable_data(0)).reshape(()), params)
    return {"losses": losses, "params": local, "hosts": jax.process_count()}


if __name__ == "__main__":
    main()
