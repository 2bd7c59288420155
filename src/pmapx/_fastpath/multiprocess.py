"""The dispatch of programs that span processes, on host-local arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx._fastpath import private
from pmapx._fastpath.arrays import array_type
from pmapx._fastpath.dispatch import Dispatcher, LocalProgram, fastpath_data, make_dispatch
from pmapx._fastpath.private import PUBLIC_ONLY
from pmapx.hosts import local_sharding
from pmapx.placement import neutral_context

# Not in JAX 0.8, where results that cannot be made by a LocalProgram are taken apart in public.
CAN_REWRAP = hasattr(array_type(), "_rewrap_with_aval_and_sharding") if not PUBLIC_ONLY else False

_USABLE: dict[tuple[jax.Device, ...], bool] = {}


def can_run_locally(devices: tuple[jax.Device, ...]) -> bool:
    """Says whether what a ``LocalProgram`` gives can be used like any other array here.

    The runtime takes its results for arrays of one shard's shape. Releases that read arrays shard
    by shard do not mind; from 0.11 on some reads ask the runtime for the shape. One look at a
    small result tells, without the other processes.
    """
    if PUBLIC_ONLY or jax.config.jax_debug_nans or jax.config.jax_debug_infs:  # type: ignore[attr-defined]
        return False
    if devices not in _USABLE:
        with neutral_context(), jax.transfer_guard("allow"):
            try:
                _USABLE[devices] = _is_usable(devices)
            except Exception:
                # Whatever this backend cannot do, it can do without.
                _USABLE[devices] = False
    return _USABLE[devices]


def _is_usable(devices: tuple[jax.Device, ...]) -> bool:
    mesh = Mesh(np.array(devices), ("i",))
    rows, whole = NamedSharding(mesh, PartitionSpec("i")), NamedSharding(mesh, PartitionSpec())
    probe = jax.shard_map(
        lambda x: x + 1,
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    shard = jax.ShapeDtypeStruct((1, 3), np.float32, sharding=whole)
    program = LocalProgram(jax.jit(probe).lower(shard).compile(), devices, (rows,))
    numbers = np.arange(3.0 * len(devices), dtype=np.float32).reshape(-1, 3)
    x = jax.device_put(numbers, rows)
    dispatch = Dispatcher("probe", (), lambda x: (x, program), lambda x, s: None, lambda x: x).call
    dispatch(x)
    y = dispatch(x)
    seen = [
        np.asarray(y),
        np.asarray(jax.device_put(dispatch(x), whole)),
        np.asarray(jax.device_put(dispatch(x), devices[-1])),
        np.asarray(jax.jit(lambda x: x * 1)(y)),
        np.concatenate([shard.data for shard in y.addressable_shards]),
        np.asarray(dispatch(y)) - 1,
    ]
    return all(np.array_equal(value, numbers + 1) for value in seen)


@dataclasses.dataclass(frozen=True, eq=False)
class _Recipe:
    """How the results of one program are seen as host-local arrays."""

    tree: Any
    avals: Sequence[Any]
    shardings: Sequence[NamedSharding]


class _Labelled:
    """The results of a program, with the recipe for them; None when they are as they should be."""

    __slots__ = ("leaves", "recipe")

    def __init__(self, recipe: Any, leaves: Any) -> None:
        self.recipe = recipe
        self.leaves = leaves


jax.tree_util.register_pytree_node(
    _Labelled, lambda labelled: (labelled.leaves, labelled.recipe), _Labelled
)


class RowsDispatcher:
    """Calls a program that spans processes on host-local arrays; its results are host-local too.

    The executable takes the shards of host-local arrays as they are. Its results are global
    arrays; each is seen as an array of this process's rows by a call into C++.

    ``on_unseen(*args, **kwargs)`` runs the call and returns its host-local result, the program's
    own result, and the program; None for the last two when it should be asked again.
    """

    def __init__(
        self,
        name: str,
        static_argnums: Sequence[int],
        on_unseen: Callable[..., tuple[Any, Any, jax.stages.Compiled | None]],
        on_misplaced: Callable[[jax.Array, jax.sharding.Sharding], jax.Array | None],
        run_eagerly: Callable[..., Any],
    ) -> None:
        """Makes the dispatch; needs ``CAN_REWRAP``."""
        # By identity, as hashing a sharding for each leaf of each call is not free.
        local_shardings: dict[int, tuple[Any, NamedSharding]] = {}

        def local_of(sharding: Any) -> NamedSharding:
            known = local_shardings.get(id(sharding))
            if known is None:
                known = local_shardings[id(sharding)] = sharding, local_sharding(sharding)
            return known[1]

        def on_cache_miss(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
            result, of_program, compiled = on_unseen(*args, **kwargs)
            leaves, tree = jax.tree.flatten(result)
            data = None if compiled is None else fastpath_data(compiled, of_program)
            if data is None or not all(isinstance(leaf, array_type()) for leaf in leaves):
                return _Labelled(None, (result,)), None, False
            recipe = _Recipe(
                tree, [leaf.aval for leaf in leaves], [leaf.sharding for leaf in leaves]
            )
            labelled = jax.tree.structure(_Labelled(recipe, leaves))
            return _Labelled(None, (result,)), data._replace(out_pytree_def=labelled), False

        def shard_argument(x: Any, sharding: Any, layout: Any) -> Any:
            local = local_of(sharding)
            if isinstance(x, array_type()):
                if x.sharding is local:
                    return x
                if not x.is_fully_addressable:
                    return private.pxla.cc_shard_arg(x, sharding, layout)
                moved = on_misplaced(x, local)
                if moved is not None:
                    return moved
            return private.pxla.cc_shard_arg(x, local, layout)

        self._dispatch: Any = make_dispatch(
            name, static_argnums, on_cache_miss, shard_argument, run_eagerly
        )
        self._rewrap = array_type()._rewrap_with_aval_and_sharding

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a call."""
        labelled = self._dispatch(*args, **kwargs)
        recipe = labelled.recipe
        if recipe is None:
            return labelled.leaves[0]
        rows = map(self._rewrap, labelled.leaves, recipe.avals, recipe.shardings)
        return recipe.tree.unflatten(rows)

    def clear(self) -> None:
        """Forgets every signature."""
        self._dispatch._clear_cache()
