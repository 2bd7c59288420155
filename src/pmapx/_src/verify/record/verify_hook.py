"""The hook in a watched program: what it makes with JAX from now on is seen.

``jax.pmap``, ``jax.shard_map`` and the functions that go around them are replaced by ones that
watch what they make, if a file of the watched folder makes it; the rest of the program gets JAX's
own.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import pmapx
from pmapx._src.legacy.import_hooks import AfterImport
from pmapx._src.verify.record.functions import Watcher
from pmapx._src.verify.record.writer import Recorder

SETTINGS = "settings.json"
_AROUND = ("jit", "grad", "value_and_grad", "vmap")


def start(records: Path) -> None:
    """Watches this process; ``settings.json`` in the folder says which files are the program's."""
    settings = json.loads((records / SETTINGS).read_text(encoding="utf-8"))
    recorder = Recorder(records)
    watcher = Watcher(recorder, settings["root"], settings["calls"])
    # What `pmapx run -n` gave this process: known though it may end before its first call.
    launched = [os.environ.get(f"OMPI_COMM_WORLD_{name}", "") for name in ("RANK", "SIZE")]
    if "PMAPX_LAUNCHED" not in os.environ or not all(map(str.isdigit, launched)):
        launched = ["0", "1"]
    process, processes = map(int, launched)
    recorder.write("start", jax=jax.__version__, process=process, processes=processes)
    for name in _AROUND:
        setattr(jax, name, _watching(watcher, name, getattr(jax, name)))
    # A pmap that is left in the migrated code runs as pmapx's, wherever it is not JAX's own.
    pmap = _watching(watcher, "pmap", pmapx.pmap)
    vars(pmapx)["pmap"] = pmap
    jax.pmap = pmap
    jax.shard_map = _watching(watcher, "shard_map", jax.shard_map)
    AfterImport(["jax.experimental.shard_map"], _old_shard_map(watcher)).start()
    atexit.register(_end, watcher, recorder, settings["elsewhere"])


def _old_shard_map(watcher: Watcher) -> Callable[[types.ModuleType], None]:
    def replace(module: types.ModuleType) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            made = getattr(module, "shard_map", None)
        if made is not None:
            vars(module)["shard_map"] = _watching(watcher, "shard_map", made)

    return replace


def _watching(watcher: Watcher, kind: str, make: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of JAX's that watches what it makes for the program's own files."""

    @functools.wraps(make)
    def watching(*args: Any, **kwargs: Any) -> Any:
        place = watcher.place(sys._getframe(1))
        made = make(*args, **kwargs)
        if place is None:
            return made
        fun = args[0] if args else kwargs.get("fun", kwargs.get("f"))
        if callable(fun):
            return watcher.watch(kind, place, made, fun, kwargs)

        def decorate(fun: Callable[..., Any]) -> Any:
            # jax.jit(static_argnums=0) and jax.shard_map(mesh=...) wait for their function.
            return watcher.watch(kind, place, made(fun), fun, kwargs)

        return decorate if callable(made) else made

    return watching


def _end(watcher: Watcher, recorder: Recorder, elsewhere: list[str]) -> None:
    counts = {group.number: group.calls for group in watcher.groups.values()}
    files = (vars(module).get("__file__") for module in list(sys.modules.values()))
    strangers = [file for file in files if isinstance(file, str) and _is_below(file, elsewhere)]
    recorder.write("end", counts=counts, strangers=sorted(strangers)[:3])


def _is_below(file: str, folders: list[str]) -> bool:
    """Tells whether a file is one of another version, and not of an environment in there."""
    real = os.path.realpath(file)
    environments = [os.path.realpath(path) for path in (sys.prefix, sys.base_prefix)]
    return (
        real.endswith(".py")
        and "-packages" + os.sep not in real
        and any(real.startswith(folder + os.sep) for folder in folders)
        and not any(real.startswith(folder + os.sep) for folder in environments)
    )
