"""``.npz`` files, one array at a time."""

import contextlib
import functools
import os
import zipfile
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np

from pmapx._src.checkpoint import object_tree
from pmapx._src.checkpoint.base import Change, CheckpointError, StoredArray

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def is_npz(path: str) -> bool:
    with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return all(name.endswith(".npy") for name in archive.namelist())
    return False


class NpzFile:
    """The arrays of an ``.npz``; only the one that is used now is in memory."""

    kind = ".npz"

    def __init__(self, path: str) -> None:
        self._path = path

    def leaves(self) -> Iterator[tuple[str, Any]]:
        with zipfile.ZipFile(self._path) as archive:
            for info in archive.infolist():
                yield _leaf_path(info), self._stored(archive, info)

    def save(self, path: str, change: Change) -> None:
        with zipfile.ZipFile(self._path) as old, zipfile.ZipFile(path, "w") as new:
            for info in old.infolist():
                value = change(_leaf_path(info), self._stored(old, info))
                array = value.read() if isinstance(value, StoredArray) else value
                entry = zipfile.ZipInfo(info.filename, info.date_time)
                entry.compress_type, entry.external_attr = info.compress_type, info.external_attr
                with new.open(entry, "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)

    def _stored(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> StoredArray:
        with _readable(archive, info) as file:
            version = np.lib.format.read_magic(file)
            if version in _HEADERS:
                shape, _, dtype = _HEADERS[version](file)
                read: Callable[[], Any] = functools.partial(self._read, info.filename)
            else:  # Field names outside Latin-1; numpy has no public reader of the header.
                array = self._read(info.filename)
                shape, dtype, read = array.shape, array.dtype, lambda: array
        if dtype.hasobject:
            # Even with --trust-pickle: what is inside is not an array of a device's copies.
            raise CheckpointError(
                f"{_leaf_path(info)} in {os.path.basename(self._path)} is an array of Python "
                "objects; save its arrays one by one, or as a pickle"
            )
        return StoredArray(shape, dtype, read)

    def _read(self, name: str) -> np.ndarray[Any, Any]:
        with zipfile.ZipFile(self._path) as archive, _readable(archive, name) as file:
            return np.lib.format.read_array(file, allow_pickle=False)


@contextlib.contextmanager
def _readable(archive: zipfile.ZipFile, name: str | zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    try:
        with archive.open(name) as file:
            yield file
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{archive.filename} is damaged: {error}") from error


def _leaf_path(info: zipfile.ZipInfo) -> str:
    return object_tree.item("", info.filename.removesuffix(".npy"))
