"""Pickles, of one object or several after one another. Loading one runs code that is in it."""

import itertools
import os
import pickle
import pickletools
from collections.abc import Iterator
from typing import Any

from pmapx._src.checkpoint import object_tree
from pmapx._src.checkpoint.base import Change, CheckpointError

# The opcode that begins a pickle of protocol 2 or later, and the one that ends any.
_PROTO, _STOP = b"\x80", b"."


def is_pickle(path: str) -> bool:
    """Returns whether a file is a pickle, without loading it."""
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:1] == _PROTO:
            return len(head) > 1 and 2 <= head[1] <= pickle.HIGHEST_PROTOCOL
        file.seek(-1, os.SEEK_END)
        is_ended = file.read() == _STOP
    try:
        first = list(itertools.islice(pickletools.genops(head), 2))
    except ValueError:
        return False
    # Protocols 0 and 1 have no mark: containers, None and classes begin like this.
    return is_ended and len(first) == 2 and head[:1] in b"(]})cN"


class PickleFile:
    kind = "pickle"

    def __init__(self, path: str) -> None:
        self._objects: list[Any] = []
        with open(path, "rb") as file:
            head = file.read(2)
            self._protocol = head[1] if head[:1] == _PROTO else pickle.DEFAULT_PROTOCOL
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            while not self._objects or file.tell() < size:
                self._objects.append(_load(file, path))

    def leaves(self) -> Iterator[tuple[str, Any]]:
        for root, tree in self._roots():
            yield from object_tree.leaves(tree, root)

    def save(self, path: str, change: Change) -> None:
        shared: dict[tuple[int, bool], Any] = {}

        def change_once(place: str, leaf: Any) -> Any:
            """What several places share, they share afterwards."""
            new = change(place, leaf)
            return shared.setdefault((id(leaf), new is leaf), new)

        with open(path, "wb") as file:
            for root, tree in self._roots():
                _dump(object_tree.map_leaves(change_once, tree, root), file, self._protocol)

    def _roots(self) -> Iterator[tuple[str, Any]]:
        """A single object has no name of its own, several have their place."""
        for index, tree in enumerate(self._objects):
            yield (object_tree.item("", index) if len(self._objects) > 1 else ""), tree


def _load(file: Any, path: str) -> Any:
    try:
        return pickle.load(file)
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"{path} needs the module {error.name!r}: run pmapx in the folder of your program, or "
            "set PYTHONPATH"
        ) from error
    except AttributeError as error:
        hint = ""
        if "__main__" in str(error):
            hint = "; the class is in the script that saved it: take x[0] of its leaves there"
        raise CheckpointError(f"cannot load {path}: {error}{hint}") from error
    except Exception as error:  # Whatever the code in it raises.
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"cannot load {path}: {reason}") from error


def _dump(tree: Any, file: Any, protocol: int) -> None:
    start = file.tell()
    try:
        pickle.dump(tree, file, protocol)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        # What cloudpickle wrote, such as lambdas, only cloudpickle writes again.
        try:
            import cloudpickle  # type: ignore[import-untyped]
        except ModuleNotFoundError:
            raise CheckpointError(f"cannot pickle it again without cloudpickle: {error}") from error
        file.seek(start)
        file.truncate()
        cloudpickle.dump(tree, file, protocol)
