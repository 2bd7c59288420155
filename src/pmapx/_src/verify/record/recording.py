"""The listener in a program that is verified: it records the calls of mapped functions.

Only the outermost watched function of a call has concrete arguments and results, since JAX traces
what is inside it. A ``jit`` around a ``shard_map``, as migrated code has it, is therefore recorded
like a mapped function.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

import pmapx
from pmapx._src.distributed.initialize import find_cluster
from pmapx._src.emitted import functions
from pmapx._src.map.pmapped_function import PmappedFunction
from pmapx._src.trees import names as describe
from pmapx._src.verify.record.call_record import note_deleted, note_inputs, note_outputs
from pmapx._src.verify.record.writer import Recorder
from pmapx._src.watch import frames
from pmapx._src.watch.transforms import Call, Listener, MadeFunction, Watched, attach

MAPS = ("pmap", "shard_map")
SETTINGS = "settings.json"


def start(records: Path) -> None:
    """Records this process; ``settings.json`` in the folder has the root of the program."""
    settings = json.loads((records / SETTINGS).read_text(encoding="utf-8"))
    recorder = Recorder(records)
    # What `pmapx run -n` set for this process, which may end before its first call.
    launched = find_cluster(os.environ) if "PMAPX_LAUNCHED" in os.environ else None
    process, processes = (launched.process, launched.processes) if launched else (0, 1)
    recorder.write("start", process=process, processes=processes)
    attach(Recording(recorder, settings["root"], settings["calls"], settings["elsewhere"]))
    # A pmap left in the migrated code runs as pmapx's, where it is not JAX's own.
    jax.pmap = pmapx.pmap


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a function was made: the file relative to the root, the line and the scope.

    ``instruction`` distinguishes two calls on one line.
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
    # Whether its arguments are on several devices, with no map inside as far as is known.
    is_plain: bool = False
    # Whether its first argument is the function that it maps, as migrate writes it.
    takes_function: bool = False
    seen_inside: set[int] = dataclasses.field(default_factory=set)

    def donates(self, which: int | str) -> bool:
        """Returns whether an argument, by its position or name, is donated."""
        names = self.parameters
        if isinstance(which, str):
            is_named = which in self.donated_names
            if self.kind == "pmap":
                # Unlike jit, pmap donates nothing that is passed by keyword.
                return is_named
            return is_named or (which in names and self.donates(names.index(which)))
        is_named = which < len(names) and names[which] in self.donated_names
        return is_named or bool({which, which - len(names)} & set(self.donated))


@dataclasses.dataclass(frozen=True)
class _Active:
    group: Group
    is_recorded: bool


class Recording(Listener):
    """Records the functions that files below one folder make."""

    transforms = ("jit", "grad", "value_and_grad", "vmap", "shard_map")
    has_stages = True

    def __init__(
        self, recorder: Recorder, root: str, most_calls: int, elsewhere: list[str] | None = None
    ) -> None:
        """Records the first ``most_calls`` calls of each function, and counts the rest.

        ``elsewhere`` are the folders of other versions, of which nothing should be imported.
        """
        self._groups: dict[tuple[Any, ...], Group] = {}
        self._recorder = recorder
        self._root = os.path.realpath(root) + os.sep
        # The main file may have a relative name, and the program may change its directory.
        start = os.getcwd()
        self._real = functools.cache(lambda file: os.path.realpath(os.path.join(start, file)))
        self._most_calls = most_calls
        self._elsewhere = elsewhere or []
        self._local = threading.local()
        self._lock = threading.RLock()
        self._has_devices = False

    def made(self, function: MadeFunction) -> bool:
        """Watches what the program's own files make."""
        place = self.place()
        if place is None:
            return False
        fun, is_map = _mapped_function(function.fun)
        function.state = self._group(function.kind, place, fun, dict(function.options))
        function.state.has_map |= is_map
        return True

    def place(self) -> Place | None:
        """Returns where the current call comes from, if that is one of the program's own files.

        What a helper that migrate wrote makes counts as made by its caller, unless that is in
        another file: then it was made with its first call, and the helper itself is the place.
        """
        helper: Place | None = None
        for frame in frames.callers():
            file = self._real(frame.f_code.co_filename)
            if not file.startswith(self._root) or "site-packages" in file:
                return helper
            name = frame.f_code.co_qualname
            here = Place(file[len(self._root) :], frame.f_lineno, name, frame.f_lasti)
            if name.partition(".")[0] not in functions.names():
                return here if helper is None or helper.file == here.file else helper
            helper = helper or here
        return helper

    def call(self, call: Call) -> Any:
        """Records a call if its values are concrete."""
        group: Group = call.function.state
        args, kwargs = call.args[group.takes_function :], call.kwargs
        leaves = [] if self._active else jax.tree.leaves((args, kwargs))
        if self._active or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            if group.has_map:
                self._note_map(group)
            with self._inside(group, is_recorded=False):
                return call.run()
        if not group.has_map and not group.is_plain and any(map(_is_on_mesh, leaves)):
            group.is_plain = True
            self._recorder.write("plain", function=group.number)
        inputs = None
        if (group.donated or group.donated_names) and self._is_to_be_recorded(group):
            inputs = note_inputs(args, kwargs, group.donates)
        try:
            with self._inside(group, is_recorded=True):
                result = call.run()
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

    def stage(self, function: MadeFunction, make: Callable[[], Any]) -> Any:
        """Notes which mapped functions are inside of one that is traced ahead of time."""
        with self._inside(function.state, is_recorded=True):
            return make()

    def end(self) -> None:
        """Writes how often each function was called, and modules of another version."""
        counts = {group.number: group.calls for group in self._groups.values()}
        files = (vars(module).get("__file__") for module in list(sys.modules.values()))
        strangers = [
            file
            for file in files
            if isinstance(file, str)
            and _is_below(file, self._elsewhere)
            and not self._real(file).startswith(self._root)
        ]
        self._recorder.write("end", counts=counts, strangers=sorted(strangers)[:3])

    @property
    def _active(self) -> list[_Active]:
        if not hasattr(self._local, "active"):
            self._local.active = []
        active: list[_Active] = self._local.active
        return active

    @contextlib.contextmanager
    def _inside(self, group: Group, *, is_recorded: bool) -> Iterator[None]:
        self._active.append(_Active(group, is_recorded))
        try:
            yield
        finally:
            self._active.pop()

    def _group(
        self, kind: str, place: Place, fun: Callable[..., Any], options: dict[str, Any]
    ) -> Group:
        name, code = describe.function_name(fun), code_digest(fun)
        donated, parameters = _several(options.get("donate_argnums")), describe.parameter_names(fun)
        static = _several(options.get("static_argnums"))
        takes_function = parameters[:1] == ("function",) and 0 in static
        if takes_function:
            donated, parameters = tuple(i - 1 for i in donated if i > 0), parameters[1:]
        key = (kind, place, name, code)
        with self._lock:
            if key not in self._groups:
                group = Group(
                    len(self._groups),
                    kind,
                    donated,
                    _several(options.get("donate_argnames")),
                    parameters,
                    has_map=kind in MAPS,
                    takes_function=takes_function,
                )
                self._groups[key] = group
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
            return self._groups[key]

    def _note_map(self, group: Group) -> None:
        """Notes that a mapped function is traced inside the active functions."""
        for active in self._active:
            active.group.has_map = True
        outermost = self._active[0] if self._active else None
        number = outermost.group.number if outermost is not None and outermost.is_recorded else -1
        for inner in [group, *(active.group for active in self._active[1:])]:
            if number not in inner.seen_inside:
                inner.seen_inside.add(number)
                self._recorder.write("inside", function=inner.number, outer=number)

    def _is_to_be_recorded(self, group: Group) -> bool:
        # The first call of a jit shows whether a mapped function is inside.
        is_known = group.has_map or group.is_plain
        return group.calls < self._most_calls if is_known else group.calls == 0

    def _count(self, group: Group) -> int | None:
        """Counts a call; returns its number if it is to be recorded."""
        with self._lock:
            group.calls += 1
            if not self._has_devices:
                self._has_devices = True
                self._recorder.write(
                    "devices",
                    process=jax.process_index(),
                    processes=jax.process_count(),
                    devices=jax.device_count(),
                )
            is_known = group.has_map or group.is_plain
            is_recorded = is_known and group.calls <= self._most_calls
            return group.calls - 1 if is_recorded else None


def _is_below(file: str, folders: list[str]) -> bool:
    """Returns whether a file is one of another version, and not of an environment in there."""
    real = os.path.realpath(file)
    environments = [os.path.realpath(path) for path in (sys.prefix, sys.base_prefix)]
    return (
        real.endswith(".py")
        and "-packages" + os.sep not in real
        and any(real.startswith(folder + os.sep) for folder in folders)
        and not any(real.startswith(folder + os.sep) for folder in environments)
    )


def _mapped_function(fun: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """Returns the function that the user wrote, and whether ``fun`` maps it.

    JAX does not trace a known function again, so that this cannot be left to its first call.
    """
    is_map = False
    for _ in range(20):
        if isinstance(fun, Watched):
            is_map |= fun.made_function.state.has_map
            fun = fun.made_function.fun
            continue
        if isinstance(fun, PmappedFunction):
            fun, is_map = fun.__wrapped__, True
            continue
        code, closure = getattr(fun, "__code__", None), getattr(fun, "__closure__", None) or ()
        helper = code.co_qualname.partition(".")[0] if code is not None else ""
        if code is None or helper not in functions.names() or "fun" not in code.co_freevars:
            break
        fun, is_map = closure[code.co_freevars.index("fun")].cell_contents, True
    return fun, is_map


def _is_on_mesh(x: Any) -> bool:
    return isinstance(x, jax.Array) and not x.is_deleted() and x.sharding.num_devices > 1


def _several(given: Any) -> tuple[Any, ...]:
    """Returns argnums or argnames as a tuple."""
    if given is None:
        return ()
    return (given,) if isinstance(given, int | str) else tuple(given)


def code_digest(fun: Callable[..., Any]) -> str:
    """Returns a hash of a function's code, empty for a callable without code, such as a class.

    >>> code_digest(lambda x: x + 1) == code_digest(lambda x: x + 1) != code_digest(lambda x: -x)
    True
    >>> code_digest(functools.partial(int, base=2))
    ''
    """
    code = describe.code_of(fun)
    if code is None:
        return ""
    return hashlib.blake2b(_text(code).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _text(code: types.CodeType) -> str:
    constants = [
        _text(each) if isinstance(each, types.CodeType) else f"{type(each).__name__} {each!r}"
        for each in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
    return f"{code.co_name} {code.co_code!r} {names} {constants}"
