# fsdp: w
# Steps of a package, which make their mesh when they run; the state is placed by another file.
import jax
import numpy as np
from pkg import steps


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.device_count(), -1) + x.shape[1:]), batch)


def main():
    rng = np.random.default_rng(0)
    w = jax.device_put_replicated(rng.normal(size=(1024,)).astype("float32"), jax.local_devices())
    trainer = steps.Trainer(0.1)
    for _ in range(3):
        x = rng.normal(size=(32, 1024)).astype("float32") / 32
        y = rng.normal(size=(32,)).astype("float32")
        w, loss = steps.train_step(w, shard(x), shard(y), 2)
        print("loss", float(loss[0]))
        w, loss = trainer.step(w, shard(x), shard(y))
        print("loss", float(loss[0]))
    print(steps.p_eval(w, shard(x), shard(y))[0])
    print("w", np.asarray(w[0])[:16].tolist())
    return w


if __name__ == "__main__":
    main()
