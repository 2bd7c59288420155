"""Removes the device axis from a checkpoint, if all copies along it are equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from pmapx._src.checkpoint import conversion, device_axis, formats, leaf_paths, new_path
from pmapx._src.checkpoint.base import CheckpointError, LeavesDifferError, is_array, loaded
from pmapx._src.checkpoint.conversion import Conversion, Leaves, Progress


def unstack(
    old: str,
    new: str,
    *,
    n: int | None = None,
    keep: Sequence[str] = (),
    first: Sequence[str] = (),
    trust_pickle: bool = False,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Conversion:
    """Writes ``old`` to ``new`` without the leading device axis of its replicated leaves.

    Args:
      old: a pickle, a Flax msgpack file, an ``.npz`` file or an Orbax checkpoint folder.
      new: where to write; in the format of ``old``, complete or not at all.
      n: the number of devices: arrays with this leading size are unstacked. Without it, all arrays
        but scalars and those in ``keep`` must have one leading size, which is taken.
      keep: patterns of paths to keep stacked, such as ``"rng"`` or ``"*.count"``.
      first: patterns of paths of which device 0's copy is taken, whatever the others are.
      trust_pickle: load a pickle, which runs code that is in it.
      force: overwrite ``new``.
      dry_run: compare the copies, and write nothing.
      progress: called with the bytes that are done and their total.

    Raises:
      LeavesDifferError: copies are not equal, or an object hides arrays; nothing is written.
      CheckpointError: anything else that is wrong with the files or the arguments.

    >>> import os, tempfile
    >>> import numpy as np
    >>> folder = tempfile.mkdtemp()
    >>> old, new = (os.path.join(folder, name) for name in ("old.npz", "new.npz"))
    >>> np.savez(old, kernel=np.ones((8, 3, 2)), step=7)
    >>> done = unstack(old, new)
    >>> done.n, done.changed, done.left
    (8, ('kernel',), (('step', 'int64[]'),))
    >>> np.load(new)["kernel"].shape
    (3, 2)
    """
    new_path.check(old, new, force=force)
    # Otherwise JAX would load 64-bit arrays as 32-bit ones.
    with jax.enable_x64(True):
        checkpoint = formats.opened(old, trust_pickle=trust_pickle)
        leaves = list(checkpoint.leaves())
        paths = [path for path, _ in leaves]
        kept = leaf_paths.named(keep, paths, "--keep")
        firsts = leaf_paths.named(first, paths, "--first")
        n, stacked = _stacked(leaves, n, kept, firsts)
        step = conversion.counter(leaves, 1 if dry_run else 2, progress)
        _compare(leaves, stacked - firsts, step)
        if not dry_run:
            conversion.save(checkpoint, old, new, stacked, device_axis.first_copy, step)
    return conversion.report(checkpoint, n, leaves, stacked, kept, 1 / n)


def _stacked(
    leaves: Leaves, n: int | None, kept: set[str], firsts: set[str]
) -> tuple[int, set[str]]:
    """Returns the number of devices, and the paths of the arrays to unstack."""
    if kept & firsts:
        raise CheckpointError(f"--keep and --first both match {min(kept & firsts)}")
    conversion.refuse_hidden_arrays(leaves, kept)
    shapes = {path: leaf.shape for path, leaf in leaves if is_array(leaf) and leaf.shape}
    if n is None:
        n = device_axis.common_size({p: shape for p, shape in shapes.items() if p not in kept})
    stacked = {path for path, shape in shapes.items() if shape[0] == n} - kept
    if not stacked:
        raise CheckpointError(f"no array has a leading axis of size {n}")
    if firsts - stacked:
        raise CheckpointError(f"--first matches {min(firsts - stacked)}, which has no device axis")
    return n, stacked


def _compare(leaves: Leaves, compared: set[str], step: Callable[[Any], None]) -> None:
    differing = []
    for path, leaf in leaves:
        step(leaf)
        if path in compared:
            found = device_axis.difference(loaded(leaf))
            if found is not None:
                differing.append((path, found))
    if not differing:
        return
    path = differing[0][0]
    advice = f'Keep one stacked with --keep "{path}", or take device 0\'s with --first "{path}"'
    if len(differing) == len(compared):
        advice = f"All leaves differ: the checkpoint may not be stacked. {advice}"
    raise LeavesDifferError(
        f"{len(differing)} of {len(compared)} leaves are not equal on all devices",
        [f"{path}: {found}" for path, found in differing],
        advice,
    )
