"""Early stopping and a loss scale: control flow on the host from values that all devices share."""

import jax
import jax.numpy as jnp
import numpy as np


def train_step(state, x, y):
    """A step in half precision; skipped on all devices when one of them overflows."""

    def loss_fn(w):
        residual = (x @ w).astype(jnp.float16) - y.astype(jnp.float16)
        return jnp.mean(residual.astype(jnp.float32) ** 2) * state["scale"]

    scaled, grads = jax.value_and_grad(loss_fn)(state["w"])
    grads = jax.lax.pmean(grads, "i") / state["scale"]
    here = jnp.isfinite(grads).all() & (jnp.abs(scaled) < 5e4)
    finite = jax.lax.pmin(here.astype(jnp.int32), "i") > 0
    new_w = jnp.where(finite, state["w"] - 0.1 * grads, state["w"])
    scale = jnp.where(finite, state["scale"], state["scale"] / 2)
    skipped = state["skipped"] + jnp.where(finite, 0, 1)
    loss = jax.lax.pmean(scaled / state["scale"], "i")
    return {"w": new_w, "scale": scale, "skipped": skipped}, loss, finite


def should_stop(x, threshold):
    return jax.lax.cond(
        jax.lax.pmax(x, "i") < threshold, lambda: jnp.array(True), lambda: jnp.array(False)
    )


p_step = jax.pmap(train_step, axis_name="i", donate_argnums=(0,))
p_should_stop = jax.pmap(should_stop, axis_name="i", in_axes=(0, None))


def main():
    n = jax.local_device_count()
    rng = np.random.RandomState(0)
    state = {"w": np.zeros(3, np.float32), "scale": np.float32(2**17), "skipped": np.int32(0)}
    state = jax.device_put_replicated(state, jax.local_devices())
    trace = []
    for step in range(12):  # noqa: B007
        x = rng.normal(size=(n, 8, 3)).astype(np.float32)
        y = x @ np.array([0.5, -0.25, 1.0], np.float32)
        state, loss, finite = p_step(state, x, y)
        trace.append((float(loss[0]), bool(finite[0])))
        if p_should_stop(loss, 0.3)[0]:
            break
    print(f"stopped after {step}, scale {float(state['scale'][0])}, {trace}")
    final = jax.tree.map(lambda v: np.asarray(v)[0], state)
    return {"trace": np.array(trace), "final": final, "step": step}


if __name__ == "__main__":
    main()
