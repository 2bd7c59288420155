"""``pmap``: what the user calls, and the life of a call from top to bottom.

A call goes to JAX's C++ dispatch. A signature that it has not seen comes to
``MappedFunction.run_unseen``, which reads the arguments, resolves what is mapped, finds or makes
the program, moves inputs that lie elsewhere, and runs it; the dispatch remembers the program. A
call inside somebody's trace is recorded there instead (``MappedFunction.stage``).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from numbers import Integral
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, Protocol, TypeVar, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx import _fastpath, axes, describe, errors, layout, nesting, placement
from pmapx.axes import LeafNames, MappedAxis, Mapping
from pmapx.describe import Abstract
from pmapx.element import Element
from pmapx.program import (
    Executable,
    Program,
    jit_of,
    may_lose_values,
    unused_donations,
    varying_outputs,
)

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Reshard = Literal["allow", "warn", "error"]
_RESHARD_POLICIES = ("allow", "warn", "error")


@dataclasses.dataclass(frozen=True)
class Move:
    """An argument that was moved to where its program needs it, why, and how often."""

    argument: str
    reason: str
    count: int


@dataclasses.dataclass(frozen=True)
class CacheInfo:
    """What a pmapped function did so far.

    Attributes:
      traces: how often the function was traced.
      compiles: how many programs were compiled.
      calls: how often it was called.
      moved: the inputs that were moved, with the reason and a count.
      reasons: why each program was compiled.
    """

    traces: int
    compiles: int
    calls: int
    moved: tuple[Move, ...]
    reasons: tuple[str, ...]


class Pmapped(Protocol[P, R_co]):
    """What ``pmap`` returns: the mapped function, and its stages."""

    __wrapped__: Callable[..., Any]
    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Calls the mapped function."""

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lowers it for these arguments, or their shapes, as ``jax.jit(f).lower`` does."""

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Traces it for these arguments, or their shapes, as ``jax.jit(f).trace`` does."""

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the shapes and types of the result, without compiling."""

    def cache_info(self) -> CacheInfo:
        """Returns what it traced, compiled and moved so far."""

    def clear_cache(self) -> None:
        """Forgets all programs, and what ``cache_info`` counted."""


def pmap(
    fun: Callable[P, R],
    axis_name: Hashable | None = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Iterable[int] = (),
    devices: Sequence[jax.Device] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Iterable[int] = (),
    reshard: Reshard = "allow",
    oversubscribe: bool = False,
    compiler_options: dict[str, Any] | None = None,
) -> Pmapped[P, R]:
    """Maps a function over an axis of its arguments, each element on a device of its own.

    The semantics are those of the original ``jax.pmap``: the function sees its arguments without
    the mapped axis, collectives such as ``jax.lax.psum`` work over ``axis_name``, and the results
    are stacked. The cost of a call is that of ``jax.jit(jax.shard_map(...))`` written by hand.

    Example:
      >>> import jax, jax.numpy as jnp, pmapx
      >>> n = jax.device_count()
      >>> share = pmapx.pmap(lambda x: x / jax.lax.psum(x, "i"), axis_name="i")
      >>> share(jnp.ones(n)).sum()
      Array(1., dtype=float32)

    Args:
      fun: the function to map. Its arguments and results are pytrees of arrays; static arguments
        may be anything hashable.
      axis_name: a name for the mapped axis, any hashable object, for collectives to refer to.
      in_axes: which axis of each positional argument is mapped: an integer (negative ones count
        from the end), None for an argument that every device sees whole, or a tree prefix of
        these. Keyword arguments are mapped along axis 0.
      out_axes: where the mapped axis goes in each output, likewise; None returns the first
        device's value and is meant for values that are equal on all devices.
      static_broadcasted_argnums: positions of arguments that are compile-time constants.
      devices: the devices to map over, in order; by default all.
      backend: the platform whose devices to use.
      axis_size: the size of the mapped axis; needed only when no argument is mapped.
      donate_argnums: positions of arguments whose memory may be reused for results.
      reshard: what to do with an input that lies elsewhere: ``"allow"`` moves it, ``"warn"``
        moves it and warns, ``"error"`` refuses it.
      oversubscribe: whether an axis larger than the number of devices may run several elements
        on each.
      compiler_options: options for XLA, as for ``jax.jit``.

    Returns:
      The mapped function. It also has ``lower``, ``trace``, ``eval_shape``, ``cache_info`` and
      ``clear_cache``.
    """
    if not callable(fun):
        raise errors.NotCallable(fun)
    if reshard not in _RESHARD_POLICIES:
        choices = " or ".join(map(repr, _RESHARD_POLICIES))
        raise errors.UnknownOption("reshard", reshard, choices)
    if axis_size is not None and not (isinstance(axis_size, Integral) and axis_size > 0):
        raise errors.UnknownOption("axis_size", axis_size, "a positive integer")
    static_argnums = _argnums("static_broadcasted_argnums", static_broadcasted_argnums, fun)
    donated_argnums = _argnums("donate_argnums", donate_argnums, fun)
    if both := sorted(set(static_argnums) & set(donated_argnums)):
        problem = f"argument {both[0]} is in static_broadcasted_argnums too"
        raise errors.BadArgnums("donate_argnums", donated_argnums, problem)
    mapped = MappedFunction(
        fun,
        Options(
            axis_name=axis_name,
            in_axes=axes.check_axes("in_axes", in_axes),
            out_axes=axes.check_axes("out_axes", out_axes),
            static_argnums=static_argnums,
            donated_argnums=donated_argnums,
            devices=placement.check_devices(devices),
            backend=backend,
            axis_size=axis_size,
            reshard=reshard,
            oversubscribe=oversubscribe,
            compiler_options=compiler_options,
        ),
    )
    return cast(Pmapped[P, R], mapped.as_function())


def _argnums(which: str, argnums: Any, fun: Callable[..., Any]) -> tuple[int, ...]:
    """Returns argument positions as a tuple, negative ones counted from the front."""
    listed = (argnums,) if isinstance(argnums, int) else argnums
    try:
        listed = tuple(int(argnum.__index__()) for argnum in listed)
    except (TypeError, AttributeError):
        problem = f"{argnums!r} is neither an integer nor a collection of integers"
        raise errors.BadArgnums(which, argnums, problem) from None
    if all(argnum >= 0 for argnum in listed):
        return tuple(sorted(set(listed)))
    count = len(describe.parameter_names(fun))
    if any(argnum < -count for argnum in listed):
        problem = f"the function tells of {count} positional parameters"
        raise errors.BadArgnums(which, argnums, problem)
    return tuple(sorted({argnum % count if argnum < 0 else argnum for argnum in listed}))


class Tally:
    """A count that threads can add to without a lock, at the cost of one call in C."""

    __slots__ = ("_reads", "add")

    def __init__(self) -> None:
        """Starts at 0."""
        self.add = itertools.count().__next__
        self._reads = 0

    def read(self) -> int:
        """Returns how often ``add`` was called; not for several threads at once."""
        total = self.add() - self._reads
        self._reads += 1
        return total


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user said to ``pmap``, checked."""

    axis_name: Hashable | None
    in_axes: Any
    out_axes: Any
    static_argnums: tuple[int, ...]
    donated_argnums: tuple[int, ...]
    devices: tuple[jax.Device, ...] | None
    backend: str | None
    axis_size: int | None
    reshard: Reshard
    oversubscribe: bool
    compiler_options: dict[str, Any] | None


class Signature(NamedTuple):
    """What a program depends on in a call: all but where the inputs lie and what they hold."""

    static: tuple[tuple[type, Any], ...]
    positions: tuple[int, ...]
    tree: jax.tree_util.PyTreeDef
    leaves: tuple[Abstract, ...]


@dataclasses.dataclass(frozen=True)
class Call:
    """The arguments of one call, read."""

    signature: Signature
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]


class MappedFunction(Generic[P, R]):
    """A pmapped function: the options, the programs by signature, and the counts."""

    def __init__(self, fun: Callable[P, R], options: Options) -> None:
        """Makes the dispatch; nothing is traced yet."""
        self.fun = fun
        self.options = options
        self.function = describe.function_name(fun)
        self.parameters = describe.parameter_names(fun)
        self._lock = threading.RLock()
        self._dispatcher = _fastpath.Dispatcher(
            self.function,
            options.static_argnums,
            self.run_unseen,
            self.move_known,
            self.run_eagerly,
        )
        self._warned: set[str] = set()
        # Whether pmaps were met inside; if so, their sizes are looked for before the layout.
        self._has_inner_pmaps = False
        self._user_function: Callable[[], Any] = lambda: None
        self._reset()

    def _reset(self) -> None:
        self._programs: dict[Any, Program] = {}
        self._staged: dict[Any, Callable[..., Any]] = {}
        self._executables: dict[Any, Executable] = {}
        self._latest: Signature | None = None
        self._traces = Tally()
        self._calls = Tally()
        self._reasons: list[str] = []
        self._moves: dict[tuple[str, str], int] = {}
        self._known_moves: dict[tuple[Any, ...], tuple[str, str]] = {}

    def as_function(self) -> Callable[..., Any]:
        """Returns the function that the user gets: one frame over the dispatch."""
        dispatch = self._dispatcher.call
        fun = self.fun
        mapped = self

        def pmapped(*args: Any, **kwargs: Any) -> Any:
            mapped._calls.add()
            if kwargs:
                return dispatch(*args, **kwargs)
            return dispatch(*args)

        def pmapped_with_static(*args: Any, **kwargs: Any) -> Any:
            mapped._calls.add()
            try:
                return dispatch(*args, **kwargs)
            except (TypeError, ValueError):
                mapped.check_static(args)  # The dispatch hashes them before we see them.
                raise

        function: Any = pmapped_with_static if self.options.static_argnums else pmapped
        functools.update_wrapper(function, fun)
        function.__name__ = getattr(fun, "__name__", self.function)
        function.__wrapped__ = fun
        function._pmapx = self
        self._user_function = weakref.ref(function)
        function.lower = self.lower
        function.trace = self.trace
        function.eval_shape = self.eval_shape
        function.cache_info = self.cache_info
        function.clear_cache = self.clear_cache
        return cast(Callable[..., Any], function)

    # The life of a call whose signature the dispatch has not seen.

    def run_unseen(self, *args: Any, **kwargs: Any) -> tuple[Any, jax.stages.Compiled | None]:
        """Runs one call; returns its result and the program for the dispatch to remember."""
        call = self.read(args, kwargs)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in call.leaves) or _fastpath.is_staging():
            return self.stage(call), None
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return self.run_eagerly(*args, **kwargs), None
        executable = self.executable_for(call)
        leaves, moved = self.place(call, executable)
        placed_args, placed_kwargs = jax.tree.unflatten(call.signature.tree, leaves)
        if jax.config.jax_debug_nans or jax.config.jax_debug_infs:  # type: ignore[attr-defined]
            # The jit of the program knows how to find the operation that is to blame.
            with jax.set_mesh(executable.mesh):
                return executable.program.jitted(*placed_args, **placed_kwargs), None
        result = executable.compiled(*placed_args, **placed_kwargs)
        donated = self.donated(call.signature)
        for index in moved:
            if donated[index]:
                call.leaves[index].delete()  # Its copy was donated, and the call succeeded.
        can_repeat = not any(
            donated[index] or _fastpath.takes_as_placed(call.leaves[index], executable.mesh)
            for index in moved
        )
        return result, executable.compiled if can_repeat else None

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Splits off static arguments, flattens the others, and finds their types."""
        static_argnums = self.options.static_argnums
        static: tuple[tuple[type, Any], ...] = ()
        positions = tuple(range(len(args)))
        if static_argnums:
            self.check_static(args)
            static = tuple((type(args[index]), args[index]) for index in static_argnums)
            positions = tuple(index for index in positions if index not in static_argnums)
        dynamic = tuple(args[index] for index in positions)
        leaves, tree = jax.tree.flatten((dynamic, kwargs))
        abstracts = []
        for index, leaf in enumerate(leaves):
            try:
                aval = jax.typeof(leaf)
            except TypeError:
                if isinstance(leaf, np.ndarray | np.generic) or not hasattr(leaf, "dtype"):
                    name = describe.leaf(index, tree, positions, self.parameters)
                    raise errors.NotAnArray(self.function, name, leaf) from None
                aval = leaf  # A shape and type that stands for an array, in ``lower``.
            weak_type = bool(getattr(aval, "weak_type", False))
            abstracts.append(Abstract(tuple(aval.shape), aval.dtype, weak_type))
        return Call(Signature(static, positions, tree, tuple(abstracts)), dynamic, kwargs, leaves)

    def check_static(self, args: tuple[Any, ...]) -> None:
        """Refuses static arguments that are missing or have no hash."""
        static_argnums = self.options.static_argnums
        for index in static_argnums:
            if index >= len(args):
                missing = describe.argument(index, self.parameters)
                raise errors.StaticArgumentMissing(
                    self.function, static_argnums, len(args), missing
                )
            try:
                hash(args[index])
            except TypeError:
                name = describe.argument(index, self.parameters)
                raise errors.UnhashableStatic(self.function, name, args[index]) from None

    def resolve(self, signature: Signature) -> Mapping:
        """Finds the mapped axis of every leaf, and its size; those of a pmap of a pmap at once."""
        args, kwargs = jax.tree.unflatten(signature.tree, range(len(signature.leaves)))
        options, in_axes = self.options, self.options.in_axes
        if isinstance(in_axes, tuple) and options.static_argnums:
            in_axes = tuple(in_axes[index] for index in signature.positions if index < len(in_axes))
        names = LeafNames(self.function, signature.tree, signature.positions, self.parameters)
        flat_axes = axes.normalize_in_axes(
            axes.resolve_in_axes(in_axes, args, kwargs, names), signature.leaves, names
        )
        size, sized_by = axes.mapped_axis_size(
            flat_axes, signature.leaves, names, options.axis_size
        )
        mesh_axis = axes.mesh_axis(options.axis_name)
        outermost = MappedAxis(options.axis_name, mesh_axis, size, flat_axes, options.out_axes)
        levels = (outermost, *self.inner_levels(signature, outermost))
        return Mapping(signature.leaves, levels, sized_by, names)

    def inner_levels(self, signature: Signature, outermost: MappedAxis) -> tuple[MappedAxis, ...]:
        """Returns the axes of the pmap that this is a pmap of, () when it is none."""
        inner = self.mapped_by_inner()
        if inner is None or self._has_inner_pmaps:
            return ()
        leaves = [
            leaf if axis is None
            else leaf._replace(shape=leaf.shape[:axis] + leaf.shape[axis + 1 :])
            for leaf, axis in zip(signature.leaves, outermost.in_axes, strict=True)
        ]  # fmt: skip
        levels = inner.resolve(signature._replace(leaves=tuple(leaves))).levels
        levels = tuple(
            dataclasses.replace(level, mesh_axis=axes.mesh_axis(level.name, depth))
            for depth, level in enumerate(levels, 1)
        )
        mesh_axes = {outermost.mesh_axis, *(level.mesh_axis for level in levels)}
        total = math.prod([outermost.size, *(level.size for level in levels)])
        # An axis may hide one of its name, or there may be too few devices: to be seen in turn.
        has_room = total <= len(self.devices()) and len(mesh_axes) == 1 + len(levels)
        return levels if has_room else ()

    def mapped_by_inner(self) -> MappedFunction[P, R] | None:
        """Returns the pmap that this is a pmap of, if its arguments are simply ours."""
        inner = getattr(self.fun, "_pmapx", None)
        if (
            not isinstance(inner, MappedFunction)
            or inner._user_function() is not self.fun  # A wrapper of it, with its attributes.
            or self.options.static_argnums
            or inner.options.static_argnums
            or inner.options.devices
        ):
            return None
        return inner

    def devices(self) -> tuple[jax.Device, ...]:
        """Returns the devices to choose from."""
        return placement.candidate_devices(self.options.devices, self.options.backend)

    def element(self, signature: Signature, depth: int = 1) -> Element:
        """Returns the user's function with its static arguments in place.

        With ``depth`` above 1, that of the pmap that this is a pmap of.
        """
        fun, static_argnums = self.fun, self.options.static_argnums
        count = len(static_argnums) + len(signature.positions)

        def with_static(*dynamic: Any, **kwargs: Any) -> Any:
            args: list[Any] = [None] * count
            for index, (_, value) in zip(static_argnums, signature.static, strict=True):
                args[index] = value
            for index, value in zip(signature.positions, dynamic, strict=True):
                args[index] = value
            return fun(*args, **kwargs)  # type: ignore[arg-type]

        def count_trace() -> None:
            self._traces.add()

        inner = self.mapped_by_inner()
        if depth > 1 and inner is not None:
            element = inner.element(signature, depth - 1)

            def count_both() -> None:
                self._traces.add()
                element.on_trace()

            return dataclasses.replace(element, on_trace=count_both)
        return Element(
            call=with_static if static_argnums else fun,
            function=self.function,
            tree=signature.tree,
            on_trace=count_trace,
        )

    def executable_for(self, call: Call) -> Executable:
        """Returns the compiled program for a call, compiled now if there is none."""
        around = self.mesh_around(call.signature)
        key = (call.signature, around, _fastpath.trace_context())
        executable = self._executables.get(key)
        if executable is not None:
            return executable
        with self._lock, nesting.entered(None):
            if key not in self._executables:
                self._executables[key] = self.compile(call.signature, around)
            return self._executables[key]

    def mesh_around(self, signature: Signature) -> Mesh | None:
        """Returns the mesh around the call if it has the mapped axis and others beside it."""
        context = None if self.options.devices else placement.context_mesh()
        if context is not None and layout.has_room_around(self.resolve(signature), context):
            return context
        return None

    def compile(self, signature: Signature, around: Mesh | None) -> Executable:
        """Traces and compiles the program of a signature."""
        reason = self.explain_compile(signature)
        program, traced = self.traced(signature, around)
        self.warn_once(varying_outputs(traced, program.mapping, self.function))
        self.warn_once(
            unused_donations(traced, program.mapping, self.function, self.donated(signature))
        )
        executable = Executable(program.lower(traced).compile(), program)
        self._reasons.append(reason)
        self._latest = signature
        return executable

    def warn_once(self, warnings: Iterable[errors.PmapxWarning]) -> None:
        """Issues those warnings that this function has not issued yet."""
        for warning in warnings:
            if str(warning) not in self._warned:
                self._warned.add(str(warning))
                errors.warn(warning)

    def traced(
        self, signature: Signature, around: Mesh | None
    ) -> tuple[Program, jax.stages.Traced]:
        """Traces the program of a signature, making room on the mesh for pmaps met inside."""
        program = self.program_for(signature, around)
        try:
            return program, program.trace()
        except nesting.InnerPmapMet:
            self._has_inner_pmaps = True
            program = self.program_for(signature, around)
            return program, program.trace()

    def program_for(self, signature: Signature, around: Mesh | None) -> Program:
        """Returns the program of a signature, laid out now if there is none."""
        key = (signature, around, self._has_inner_pmaps)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self.program(signature, around)
        return program

    def program(self, signature: Signature, around: Mesh | None) -> Program:
        """Lays out the program of a signature, on the mesh around the call if that is given."""
        mapping = self.resolve(signature)
        element = self.element(signature, len(mapping.levels))
        if around is not None:
            laid_out = layout.lay_out_along(element, mapping, around)
        else:
            laid_out = layout.lay_out(
                element,
                mapping,
                self.devices(),
                self.inner_axes(signature, mapping) if self._has_inner_pmaps else None,
                may_oversubscribe=self.options.oversubscribe,
            )
        return Program(laid_out, mapping, signature.tree, self.jitted(signature, laid_out.mapped))

    def jitted(self, signature: Signature, mapped: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the jit of a laid-out map over the dynamic arguments."""
        donated = [
            index
            for index, position in enumerate(signature.positions)
            if position in self.options.donated_argnums
        ]
        if jax.config.jax_debug_nans:  # type: ignore[attr-defined]
            donated = []  # The call may have to run again, operation by operation.
        return jit_of(
            self.fun,
            self.function,
            mapped,
            self.options.static_argnums,
            donated,
            self.options.compiler_options,
        )

    def inner_axes(self, signature: Signature, mapping: Mapping) -> layout.InnerAxes:
        """Finds the pmaps inside, and chooses mesh axes for them."""
        leaves = [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
            for leaf in mapping.leaves
        ]
        outermost = mapping.outermost
        return nesting.choose_inner_axes(
            self.function,
            (outermost.name, outermost.size),
            nesting.discover(self.element(signature), outermost, leaves),
            len(self.devices()),
            may_oversubscribe=self.options.oversubscribe,
        )

    def donated(self, signature: Signature) -> list[bool]:
        """Says of each leaf whether it is donated."""
        args, kwargs = signature.tree.children()
        donated: list[bool] = []
        for position, argument in zip(signature.positions, args.children(), strict=True):
            donated += [position in self.options.donated_argnums] * argument.num_leaves
        return donated + [False] * kwargs.num_leaves

    # Where inputs lie.

    def place(self, call: Call, executable: Executable) -> tuple[list[Any], list[int]]:
        """Moves inputs that lie elsewhere; returns all, and the indices of those moved."""
        leaves = call.leaves
        misplaced = [
            index
            for index, (leaf, wanted) in enumerate(
                zip(leaves, executable.in_shardings, strict=True)
            )
            if wanted is not None and not placement.is_placed(leaf, wanted)
        ]
        if not misplaced:
            return leaves, []
        names = executable.program.mapping.names
        for index in misplaced:
            self.check_move(
                names[index], call.signature.leaves[index], leaves[index],
                executable.in_shardings[index],
            )  # fmt: skip
        leaves = list(leaves)
        for index in misplaced:
            wanted = executable.in_shardings[index]
            reason = placement.reason_to_move(leaves[index], wanted)
            self.note_move(names[index], call.signature.leaves[index], leaves[index], reason)
            leaves[index] = placement.move(leaves[index], wanted)
        return leaves, misplaced

    def check_move(
        self, argument: str, abstract: Abstract, x: jax.Array, wanted: jax.sharding.Sharding
    ) -> None:
        """Refuses to move an input if the user said so, to pmap or to the transfer guard."""
        if self.options.reshard == "error":
            raise errors.ReshardRefused(self.function, argument, str(abstract), x.sharding, wanted)
        if placement.is_move_forbidden():
            raise errors.MoveForbidden(self.function, argument, str(abstract), x.sharding, wanted)

    def note_move(self, argument: str, abstract: Abstract, x: jax.Array, reason: str) -> None:
        """Counts a move, and warns of the first of its kind if asked to."""
        with self._lock:
            move = argument, reason
            self._moves[move] = self._moves.get(move, 0) + 1
            self._known_moves.setdefault((x.shape, x.sharding), move)
        if self.options.reshard == "warn":
            self.warn_once([errors.InputMoved(self.function, argument, str(abstract), reason)])

    def move_known(self, x: jax.Array, wanted: jax.sharding.Sharding) -> jax.Array | None:
        """Moves an input of a known signature for the dispatch; None when it is in place."""
        if placement.is_placed(x, wanted):
            return None
        if placement.is_move_forbidden():
            raise errors.MoveForbidden(
                self.function, "an argument", f"{x.dtype}{list(x.shape)}", x.sharding, wanted
            )
        move = self._known_moves.get((x.shape, x.sharding))
        if move is not None:
            with self._lock:
                self._moves[move] += 1
        return placement.move(x, wanted)

    # Calls that are not run but recorded, or run without compilation.

    def stage(self, call: Call) -> Any:
        """Records the call in the trace that is under way."""
        mapping = self.resolve(call.signature)
        level = nesting.current_level() or nesting.level_from_context()
        if level is not None:
            if self.options.devices is not None:
                raise errors.NestedDevices(self.function, self.options.axis_name, level.axis_name)
            element = self.element(call.signature)
            return nesting.map_inner(level, element, mapping.outermost)(*call.leaves)
        try:
            jitted, result = self.stage_program(call, mapping)
        except nesting.InnerPmapMet:
            self._has_inner_pmaps = True
            mapping = self.resolve(call.signature)
            jitted, result = self.stage_program(call, mapping)
        if may_lose_values(mapping):
            traced = jitted.trace(*call.args, **call.kwargs)  # JAX remembers the trace.
            self.warn_once(varying_outputs(traced, mapping, self.function))
        return result

    def stage_program(self, call: Call, mapping: Mapping) -> tuple[Any, Any]:
        """Records the program, on the mesh of the context if any; returns its jit and result."""
        context = placement.context_mesh()
        if context is not None:
            return self.stage_in_context(call, mapping, context)
        program = self.program_for(call.signature, None)
        args, kwargs = call.args, call.kwargs
        try:
            if placement.mesh_in_types(call.leaves) is not None:
                args, kwargs = self.replicated(call, program)
            return program.jitted, program.jitted(*args, **kwargs)
        except ValueError as error:
            typed = placement.mesh_in_types(call.leaves)
            if typed is not None and typed.size <= len(self.devices()):
                # Before 0.9, arrays keep the mesh in their type: let it be the context then.
                return self.stage_in_context(
                    call, mapping, placement.on_devices(typed, self.devices())
                )
            if "incompatible devices" not in str(error):
                raise
            # Under grad, say: the tracer hides an array that lies elsewhere.
            args, kwargs = self.replicated(call, program)
            return program.jitted, program.jitted(*args, **kwargs)

    def replicated(self, call: Call, program: Program) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments put on the program's devices, in a way that suits every rank."""
        everywhere = NamedSharding(program.layout.mesh, PartitionSpec())
        leaves = [jax.device_put(leaf, everywhere) for leaf in call.leaves]
        args, kwargs = jax.tree.unflatten(call.signature.tree, leaves)
        return args, kwargs

    def stage_in_context(self, call: Call, mapping: Mapping, context: Mesh) -> tuple[Any, Any]:
        """Records the program on the mesh ``context``; returns its jit and result."""
        signature, has_inner = call.signature, self._has_inner_pmaps
        staged = self._staged.get((signature, context, has_inner))
        if staged is None:
            inner_axes = self.inner_axes(signature, mapping) if has_inner else None
            element = self.element(signature, len(mapping.levels))
            mapped = layout.lay_out_in_context(element, mapping, context, inner_axes)
            staged = self.jitted(signature, mapped)
            self._staged[signature, context, has_inner] = staged
        with jax.sharding.use_abstract_mesh(context.abstract_mesh):
            return staged, staged(*call.args, **call.kwargs)

    def run_eagerly(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a call operation by operation, for ``jax.disable_jit``."""
        call = self.read(args, kwargs)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in call.leaves) or _fastpath.is_staging():
            return self.stage(call)
        with nesting.entered(None):
            program = self.program(call.signature, None)
            leaves = [
                jax.device_put(leaf, sharding)
                for leaf, sharding in zip(call.leaves, program.layout.in_shardings, strict=True)
            ]
            return program.layout.mapped(*leaves)

    # Stages and counts.

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Traces the function for these arguments, or their shapes."""
        with self._lock, nesting.entered(None):
            signature = self.read(args, kwargs).signature
            return self.traced(signature, self.mesh_around(signature))[1]

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lowers the function for these arguments, or their shapes."""
        with self._lock, nesting.entered(None):
            signature = self.read(args, kwargs).signature
            program, traced = self.traced(signature, self.mesh_around(signature))
            return program.lower(traced)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the shapes and types of the result."""
        return self.trace(*args, **kwargs).out_info

    def explain_compile(self, signature: Signature) -> str:
        """Says what is new in a signature against the one compiled before it."""
        before = self._latest
        if before is None:
            return "first call"
        if before.static != signature.static:
            return "static arguments changed"
        if before.tree != signature.tree or before.positions != signature.positions:
            return "the structure of the arguments changed"
        for index, (old, new) in enumerate(zip(before.leaves, signature.leaves, strict=True)):
            if old != new:
                name = describe.leaf(index, signature.tree, signature.positions, self.parameters)
                weak = "" if str(old) != str(new) else " (weak type changed)"
                return f"{name} was {old}, is {new}{weak}"
        return "a setting of JAX that programs depend on changed"

    def cache_info(self) -> CacheInfo:
        """Returns what was traced, compiled, called and moved so far."""
        with self._lock:
            moved = tuple(Move(*name, count) for name, count in self._moves.items())
            return CacheInfo(
                self._traces.read(),
                len(self._reasons),
                self._calls.read(),
                moved,
                tuple(self._reasons),
            )

    def clear_cache(self) -> None:
        """Forgets all programs and counts."""
        with self._lock:
            self._dispatcher.clear()
            self._reset()
