"""Python's garbage collector, paused where there is nothing to collect."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Trees and modules are all kept, so that collecting garbage finds none and takes long."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # Straight to the oldest generation, else the next young collection visits every tree.
            gc.freeze()
            gc.unfreeze()
            gc.enable()
