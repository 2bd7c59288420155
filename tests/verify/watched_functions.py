"""JAX's functions as a watched program has them, in this process."""

import jax

import pmapx
from pmapx._src.verify.record.reader import Records
from pmapx._src.verify.record.recording import Recording
from pmapx._src.verify.record.writer import Recorder
from pmapx._src.watch.transforms import watching


class Watched:
    """JAX's functions as a watched program has them, and what is recorded of it."""

    def __init__(self, folder, calls=50):
        self._folder = folder
        self.listener = Recording(Recorder(folder), __file__.rpartition("/")[0], calls)
        made = {"pmap": pmapx.pmap, "shard_map": jax.shard_map, "jit": jax.jit, "grad": jax.grad}
        for name, make in made.items():
            setattr(self, name, watching(self.listener, name, make))

    @property
    def records(self):
        (path,) = self._folder.glob("*.calls")
        return Records(path)

    def called(self):
        """Names of the functions with calls, and how many."""
        return [(f.kind, f.name, len(f.calls)) for f in self.records.functions.values() if f.calls]

    def inputs(self, number=0):
        records = self.records
        (function,) = [f for f in records.functions.values() if f.calls]
        return records.call(function, number).inputs


def double(x):
    return 2 * x
