"""A project's own decorator: it maps and accumulates by a mean or by concatenation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def on_all_devices(fn, reduce_by, mesh, in_specs, axis_name="batch"):
    """Runs a function on all devices and returns its accumulated results to the host."""
    if reduce_by == "join":
        combine, out_specs = (lambda out: out), P(axis_name)
    elif reduce_by == "average":
        combine, out_specs = functools.partial(jax.lax.pmean, axis_name=axis_name), P()
    else:
        raise ValueError(f"no such reduction: {reduce_by}")

    sharded = jax.jit(
        jax.shard_map(
            lambda *args: combine(fn(*args)),
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,
        )
    )

    def call(*inputs):
        return jax.device_get(sharded(*inputs))

    return call


class Experiment:
    def __init__(self, seed):
        self.mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
        self.key, noise_key, sample_key = jax.random.split(jax.random.PRNGKey(seed), 3)
        self.state = {
            "step": np.int32(0),
            "params": {"mean": np.zeros(2, np.float32), "scale": np.ones(2, np.float32)},
        }
        update = functools.partial(self._update, noise_key)
        substeps = functools.partial(jax.lax.scan, update)
        self.train = jax.jit(
            jax.shard_map(
                substeps,
                mesh=self.mesh,
                in_specs=(P(), P("batch")),
                out_specs=(P(), {"scalars": P(), "images": P("batch")}),
                check_vma=False,
            )
        )
        self.evaluate = on_all_devices(self._loss, "average", self.mesh, in_specs=(P(), P("batch")))
        self.sample = functools.partial(self._sample, count=3, key=sample_key)
        self.sample = on_all_devices(self.sample, "join", self.mesh, in_specs=P())

    def _loss(self, params, batch, key=None):
        x = batch["images"]
        if key is not None:
            x = x + 0.1 * jax.random.normal(key, x.shape)
        z = (x - params["mean"]) / params["scale"]
        return jnp.mean(0.5 * z**2 + jnp.log(jnp.abs(params["scale"])))

    def _sample(self, params, *, count, key):
        own_key = jax.random.fold_in(key, jax.lax.axis_index("batch"))
        noise = jax.random.normal(own_key, (count, 2))
        return {"x": params["mean"] + params["scale"] * noise, "z": noise}

    def _update(self, base_key, state, batch):
        step_key = jax.random.fold_in(base_key, state["step"])
        key = jax.random.fold_in(step_key, jax.lax.axis_index("batch"))
        loss, grads = jax.value_and_grad(self._loss)(state["params"], batch, key)
        grads = jax.lax.pmean(grads, "batch")
        params = jax.tree.map(lambda p, g: p - 0.25 * g, state["params"], grads)
        metrics = {"scalars": jax.lax.pmean({"loss": loss}, axis_name="batch"), "images": batch}
        return {"step": state["step"] + 1, "params": params}, metrics


def batches(seed, leading):
    rng = np.random.RandomState(seed)
    while True:
        yield {"images": rng.normal(size=(leading, 4, 2), loc=1, scale=2).astype(np.float32)}


def main():
    experiment = Experiment(0)
    n, substeps = jax.device_count(), 2
    state = jax.device_put(experiment.state, NamedSharding(experiment.mesh, P()))
    train_iter, eval_iter = batches(0, n * substeps), batches(1, n)
    losses = []
    for _ in range(3):
        state, metrics = experiment.train(state, next(train_iter))
        losses.append(float(metrics["scalars"]["loss"].mean(axis=0)))
    step = int(state["step"])
    evaluated = experiment.evaluate(state["params"], next(eval_iter))
    samples = experiment.sample(state["params"])
    seen = np.asarray(metrics["images"]["images"]).reshape(-1, 2)
    print(step, losses, evaluated)
    return {
        "losses": losses,
        "step": step,
        "evaluated": evaluated,
        "samples": samples,
        "seen": seen,
    }


if __name__ == "__main__":
    main()
