"""What a checkpoint is, by its content."""

from __future__ import annotations

import os

from pmapx._src.checkpoint.base import Checkpoint, CheckpointError
from pmapx._src.checkpoint.flax_msgpack import FlaxMsgpack, is_msgpack
from pmapx._src.checkpoint.npz_file import NpzFile, is_npz
from pmapx._src.checkpoint.orbax_folder import OrbaxFolder, is_orbax
from pmapx._src.checkpoint.pickle_file import PickleFile, is_pickle

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstandard"}
_KNOWN = "a pickle, a Flax msgpack file, an .npz file or an Orbax checkpoint"


def opened(path: str, *, trust_pickle: bool) -> Checkpoint:
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
