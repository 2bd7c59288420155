"""Functions of a watched program, and what happens when they are called.

A map is what ``jax.pmap`` or ``jax.shard_map`` made. The outermost watched function of a call is
the one whose arguments and results can be seen, since what is inside it is being traced: a ``jit``
that has a map inside, which is what a migrated pmap is, is therefore recorded like a map.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
import types
from collections.abc import Callable
from typing import Any

import jax

from pmapx._src.codemod.write import emitted_functions
from pmapx._src.trees import names as describe
from pmapx._src.verify.record.code_hashes import code_digest
from pmapx._src.verify.record.leaf_values import note_deleted, note_inputs, note_outputs
from pmapx._src.verify.record.writer import Recorder

MAPS = ("pmap", "shard_map")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a function was made: the file from the watched folder on, the line, and in what.

    ``instruction`` tells two calls on one line apart.
    """

    file: str
    line: int
    scope: str
    instruction: int


@dataclasses.dataclass
class Group:
    """All functions that one place makes under one name, such as those of a wrapper of pmap."""

    number: int
    kind: str
    donated: tuple[int, ...]
    donated_names: tuple[str, ...]
    parameters: tuple[str, ...]
    calls: int = 0
    has_map: bool = False
    seen_inside: set[int] = dataclasses.field(default_factory=set)

    def donates(self, which: int | str) -> bool:
        """Tells whether an argument, by its position or name, is donated."""
        names = self.parameters
        if isinstance(which, str):
            is_named = which in self.donated_names
            return is_named or (which in names and self.donates(names.index(which)))
        is_named = which < len(names) and names[which] in self.donated_names
        return is_named or bool({which, which - len(names)} & set(self.donated))


@dataclasses.dataclass(frozen=True)
class _Active:
    group: Group
    is_seen: bool


class Watcher:
    """Sees the functions that files of one folder make, and records their calls."""

    def __init__(self, recorder: Recorder, root: str, most_calls: int) -> None:
        """Records the first ``most_calls`` calls of each function, and counts the rest."""
        self.groups: dict[tuple[Any, ...], Group] = {}
        self._recorder = recorder
        self._root = os.path.realpath(root) + os.sep
        # The main file may have a relative name, and the program may go elsewhere.
        self._real = functools.cache(functools.partial(_real_path, os.getcwd()))
        self._most_calls = most_calls
        self._local = threading.local()
        self._lock = threading.RLock()
        self._has_asked = False

    def place(self, frame: types.FrameType) -> Place | None:
        """Returns the place of a frame, if it is one of the program's own files.

        What a function of migrate's makes was made by who called it. If that is another file, it
        was made with its first call, and what was written into a file maps what that file maps.
        """
        helper: Place | None = None
        back: types.FrameType | None = frame
        while back is not None:
            file = self._real(back.f_code.co_filename)
            if not file.startswith(self._root) or "site-packages" in file:
                return helper
            name = back.f_code.co_qualname
            here = Place(file[len(self._root) :], back.f_lineno, name, back.f_lasti)
            if name.partition(".")[0] not in emitted_functions.names():
                return here if helper is None or helper.file == here.file else helper
            helper = helper or here
            back = back.f_back
        return helper

    def watch(
        self,
        kind: str,
        place: Place,
        made: Callable[..., Any],
        fun: Callable[..., Any],
        options: dict[str, Any],
    ) -> Callable[..., Any]:
        """Returns what JAX made, seen from now on."""
        fun, is_map = _mapped_function(fun)
        group = self._group(kind, place, describe.function_name(fun), fun, options)
        group.has_map |= is_map

        def watched(*args: Any, **kwargs: Any) -> Any:
            return self.call(group, made, args, kwargs)

        functools.update_wrapper(watched, made)
        seen: Any = watched
        seen.__wrapped__ = getattr(made, "__wrapped__", made)
        seen._pmapx_watches = (fun, group.has_map)
        for name in ("eval_shape", "clear_cache", "cache_info"):
            if hasattr(made, name):
                setattr(seen, name, getattr(made, name))
        for name in ("lower", "trace"):
            if hasattr(made, name):
                setattr(seen, name, functools.partial(_stage, self, group, getattr(made, name)))
        return watched

    def call(
        self, group: Group, made: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Calls what JAX made, and records it if its values can be seen."""
        if self._active or _has_tracer(args, kwargs):
            if group.has_map:
                self._note_map(group)
            with self.inside(group, is_seen=False):
                return made(*args, **kwargs)
        inputs = None
        if (group.donated or group.donated_names) and self._is_to_be_seen(group):
            inputs = note_inputs(args, kwargs, group.donates)
        try:
            with self.inside(group, is_seen=True):
                result = made(*args, **kwargs)
        except Exception as error:
            if (number := self._count(group)) is not None:
                what = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]
                self._recorder.write_call(group.number, number, inputs or [], [], what)
            raise
        if (number := self._count(group)) is not None:
            if inputs is None:
                inputs = note_inputs(args, kwargs, group.donates)
            note_deleted(inputs, args, kwargs)
            self._recorder.write_call(group.number, number, inputs, note_outputs(result), "")
        return result

    def inside(self, group: Group, *, is_seen: bool) -> _Inside:
        """Marks what is called in a block as called inside a function."""
        return _Inside(self._active, _Active(group, is_seen))

    @property
    def _active(self) -> list[_Active]:
        if not hasattr(self._local, "active"):
            self._local.active = []
        active: list[_Active] = self._local.active
        return active

    def _group(
        self,
        kind: str,
        place: Place,
        name: str,
        fun: Callable[..., Any],
        options: dict[str, Any],
    ) -> Group:
        code = code_digest(fun)
        key = (kind, place, name, code)
        with self._lock:
            if key not in self.groups:
                group = Group(
                    len(self.groups),
                    kind,
                    _numbers(options.get("donate_argnums")),
                    _names(options.get("donate_argnames")),
                    describe.parameter_names(fun),
                    has_map=kind in MAPS,
                )
                self.groups[key] = group
                self._recorder.write(
                    "function",
                    number=group.number,
                    kind=kind,
                    name=name,
                    code=code,
                    parameters=group.parameters,
                    file=place.file,
                    line=place.line,
                    scope=place.scope,
                )
            return self.groups[key]

    def _note_map(self, group: Group) -> None:
        """Notes that a map is being traced inside the functions that are active."""
        for active in self._active:
            active.group.has_map = True
        outermost = self._active[0] if self._active else None
        number = outermost.group.number if outermost is not None and outermost.is_seen else -1
        for inner in [group, *(active.group for active in self._active[1:])]:
            if number not in inner.seen_inside:
                inner.seen_inside.add(number)
                self._recorder.write("inside", function=inner.number, outer=number)

    def _is_to_be_seen(self, group: Group) -> bool:
        # The first call of a jit tells whether it has a map inside.
        return group.calls < self._most_calls if group.has_map else group.calls == 0

    def _count(self, group: Group) -> int | None:
        """Counts a call; returns its number if it is to be recorded."""
        with self._lock:
            group.calls += 1
            if not self._has_asked:
                self._has_asked = True
                self._recorder.write(
                    "devices",
                    process=jax.process_index(),
                    processes=jax.process_count(),
                    devices=jax.device_count(),
                )
            is_recorded = group.has_map and group.calls <= self._most_calls
            return group.calls - 1 if is_recorded else None


class _Inside:
    """A block in which a function is active."""

    def __init__(self, stack: list[_Active], active: _Active) -> None:
        self._stack = stack
        self._active = active

    def __enter__(self) -> None:
        self._stack.append(self._active)

    def __exit__(self, *_: object) -> None:
        self._stack.pop()


class _Staged:
    """What ``lower`` gave, or ``trace`` or ``compile``: itself, but that its calls are seen."""

    def __init__(self, watcher: Watcher, group: Group, stage: Any) -> None:
        self._pmapx_watcher, self._pmapx_group, self._pmapx_stage = watcher, group, stage

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._pmapx_stage, name)
        if name in ("lower", "compile"):
            return functools.partial(_stage, self._pmapx_watcher, self._pmapx_group, found)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._pmapx_watcher.call(self._pmapx_group, self._pmapx_stage, args, kwargs)


def _stage(
    watcher: Watcher, group: Group, make: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    with watcher.inside(group, is_seen=True):
        return _Staged(watcher, group, make(*args, **kwargs))


def _real_path(start: str, file: str) -> str:
    return os.path.realpath(os.path.join(start, file))


def _mapped_function(fun: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """Returns the function that the user wrote, and whether what is around it is a map.

    Around it may be what we made or what migrate's functions make. JAX traces neither again if it
    knows the function already, so that nothing else would tell.
    """
    is_map = False
    for _ in range(20):
        if (watched := getattr(fun, "_pmapx_watches", None)) is not None:
            fun, has_map = watched
            is_map |= has_map
            continue
        code, closure = getattr(fun, "__code__", None), getattr(fun, "__closure__", None) or ()
        helper = code.co_qualname.partition(".")[0] if code is not None else ""
        if code is None or helper not in emitted_functions.names() or "fun" not in code.co_freevars:
            break
        fun, is_map = closure[code.co_freevars.index("fun")].cell_contents, True
    return fun, is_map


def _has_tracer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs)))


def _numbers(argnums: Any) -> tuple[int, ...]:
    if argnums is None:
        return ()
    return (argnums,) if isinstance(argnums, int) else tuple(int(number) for number in argnums)


def _names(argnames: Any) -> tuple[str, ...]:
    if argnames is None:
        return ()
    return (argnames,) if isinstance(argnames, str) else tuple(argnames)
