"""Trains with a package whose modules share one wrapper of pmap."""

import numpy as np
from vision import evaluation, model, training
from vision.parallel import first, replicate


def main():
    rng = np.random.RandomState(0)
    images = rng.normal(size=(3, 32, 6, 6)).astype(np.float32)
    labels = rng.randint(0, 3, size=(3, 32))
    state = replicate(training.create_state(seed=0))
    losses = []
    for batch_images, batch_labels in zip(images, labels, strict=True):
        state, loss = training.train_step(state, *training.shard(batch_images, batch_labels))
        losses.append(float(first(loss)))
    accuracy, confusion = evaluation.evaluate(state["params"], images[0], labels[0])
    print("losses", losses, "accuracy", accuracy)
    return {
        "losses": losses,
        "accuracy": accuracy,
        "confusion": confusion,
        "params": first(state["params"]),
        "sizes": model.sizes(first(state["params"])),
    }


if __name__ == "__main__":
    main()
