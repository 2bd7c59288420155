"""Evaluators kept by name, each with maps of its own; parameters saved in a flat file of arrays."""

import functools
import os
import tempfile

import jax
import jax.numpy as jnp
import numpy as np


class Pipeline:
    """Stands for a dataset: batched by examples of a device, then by devices."""

    def __init__(self, arrays):
        self.arrays = arrays

    def batch(self, size):
        count = len(next(iter(self.arrays.values()))) // size
        return Pipeline(
            {
                k: v[: count * size].reshape(count, size, *v.shape[1:])
                for k, v in self.arrays.items()
            }
        )

    def __iter__(self):
        for i in range(len(next(iter(self.arrays.values())))):
            yield {name: value[i] for name, value in self.arrays.items()}


def make_pipeline(seed, examples, batch_size):
    rng = np.random.RandomState(seed)
    labels = rng.randint(0, 3, size=examples)
    images = (rng.normal(size=(examples, 5)) + labels[:, None]).astype(np.float32)
    arrays = {"image": images, "labels": labels, "mask": np.ones(examples, np.float32)}
    n = jax.local_device_count()
    return Pipeline(arrays).batch(batch_size // n).batch(n)


def predict(params, image):
    return jax.nn.log_softmax(image @ params["head"]["kernel"] + params["head"]["bias"])


class ClassificationEvaluator:
    def __init__(self, predict_fn, data):
        @functools.partial(jax.pmap, axis_name="batch")
        def count(params, images, labels, mask):
            log_probs = predict_fn(params, images)
            picked = jnp.take_along_axis(log_probs, labels[:, None], axis=1)[:, 0]
            hits = (jnp.argmax(log_probs, -1) == labels) * mask
            sums = (hits.sum(), -(picked * mask).sum(), mask.sum())
            return jax.lax.psum(sums, axis_name="batch")

        self.count, self.data = count, data

    def run(self, params):
        correct = loss = seen = 0
        for batch in self.data:
            out = self.count(params, batch["image"], batch["labels"], batch["mask"])
            batch_correct, batch_loss, batch_n = (x[0] for x in out)
            correct += float(batch_correct)
            loss += float(batch_loss)
            seen += float(batch_n)
        yield "acc", correct / seen
        yield "loss", loss / seen


class FeatureEvaluator:
    """Collects the predictions of all examples on the host."""

    def __init__(self, predict_fn, data):
        self.representations = jax.pmap(predict_fn)
        self.data = data

    def run(self, params):
        found = [self.representations(params, batch["image"]) for batch in self.data]
        found = np.concatenate([np.asarray(x).reshape(-1, x.shape[-1]) for x in found])
        yield "spread", float(found.std())
        yield "first", found[0].tolist()


def save(params, path):
    names = {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        names["/".join(key.key for key in keys)] = np.asarray(leaf)
    np.savez(path, **names)


def load(path):
    params = {}
    with np.load(path) as names:
        for name, value in names.items():
            outer, inner = name.split("/")
            params.setdefault(outer, {})[inner] = value
    return params


@functools.partial(jax.pmap, axis_name="batch", donate_argnums=(0,))
def update(params, batch):
    def loss_fn(params):
        log_probs = predict(params, batch["image"])
        return -jnp.mean(jnp.take_along_axis(log_probs, batch["labels"][:, None], axis=1))

    loss, grads = jax.value_and_grad(loss_fn)(params)
    loss, grads = jax.lax.pmean((loss, grads), axis_name="batch")
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads), loss


def main():
    head = {"kernel": np.zeros((5, 3), np.float32), "bias": np.zeros(3, np.float32)}
    on_devices = jax.device_put_replicated({"head": head}, jax.local_devices())
    evaluators = {
        "val": ClassificationEvaluator(predict, make_pipeline(1, 64, batch_size=32)),
        "features": FeatureEvaluator(predict, make_pipeline(2, 32, batch_size=16)),
    }
    measured, losses = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for batch in make_pipeline(0, 256, batch_size=64):
            on_devices, loss = update(on_devices, batch)
            losses.append(float(loss[0]))
        save(jax.tree.map(lambda x: x[0], on_devices), os.path.join(folder, "ck.npz"))
        on_devices = jax.device_put_replicated(
            load(os.path.join(folder, "ck.npz")), jax.local_devices()
        )
    for name, evaluator in evaluators.items():
        measured |= {f"{name}/{key}": value for key, value in evaluator.run(on_devices)}
    print(losses, measured)
    return {"losses": losses, "measured": measured}


if __name__ == "__main__":
    main()
