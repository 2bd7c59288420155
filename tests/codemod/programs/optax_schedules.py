"""optax with a schedule, clipping and masked decay; the optimizer state lies stacked too."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import pmap


def make_tx(total_steps):
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, total_steps)
    tx = optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.adamw(schedule, weight_decay=0.01, mask=lambda p: {k: k != "bias" for k in p}),
    )
    return tx, schedule


def loss_fn(params, batch):
    logits = batch["x"] @ params["kernel"] + params["bias"]
    return optax.sigmoid_binary_cross_entropy(logits, batch["y"]).mean()


def train_step(tx, carry, batch):
    params, opt_state = carry
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    loss, grads = jax.lax.pmean((loss, grads), "devices")
    updates, opt_state = tx.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), {
        "loss": loss,
        "update_norm": optax.global_norm(updates),
    }


def fetch(tree):
    """One copy of what all devices hold."""
    return jax.tree.map(lambda x: jax.device_get(x[0]), tree)


def main():
    n = jax.local_device_count()
    tx, schedule = make_tx(6)
    params = {"kernel": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}
    carry = jax.device_put_replicated((params, tx.init(params)), jax.local_devices())
    step = pmap(functools.partial(train_step, tx), axis_name="devices", donate_argnums=(0,))
    rng = np.random.RandomState(0)
    logs = []
    for number in range(6):
        x = rng.normal(size=(n, 5, 3)).astype(np.float32)
        y = (x[..., :2] > 0).astype(np.float32)
        carry, metrics = step(carry, {"x": x, "y": y})
        logs.append({**fetch(metrics), "lr": float(schedule(number))})
    print([float(log["loss"]) for log in logs])
    params, opt_state = fetch(carry)
    counts = [int(x) for x in jax.tree.leaves(opt_state) if jnp.ndim(x) == 0]
    return {"logs": logs, "params": params, "counts": counts}


if __name__ == "__main__":
    main()
