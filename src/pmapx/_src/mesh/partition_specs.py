"""The mesh axes that partition specs name."""

from typing import Any

from jax.sharding import PartitionSpec


def entry_axes(entry: Any) -> tuple[Any, ...]:
    """Returns the mesh axes that shard one dimension; none if it is unconstrained."""
    if isinstance(entry, tuple):
        return entry
    return (entry,) if isinstance(entry, str) else ()


def spec_axes(spec: PartitionSpec) -> tuple[Any, ...]:
    """Returns the mesh axes that shard any dimension.

    >>> spec_axes(PartitionSpec(("a", "b"), None, "c"))
    ('a', 'b', 'c')
    """
    return tuple(axis for entry in spec for axis in entry_axes(entry))
