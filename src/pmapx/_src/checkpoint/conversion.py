"""Removes the device axis from a checkpoint, or adds it."""

import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np

from pmapx._src.checkpoint import device_axis, new_path, object_tree
from pmapx._src.checkpoint.base import (
    Checkpoint,
    CheckpointError,
    LeavesDifferError,
    is_array,
    loaded,
)
from pmapx._src.checkpoint.flax_msgpack import FlaxMsgpack, is_msgpack
from pmapx._src.checkpoint.npz_file import NpzFile, is_npz
from pmapx._src.checkpoint.orbax_folder import OrbaxFolder, is_orbax
from pmapx._src.checkpoint.pickle_file import PickleFile, is_pickle
from pmapx._src.trees.names import Abstract

Leaves = Sequence[tuple[str, Any]]
Progress = Callable[[int, int], None]
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstandard"}
_KNOWN = "a pickle, a Flax msgpack file, an .npz file or an Orbax checkpoint"


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What was done, or would be."""

    kind: str
    n: int
    changed: tuple[str, ...]
    kept: tuple[str, ...]
    left: tuple[tuple[str, str], ...]  # Leaves without a device axis to remove or add, described.
    bytes_before: int  # Of the arrays.
    bytes_after: int


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

    ``new`` has the format of ``old``. Arrays with a leading size of ``n`` are unstacked; without
    ``n``, all arrays but scalars and those in ``keep`` must share one. ``keep`` and ``first`` are
    patterns of paths, such as ``"*.count"``: to keep stacked, and to take device 0's copy of,
    whatever the others are. ``progress`` is called with the bytes that are done and their total.

    Raises ``LeavesDifferError`` if copies are not equal, or an object hides arrays, and
    ``CheckpointError`` for anything else that is wrong with the files or the arguments.


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
        checkpoint = _opened(old, trust_pickle=trust_pickle)
        leaves = list(checkpoint.leaves())
        paths = [path for path, _ in leaves]
        kept = object_tree.named(keep, paths, "--keep")
        firsts = object_tree.named(first, paths, "--first")
        n, stacked = _stacked(leaves, n, kept, firsts)
        step = _counter(leaves, 1 if dry_run else 2, progress)
        _compare(leaves, stacked - firsts, step)
        if not dry_run:
            with new_path.written(old, new) as path:
                _save(checkpoint, path, stacked, device_axis.first_copy, step)
    return _report(checkpoint, n, leaves, stacked, kept, 1 / n)


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
        checkpoint = _opened(old, trust_pickle=trust_pickle)
        leaves = list(checkpoint.leaves())
        kept = object_tree.named(keep, [path for path, _ in leaves], "--keep")
        _refuse_hidden_arrays(leaves, kept)
        changed = {path for path, leaf in leaves if is_array(leaf)} - kept
        if not changed:
            raise CheckpointError("there is no array to stack")
        if not dry_run:
            copies = functools.partial(device_axis.copies, n=n)
            with new_path.written(old, new) as path:
                _save(checkpoint, path, changed, copies, _counter(leaves, 1, progress))
    return _report(checkpoint, n, leaves, changed, kept, n)


def _stacked(
    leaves: Leaves, n: int | None, kept: set[str], firsts: set[str]
) -> tuple[int, set[str]]:
    """Returns the number of devices, and the paths of the arrays to unstack."""
    if kept & firsts:
        raise CheckpointError(f"--keep and --first both match {min(kept & firsts)}")
    _refuse_hidden_arrays(leaves, kept)
    shapes = {path: leaf.shape for path, leaf in leaves if is_array(leaf) and leaf.shape}
    if n is None:
        n = device_axis.common_size({p: shape for p, shape in shapes.items() if p not in kept})
    stacked = {path for path, shape in shapes.items() if shape[0] == n} - kept
    if not stacked:
        raise CheckpointError(f"no array has a leading axis of size {n}")
    if firsts - stacked:
        raise CheckpointError(f"--first matches {min(firsts - stacked)}, which has no device axis")
    return n, stacked


def _refuse_hidden_arrays(leaves: Leaves, kept: Collection[str]) -> None:
    """Refuses objects that hold arrays and cannot be walked, unless the user keeps them."""
    plain = (str, bytes, bool, int, float, complex, np.generic)
    hidden = [
        f"{path} ({type(leaf).__module__}.{type(leaf).__qualname__})"
        for path, leaf in leaves
        if path not in kept
        and not is_array(leaf)
        and not isinstance(leaf, plain)
        and object_tree.holds_arrays(leaf)
    ]
    if hidden:
        raise LeavesDifferError(
            f"{len(hidden)} of {len(leaves)} leaves hold arrays in a class that is not a pytree",
            hidden,
            "Register the class with jax.tree_util, or leave the object as it is with --keep PATH",
        )


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


def _save(
    checkpoint: Checkpoint,
    path: str,
    changed: Collection[str],
    change: Callable[[Any], Any],
    step: Callable[[Any], None],
) -> None:
    """Writes a checkpoint with ``change(array)`` in place of the ``changed`` leaves."""

    def written(place: str, leaf: Any) -> Any:
        step(leaf)
        return change(loaded(leaf)) if place in changed else leaf

    checkpoint.save(path, written)


def _counter(leaves: Leaves, passes: int, progress: Progress | None) -> Callable[[Any], None]:
    """Returns a function to call with each leaf in each pass; it reports to ``progress``."""
    total = passes * sum(leaf.nbytes for _, leaf in leaves if is_array(leaf))
    done = 0

    def step(leaf: Any) -> None:
        nonlocal done
        if progress is not None and is_array(leaf):
            done += leaf.nbytes
            progress(done, total)

    return step


def _report(
    checkpoint: Checkpoint,
    n: int,
    leaves: Leaves,
    changed: Collection[str],
    kept: Collection[str],
    scale: float,
) -> Conversion:
    """Summarizes a conversion that multiplies the size of changed arrays by ``scale``."""
    before = {path: leaf.nbytes for path, leaf in leaves if is_array(leaf)}
    after = [round(size * scale) if path in changed else size for path, size in before.items()]
    left = [
        (path, str(Abstract(leaf.shape, leaf.dtype, False)) if path in before
         else type(leaf).__name__)
        for path, leaf in leaves
        if path not in changed and path not in kept
        and not isinstance(leaf, str | bytes | None)  # These never have a device axis.
    ]  # fmt: skip
    return Conversion(
        checkpoint.kind,
        n,
        tuple(path for path, _ in leaves if path in changed),
        tuple(path for path, _ in leaves if path in kept),
        tuple(left),
        sum(before.values()),
        sum(after),
    )


def _opened(path: str, *, trust_pickle: bool) -> Checkpoint:
    if os.path.isdir(path):
        if is_orbax(path):
            return OrbaxFolder(path)
        raise CheckpointError(
            f"{path} is a folder without an Orbax checkpoint (no _METADATA below it); to convert a "
            "file in it, name the file"
        )
    with open(path, "rb") as file:
        head = file.read(2)
    if not head:
        raise CheckpointError(f"{path} is empty")
    if head in _COMPRESSED:
        raise CheckpointError(f"{path} is compressed with {_COMPRESSED[head]}: decompress it first")
    if is_npz(path):
        return NpzFile(path)
    if is_pickle(path):
        if not trust_pickle:
            raise CheckpointError(
                f"{path} is a pickle, which can run arbitrary code when loaded: add --trust-pickle "
                "if you trust its source"
            )
        return PickleFile(path)
    if is_msgpack(path):
        return FlaxMsgpack(path)
    raise CheckpointError(f"unknown format: {path} is not {_KNOWN}")
