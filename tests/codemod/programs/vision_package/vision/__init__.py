"""A small vision package; `parallel` is what the others map with."""

from .parallel import AXIS, parallelize

__all__ = ["AXIS", "parallelize"]
