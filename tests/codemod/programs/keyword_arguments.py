"""Mapped functions called by keyword, with defaults, with trees and empty ones in arguments."""

import jax
import jax.numpy as jnp
import numpy as np


def forward(params, inputs, *, mask=None, temperature=None):
    logits = inputs["x"] @ params["w"]
    if temperature is not None:
        logits = logits / temperature
    if mask is not None:
        logits = jnp.where(mask, logits, -1e9)
    extra = {"count": mask.sum()} if mask is not None else {}
    return jax.nn.softmax(logits), extra


def update(state, batch, learning_rate):
    def loss_fn(params):
        probs, _ = forward(params, batch)
        return -jnp.mean(jnp.log(probs[jnp.arange(3), batch["label"]]))

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    grads = jax.lax.pmean(grads, "i")
    params = jax.tree.map(lambda p, g: p - learning_rate * g, state["params"], grads)
    return {**state, "params": params}, {"loss": jax.lax.pmean(loss, "i"), "frozen": None}


pmapped_forward = jax.pmap(forward)
pmapped_update = jax.pmap(fun=update, axis_name="i", in_axes=(0, 0, None), donate_argnums=0)


def main():
    n = jax.local_device_count()
    rng = np.random.RandomState(0)
    params = {"w": rng.normal(size=(4, 5)).astype(np.float32)}
    state = {"params": params, "empty": (), "nothing": None}
    state = jax.tree.map(lambda p: np.stack([p] * n), state)
    batch = {
        "x": rng.normal(size=(n, 3, 4)).astype(np.float32),
        "label": rng.randint(0, 5, size=(n, 3)),
    }
    losses = []
    for step in range(3):
        state, metrics = pmapped_update(state, batch, 1.0 / (step + 1))
        assert metrics["frozen"] is None
        losses.append(float(metrics["loss"][0]))

    plain, nothing = pmapped_forward(state["params"], batch)
    mask = rng.uniform(size=(n, 3, 5)) > 0.3
    masked, counts = pmapped_forward(state["params"], inputs=batch, mask=mask)
    warm, _ = pmapped_forward(
        state["params"], batch, temperature=np.linspace(1, 2, n, dtype=np.float32)
    )
    assert nothing == {}
    print("losses", losses, "counts", np.asarray(counts["count"]))
    return {
        "losses": losses,
        "plain": np.asarray(plain),
        "masked": np.asarray(masked),
        "warm": np.asarray(warm),
        "counts": np.asarray(counts["count"]),
    }


if __name__ == "__main__":
    main()
