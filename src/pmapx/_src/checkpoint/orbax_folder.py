"""Orbax checkpoints: one pytree, a step of a ``CheckpointManager``, or all its steps."""

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from pmapx._src.checkpoint import object_tree
from pmapx._src.checkpoint.base import Change, CheckpointError

# Each folder that holds a pytree has the first; the top of a checkpoint has the second.
_TREE, _TOP = "_METADATA", "_CHECKPOINT_METADATA"
_UNFINISHED = ".orbax-checkpoint-tmp"


def is_orbax(path: str) -> bool:
    return bool(_pytree_folders(path))


class OrbaxFolder:
    """The pytrees below a folder; everything else in it is copied as it is."""

    kind = "Orbax"

    def __init__(self, path: str) -> None:
        try:
            import orbax.checkpoint as ocp  # type: ignore[import-not-found]
        except ModuleNotFoundError as error:
            raise CheckpointError(
                f"{path} is an Orbax checkpoint: pip install orbax-checkpoint to read it"
            ) from error
        self._ocp = ocp
        self._path = os.path.abspath(path)
        self._folders = _pytree_folders(path)
        self._trees = {folder: self._restored(folder) for folder in self._folders}

    def leaves(self) -> Iterator[tuple[str, Any]]:
        for folder, tree in self._trees.items():
            yield from object_tree.leaves(tree, self._root(folder))

    def save(self, path: str, change: Change) -> None:
        pytrees = {os.path.join(self._path, folder) for folder in self._folders}

        def skipped(folder: str, names: list[str]) -> list[str]:
            inside = {name for name in names if os.path.join(folder, name) in pytrees}
            return [name for name in names if name in inside or _UNFINISHED in name]

        if self._folders != ["."]:
            shutil.copytree(self._path, path, ignore=skipped)
        for folder, tree in self._trees.items():
            new = object_tree.map_leaves(change, tree, self._root(folder))
            self._write(folder, os.path.normpath(os.path.join(path, folder)), new)

    def _root(self, folder: str) -> str:
        return "" if len(self._folders) == 1 else f"{folder}/"

    def _checkpointer(self, facts: dict[str, Any]) -> Any:
        options = {name: bool(facts.get(name)) for name in ("use_ocdbt", "use_zarr3")}
        return self._ocp.Checkpointer(self._ocp.PyTreeCheckpointHandler(**options))

    def _restored(self, folder: str) -> Any:
        """Arrays come as numpy's, whatever devices they were saved from; typed keys as JAX's."""
        source = os.path.normpath(os.path.join(self._path, folder))
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        keys = _typed_keys(source)

        def how(leaf: Any) -> Any:
            if getattr(leaf, "name", None) in keys:
                return self._ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=here)
            # Not by isinstance: the metadata of a Python scalar is a subclass.
            is_stored_array = type(leaf) is self._ocp.metadata.ArrayMetadata
            return self._ocp.RestoreArgs(restore_type=np.ndarray if is_stored_array else None)

        try:
            with _quiet(), self._checkpointer(_facts(source)) as checkpointer:
                metadata = checkpointer.metadata(source)
                metadata = getattr(metadata, "item_metadata", metadata)
                wanted = jax.tree.map(how, getattr(metadata, "tree", metadata))
                arguments = self._ocp.args.PyTreeRestore(restore_args=wanted)
                return checkpointer.restore(source, args=arguments)
        except Exception as error:  # Orbax, tensorstore and JSON each have their own.
            reason = " ".join(str(error).split())
            raise CheckpointError(f"Orbax cannot restore {source}: {reason}") from error

    def _write(self, folder: str, path: str, tree: Any) -> None:
        source = os.path.join(self._path, folder)
        facts = _facts(source)
        custom = facts.get("custom_metadata")
        options = {} if custom is None else {"custom_metadata": custom}
        with _quiet(), self._checkpointer(facts) as checkpointer:
            checkpointer.save(path, args=self._ocp.args.PyTreeSave(tree, **options))
        # The top names the handlers that restore the parts: as it was, also where there is none.
        if os.path.exists(os.path.join(source, _TOP)):
            shutil.copy2(os.path.join(source, _TOP), path)
        elif os.path.exists(os.path.join(path, _TOP)):
            os.unlink(os.path.join(path, _TOP))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Orbax warns about files that only the top of a checkpoint has."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _pytree_folders(path: str) -> list[str]:
    found = []
    for folder, below, names in os.walk(path):
        below[:] = sorted(name for name in below if _UNFINISHED not in name)
        if _TREE in names:
            found.append(os.path.relpath(folder, path))
            below.clear()
    return found


def _facts(folder: str) -> dict[str, Any]:
    with open(os.path.join(folder, _TREE), "rb") as file:
        facts: dict[str, Any] = json.load(file)
    has_ocdbt = os.path.exists(os.path.join(folder, "manifest.ocdbt"))
    return {"use_ocdbt": has_ocdbt} | facts


def _typed_keys(folder: str) -> set[str]:
    """The names of leaves that are typed PRNG keys, which are stored as integers."""
    found = set()
    folder = os.path.join(folder, "array_metadatas")
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        with open(os.path.join(folder, name), "rb") as file:
            for entry in json.load(file)["array_metadatas"]:
                facts = entry["array_metadata"]
                if (facts.get("ext_metadata") or {}).get("random_key_impl"):
                    found.add(facts["param_name"])
    return found
