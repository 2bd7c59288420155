"""Programs whose batches are split over the devices, each in another way; all set RESULT."""

HEAD = """
import jax, jax.numpy as jnp, numpy as np

def train(state, batch):
    x, y = batch["x"], batch["y"]
    error = x @ state - y
    grads = jax.lax.pmean(x.T @ error / len(x), "i")
    return state - 0.1 * grads, jax.lax.psum(jnp.sum(error**2), "i")

def loader(steps=3):
    rng = np.random.RandomState(0)
    for _ in range(steps):
        x = rng.normal(size=(24, 5)).astype(np.float32)
        yield {"x": x, "y": x.sum(-1)}

STATE = jnp.zeros(5)
step = jax.pmap(train, axis_name="i", in_axes=(None, 0))
RESULT = []

def note(state, loss):
    RESULT.append((state[0], loss[0]))
    return state[0]
"""

ARGUMENTS = {
    "shard": """
from flax.training.common_utils import shard
state = STATE
for batch in loader():
    state = note(*step(state, shard(batch)))
""",
    "a tree_map of a lambda": """
n = jax.local_device_count()
state = STATE
for batch in loader():
    # To (local devices, examples, ...).
    batch = jax.tree.map(lambda x: x.reshape((n, -1) + x.shape[1:]), batch)
    state = note(*step(state, batch))
""",
    "a wrapper of the project's own": """
def prepare(xs):
    n = jax.local_device_count()
    def _split(x):
        return x.reshape((n, x.shape[0] // n) + x.shape[1:])
    return jax.tree.map(_split, xs)

state = STATE
for batch in loader():
    state = note(*step(state, prepare(batch)))
""",
    "a lambda with a name": """
def main():
    n = len(jax.devices())
    split = lambda x: jnp.reshape(x, (n, -1, *x.shape[1:]))
    state = STATE
    for batch in loader():
        batch = jax.tree_util.tree_map(split, batch)
        state = note(*step(state, batch))
main()
""",
    "a generator": """
def batches(n):
    for batch in loader():
        yield {name: np.stack(np.split(value, n)) for name, value in batch.items()}

def main():
    state = STATE
    for number, batch in enumerate(batches(jax.device_count())):
        assert batch["x"].dtype == np.float32
        state = note(*step(state, batch))
main()
""",
    "a map that is prefetched": """
from flax import jax_utils
from flax.training import common_utils

def main():
    batches = map(common_utils.shard, loader())
    state = STATE
    for batch in jax_utils.prefetch_to_device(batches, 2):
        state = note(*step(state, batch))
main()
""",
    "an iterator of an object": """
from flax.training.common_utils import shard

class Trainer:
    def __init__(self):
        self.batches = map(shard, loader())
        self.state = STATE

    def run(self):
        for _ in range(3):
            batch = next(self.batches)
            self.state = note(*step(self.state, batch))

Trainer().run()
""",
    "a method that splits": """
class Trainer:
    state = STATE

    def run(self):
        for batch in loader():
            self.state = note(*step(self.state, self.prepare(batch)))

    def prepare(self, xs):
        n = jax.local_device_count()
        return jax.tree.map(lambda x: x.reshape((n, -1) + x.shape[1:]), xs)


Trainer().run()
""",
    "a list that is mapped over": """
from flax.training.common_utils import shard

def main():
    every = list(loader())
    batches = map(shard, every)
    state = STATE
    for _ in range(3):
        state = note(*step(state, next(batches)))
main()
""",
    "parts that are split one by one": """
def main():
    n = jax.local_device_count()
    state = STATE
    for batch in loader():
        x, y = (jnp.array(jnp.split(part, n)) for part in (batch["x"], batch["y"]))
        state = note(*step(state, {"x": x, "y": y}))
main()
""",
    "parts in a list": """
def main():
    n = jax.local_device_count()
    state = STATE
    for batch in loader():
        # Split each part over the devices.
        parts = [part.reshape((n, -1) + part.shape[1:]) for part in (batch["x"], batch["y"])]
        x, y = parts
        state = note(*step(state, {"x": x, "y": y}))
main()
""",
    "names that are split again": """
def main():
    n = jax.local_device_count()
    state = STATE
    for batch in loader():
        x, y = batch["x"], batch["y"]
        x, y = [part.reshape((n, -1) + part.shape[1:]) for part in (x, y)]
        state = note(*step(state, {"x": x, "y": y}))
main()
""",
    "a list of batches": """
def main():
    n = jax.local_device_count()
    every = [jax.tree.map(lambda x: x.reshape(n, -1, *x.shape[1:]), b) for b in loader()]
    state = STATE
    for i in range(6):
        batch = every[i % 3]
        state = note(*step(state, batch))
main()
""",
    "a pipeline that batches by devices": """
import pipelines

def create(batch_dims):
    data = pipelines.Examples(loader())
    print(np.prod(batch_dims))
    for size in reversed(batch_dims):
        data = data.batch(size, drop_remainder=True)
    return data.prefetch(2)

def main():
    state = STATE
    for batch in create([jax.local_device_count(), 3]).as_numpy_iterator():
        batch = jax.tree.map(lambda x: np.asarray(x), batch)
        state = note(*step(state, batch))
main()
""",
    "arithmetic example by example": """
def main():
    n = jax.local_device_count()
    state = STATE
    for batch in loader():
        x = np.reshape(batch["x"], (n, -1, 5)) / 2.0
        y = batch["y"].reshape((n, -1)).astype(np.float32) * 3
        state = note(*step(state, {"x": x, "y": y}))
main()
""",
}

BOTH = {
    "a result that is concatenated": """
@jax.pmap
def double(x):
    return 2 * x

def main(x):
    n = jax.local_device_count()
    out = double(x.reshape((n, -1) + x.shape[1:]))
    RESULT.append(np.concatenate(out))
main(np.arange(48.0).reshape(24, 2))
""",
    "a result that is brought to the host": """
@jax.pmap
def double(x):
    return 2 * x

def tohost(x):
    n_device, n_batch, *remaining_dims = x.shape
    return np.array(x).reshape((n_device * n_batch,) + tuple(remaining_dims))

def main(x):
    n = jax.local_device_count()
    RESULT.append(tohost(double(x.reshape((n, -1) + x.shape[1:]))))
main(np.arange(48.0).reshape(24, 2))
""",
    "walkers that a map moves": """
def walk(width, walkers):
    energy = jax.lax.pmean(jnp.mean(walkers**2), "i")
    return walkers + width * energy, energy

walk = jax.pmap(walk, axis_name="i", in_axes=(None, 0))

def main(walkers):
    n = jax.local_device_count()
    walkers = walkers.reshape((n, -1, 2))
    for _ in range(4):
        walkers, energy = walk(0.1, walkers)
    RESULT.append((energy[0], np.asarray(walkers).reshape(-1, walkers.shape[2])))
main(np.linspace(0, 1, 64, dtype=np.float32))
""",
}

# What stays, with a part of the reason.
STAYS = {
    "a shard is taken": (
        "x = shard(batch)\nprint(x['x'][0])\nstep(STATE, x)",
        "a shard of it is taken",
    ),
    "the number of shards is asked for": (
        "x = shard(batch)\nprint(x['x'].shape[0])\nstep(STATE, x)",
        "its shape is read",
    ),
    "the length is asked for": ("x = shard(batch)\nprint(len(x['x']))\nstep(STATE, x)", "len("),
    "it goes to an unknown function": (
        "import other\nx = shard(batch)\nother.look(x)\nstep(STATE, x)",
        "other.look(",
    ),
    "it is added to an array": (
        "x = batch['x'].reshape((n, -1, 5))\none(x)\nprint(x + np.ones((n, 1, 1)))",
        "it is used in a calculation",
    ),
    "one number a device": ("one(batch['x'].reshape((n,)))", ""),
    "another number than that of the devices": ("one(batch['x'].reshape((4, -1)))", ""),
    "a number that is of devices on one path only": (
        "m = n if batch else 4\none(batch['x'].reshape((m, -1)))",
        "",
    ),
    "a parameter that is not always the number of devices": (
        "def split(x, m):\n    return x.reshape((m, -1))\n"
        "one(split(batch['x'], n))\none(split(batch['y'], 4))",
        "",
    ),
    "split on one path only": (
        "x = batch\nif n > 1:\n    x = shard(x)\nstep(STATE, x)",
        "not known to be split",
    ),
    "another call passes something else": (
        "step(STATE, shard(batch))\nstep(STATE, np.load('batch'))",
        "not known to be split",
    ),
    "the axis is not mapped": (
        "f = jax.pmap(train, axis_name='i', in_axes=(0, None))\nf(STATE, shard(batch))",
        "not mapped",
    ),
    "it is donated, and used again": (
        "f = jax.pmap(lambda x: x + 1, donate_argnums=0)\nx = jnp.ones((24, 2))\n"
        "f(x.reshape((n, -1, 2)))\nprint(x)",
        "it is donated",
    ),
    "a function that splits inside a map as well": (
        "def split(x):\n    return x.reshape((n, -1))\n"
        "def inside(x):\n    return split(x)\n"
        "f = jax.pmap(lambda x: inside(x) + 1)\nf(split(batch['x']))",
        "",
    ),
    "a result that may be one number a device": (
        "f = jax.pmap(lambda x: {'x': x, 'loss': x.sum()})\n"
        "out = jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:]), f(batch['x'][None]))",
        "it may be one number per device",
    ),
    "a function that is passed on": (
        "import other\ndef split(x):\n    return x.reshape((n, -1))\n"
        "one(split(batch['x']))\nother.register(split)",
        "used in a way that cannot be followed",
    ),
}
