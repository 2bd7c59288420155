"""Adds a device axis to a checkpoint: n copies of every array."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax

from pmapx._src.checkpoint import conversion, device_axis, formats, leaf_paths, new_path
from pmapx._src.checkpoint.base import CheckpointError, is_array
from pmapx._src.checkpoint.conversion import Conversion, Progress


def stack(
    old: str,
    new: str,
    *,
    n: int,
    keep: Sequence[str] = (),
    trust_pickle: bool = False,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Conversion:
    """Writes ``old`` to ``new`` with a leading axis of ``n`` copies on every array.

    Python's and numpy's scalars stay as they are, and so does what ``keep`` names; the other
    arguments are those of ``unstack``.

    >>> import os, tempfile
    >>> import numpy as np
    >>> folder = tempfile.mkdtemp()
    >>> old, new = (os.path.join(folder, name) for name in ("old.npz", "new.npz"))
    >>> np.savez(old, kernel=np.ones((3, 2)), step=7)
    >>> stack(old, new, n=8, keep=["step"]).kept
    ('step',)
    >>> np.load(new)["kernel"].shape
    (8, 3, 2)
    """
    new_path.check(old, new, force=force)
    with jax.enable_x64(True):
        checkpoint = formats.opened(old, trust_pickle=trust_pickle)
        leaves = list(checkpoint.leaves())
        kept = leaf_paths.named(keep, [path for path, _ in leaves], "--keep")
        conversion.refuse_hidden_arrays(leaves, kept)
        changed = {path for path, leaf in leaves if is_array(leaf)} - kept
        if not changed:
            raise CheckpointError("there is no array to stack")
        if not dry_run:
            step = conversion.counter(leaves, 1, progress)
            copies = functools.partial(device_axis.copies, n=n)
            conversion.save(checkpoint, old, new, changed, copies, step)
    return conversion.report(checkpoint, n, leaves, changed, kept, n)
