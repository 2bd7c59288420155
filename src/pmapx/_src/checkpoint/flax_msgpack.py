"""Flax's msgpack files, as ``flax.serialization.to_bytes`` makes them, without Flax."""

import itertools
import os
from collections.abc import Iterator
from typing import IO, Any

import ml_dtypes
import numpy as np

from pmapx._src.checkpoint import object_tree
from pmapx._src.checkpoint.base import Change, CheckpointError, is_array

# Flax's extension types.
_NDARRAY, _COMPLEX, _SCALAR = 1, 2, 3
# A msgpack object has at most 2**31 - 1 bytes: Flax splits arrays above this into a dictionary.
_CHUNK_BYTES = 2**30
_CHUNKED = "__msgpack_chunked_array__"


def is_msgpack(path: str) -> bool:
    """Returns whether a file begins as a msgpack map, list or extension type does."""
    with open(path, "rb") as file:
        first = file.read(1)
    return bool(first) and (0x80 <= first[0] <= 0x9F or first[0] in b"\xc7\xc8\xc9\xdc\xdd\xde\xdf")


class FlaxMsgpack:
    """The tree of a msgpack file; read at once, written leaf by leaf."""

    kind = "Flax msgpack"

    def __init__(self, path: str) -> None:
        try:
            import msgpack  # type: ignore[import-not-found, import-untyped]
        except ModuleNotFoundError as error:
            raise CheckpointError(f"{path} is msgpack: pip install msgpack to read it") from error
        self._msgpack = msgpack
        with open(path, "rb") as file:
            packed = file.read()
        try:
            tree = msgpack.unpackb(packed, ext_hook=self._decode, raw=False, strict_map_key=False)
        except Exception as error:  # msgpack's own, and those of what the bytes happen to mean.
            name = os.path.basename(path)
            raise CheckpointError(
                f"{name} is not Flax's msgpack, or is damaged: {error}"
            ) from error
        self._tree = _unchunked(tree)

    def leaves(self) -> Iterator[tuple[str, Any]]:
        return object_tree.leaves(self._tree)

    def save(self, path: str, change: Change) -> None:
        packer = self._msgpack.Packer(
            default=self._encode, strict_types=True, autoreset=True, use_bin_type=True
        )
        with open(path, "wb") as file:
            self._write(file, packer, self._tree, "", change)

    def _write(self, file: IO[bytes], packer: Any, tree: Any, path: str, change: Change) -> None:
        if type(tree) is dict:
            file.write(packer.pack_map_header(len(tree)))
            for key, value in tree.items():
                file.write(packer.pack(key))
                self._write(file, packer, value, object_tree.item(path, key), change)
        elif type(tree) is list:
            file.write(packer.pack_array_header(len(tree)))
            for index, value in enumerate(tree):
                self._write(file, packer, value, object_tree.item(path, index), change)
        else:
            file.write(packer.pack(_chunked(change(path or object_tree.ROOT, tree))))

    def _decode(self, code: int, data: bytes) -> Any:
        if code == _COMPLEX:
            return complex(*self._msgpack.unpackb(data))
        if code not in (_NDARRAY, _SCALAR):
            return self._msgpack.ExtType(code, data)
        shape, name, buffer = self._msgpack.unpackb(data, raw=True)
        dtype = np.dtype(getattr(ml_dtypes, name.decode(), name.decode()))
        array = np.frombuffer(buffer, dtype).reshape(shape)
        return array[()] if code == _SCALAR else array

    def _encode(self, leaf: Any) -> Any:
        if isinstance(leaf, complex) and not isinstance(leaf, np.generic):
            return self._msgpack.ExtType(
                _COMPLEX, self._msgpack.packb((leaf.real, leaf.imag), use_bin_type=True)
            )
        if not isinstance(leaf, np.ndarray | np.generic):
            raise TypeError(f"msgpack cannot represent {type(leaf).__name__}")
        stored = (leaf.shape, leaf.dtype.name, leaf.tobytes("C"))
        code = _SCALAR if isinstance(leaf, np.generic) else _NDARRAY
        return self._msgpack.ExtType(code, self._msgpack.packb(stored, use_bin_type=True))


def _unchunked(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_unchunked(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if _CHUNKED not in tree:
        return {key: _unchunked(value) for key, value in tree.items()}
    shape, chunks = (
        [tree[part][str(i)] for i in range(len(tree[part]))] for part in ("shape", "chunks")
    )
    return np.concatenate(chunks).reshape(shape)


def _chunked(leaf: Any) -> Any:
    if not is_array(leaf) or leaf.nbytes <= _CHUNK_BYTES:
        return leaf
    length = max(1, _CHUNK_BYTES // leaf.dtype.itemsize)
    flat = leaf.reshape(-1)
    chunks = [flat[start : start + length] for start in range(0, flat.size, length)]
    numbered = lambda values: dict(zip(map(str, itertools.count()), values, strict=False))
    return {_CHUNKED: True, "shape": numbered(leaf.shape), "chunks": numbered(chunks)}
