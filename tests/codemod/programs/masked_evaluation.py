"""Evaluation of a set whose size no batch divides: padded, masked, summed over devices."""

import jax
import jax.numpy as jnp
import numpy as np

BATCH = 32


def pad_to(x, size):
    return np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])


def padded_batches(images, labels, batch_size):
    """Yields batches of one size; mask is 0 where a row is only filling."""
    n_dev = jax.local_device_count()
    for start in range(0, len(labels), batch_size):
        stop = min(start + batch_size, len(labels))
        batch = {
            "image": pad_to(images[start:stop], batch_size),
            "label": pad_to(labels[start:stop], batch_size),
            "mask": pad_to(np.ones(stop - start, np.float32), batch_size),
        }
        yield jax.tree.map(lambda x: x.reshape((n_dev, -1) + x.shape[1:]), batch)


def evaluate_batch(params, batch):
    logits = jnp.einsum("bhw,hwc->bc", batch["image"], params["kernel"]) + params["bias"]
    losses = -jnp.take_along_axis(
        jax.nn.log_softmax(logits), batch["label"][:, None], axis=-1
    ).squeeze(-1)
    top1 = jnp.argmax(logits, axis=-1) == batch["label"]
    summed = {
        "loss": jnp.sum(losses * batch["mask"]),
        "correct": jnp.sum(top1 * batch["mask"]),
        "count": jnp.sum(batch["mask"]),
    }
    summed = jax.lax.psum(summed, axis_name="batch")
    everyone = jax.lax.all_gather({"logits": logits, "mask": batch["mask"]}, axis_name="batch")
    return summed, everyone


def main():
    rng = np.random.RandomState(0)
    images = rng.normal(size=(75, 4, 4)).astype(np.float32)
    labels = rng.randint(0, 5, size=75).astype(np.int32)
    params = {
        "kernel": rng.normal(size=(4, 4, 5)).astype(np.float32),
        "bias": np.linspace(-1, 1, 5, dtype=np.float32),
    }
    eval_fn = jax.pmap(evaluate_batch, axis_name="batch")
    params_repl = jax.device_put_replicated(params, jax.local_devices())

    totals = {"loss": 0.0, "correct": 0.0, "count": 0.0}
    predictions = []
    for batch in padded_batches(images, labels, BATCH):
        summed, everyone = eval_fn(params_repl, batch)
        for key in totals:
            totals[key] += float(summed[key][0])
        # all_gather gives every device all rows: the first device has enough.
        logits = np.asarray(everyone["logits"][0]).reshape(-1, 5)
        mask = np.asarray(everyone["mask"][0]).reshape(-1).astype(bool)
        predictions.append(logits[mask].argmax(-1))

    predictions = np.concatenate(predictions)
    assert len(predictions) == len(labels) == totals["count"]
    metrics = {
        "loss": totals["loss"] / totals["count"],
        "accuracy": totals["correct"] / totals["count"],
    }
    assert np.isclose(metrics["accuracy"], np.mean(predictions == labels))
    print(metrics)
    return {"metrics": metrics, "predictions": predictions}


if __name__ == "__main__":
    main()
