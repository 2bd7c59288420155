"""``pmap``: what the user calls, and the life of a call from top to bottom.

A call goes to JAX's C++ dispatch. A signature that it has not seen comes to
``MappedFunction.run_unseen``, which reads the arguments, finds or makes the program, moves inputs
that lie elsewhere, and runs it; the dispatch remembers the program. A call inside somebody's
trace is recorded there instead (``staging``).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from numbers import Integral
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import jax
from jax.sharding import Mesh

from pmapx._src import errors, fastpath
from pmapx._src.map import debug_nans, multiprocess_call, stages
from pmapx._src.map.cache_info import CacheInfo, Record
from pmapx._src.map.inputs import Inputs
from pmapx._src.map.options import RESHARD_POLICIES, VIEWS, Options, Reshard, View, check_argnums
from pmapx._src.map.pmapped_function import PmappedFunction
from pmapx._src.map.program import Executable, Program, unused_donations, varying_outputs
from pmapx._src.map.program_builder import Programs
from pmapx._src.map.under_trace import is_traced, stage
from pmapx._src.mesh import placement, trace_context
from pmapx._src.mesh.context_mesh import on_context_mesh
from pmapx._src.multihost import host_local
from pmapx._src.spmd import axes, nesting
from pmapx._src.trees import names
from pmapx._src.trees.signature import Call, Reader, Signature

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Pmapped(Protocol[P, R_co]):
    """What ``pmap`` returns: the mapped function, and its stages.

    Example:
      >>> import numpy as np, pmapx
      >>> negate = pmapx.pmap(lambda x: -x)
      >>> negate.eval_shape(np.ones((1, 3), np.float32)).shape
      (1, 3)
      >>> compiled = negate.lower(np.ones((1, 3), np.float32)).compile()
      >>> compiled(np.ones((1, 3), np.float32)).sum()
      Array(-3., dtype=float32)
    """

    __wrapped__: Callable[..., Any]
    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Calls the mapped function."""

    def lower(self, /, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lowers it for these arguments, or their shapes, as ``jax.jit(f).lower`` does."""

    def trace(self, /, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Traces it for these arguments, or their shapes, as ``jax.jit(f).trace`` does."""

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
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
    view: View = "local",
    check_replicas: bool = False,
    global_arg_shapes: None = None,
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
        device's value and is meant for values that are equal on all devices. ``pmapx.AUTO`` is
        None for outputs that are proven equal on all devices and 0 for the others.
      static_broadcasted_argnums: positions of arguments that are compile-time constants.
      devices: the devices to map over, in order; by default all.
      backend: the platform whose devices to use.
      axis_size: the size of the mapped axis, over all processes; needed only when no argument is
        mapped.
      donate_argnums: positions of arguments whose memory may be reused for results.
      reshard: what to do with an input that lies elsewhere: ``"allow"`` moves it, ``"warn"``
        moves it and warns, ``"error"`` refuses it.
      oversubscribe: whether an axis larger than the number of devices may run several elements
        on each.
      compiler_options: options for XLA, as for ``jax.jit``.
      view: what a map that spans processes returns: this process's rows (``"local"``), or global
        arrays (``"global"``). Global arrays are taken as they are in either view.
      check_replicas: whether such a map compares each call between the processes before it runs:
        its function, its shapes, and the values of arguments that all must pass alike.
      global_arg_shapes: None; the original took it, and did nothing with it.

    Returns:
      The mapped function. It also has ``lower``, ``trace``, ``eval_shape``, ``cache_info`` and
      ``clear_cache``.
    """
    if not callable(fun):
        raise errors.NotCallable(fun)
    if reshard not in RESHARD_POLICIES:
        choices = " or ".join(map(repr, RESHARD_POLICIES))
        raise errors.UnknownOption("reshard", reshard, choices)
    if view not in VIEWS:
        raise errors.UnknownOption("view", view, " or ".join(map(repr, VIEWS)))
    if axis_size is not None and not (isinstance(axis_size, Integral) and axis_size > 0):
        raise errors.UnknownOption("axis_size", axis_size, "a positive integer")
    if global_arg_shapes is not None:
        raise errors.UnknownOption("global_arg_shapes", global_arg_shapes, "None")
    static_argnums = check_argnums("static_broadcasted_argnums", static_broadcasted_argnums, fun)
    donated_argnums = check_argnums("donate_argnums", donate_argnums, fun)
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
            # As with the original, a function may be mapped over no devices, but not called.
            devices=None if devices is None else _listed(devices),
            backend=backend,
            axis_size=axis_size,
            reshard=reshard,
            oversubscribe=oversubscribe,
            compiler_options=compiler_options,
            view=view,
            check_replicas=check_replicas,
        ),
    )
    return cast(Pmapped[P, R], mapped.as_function())


class MappedFunction:
    """A pmapped function: its programs, what was compiled of them, and the counts."""

    def __init__(self, fun: Callable[..., Any], options: Options) -> None:
        """Makes the dispatch; nothing is traced yet."""
        self._fun = fun
        self._options = options
        parameters = names.parameter_names(fun)
        self._record = Record(parameters)
        self._programs = Programs(fun, options, self._record)
        self._shared = self._programs.shared
        self._inputs = Inputs(self._programs.function, options.reshard, self._record)
        self._reader = Reader(self._programs.function, parameters, options.static_argnums)
        self._dispatcher = fastpath.Dispatcher(
            self._programs.function,
            options.static_argnums,
            self.run_unseen,
            self._inputs.move_known,
            self.run_eagerly,
        )

    def as_function(self) -> PmappedFunction:
        """Returns the function that the user gets: the dispatch, and a count of its calls."""
        function = PmappedFunction(self._programs, self)
        # A cache that keeps nothing counts its misses, in C; a frame of Python that did so would
        # cost a small program a tenth of its call.
        counted: Any = functools.lru_cache(maxsize=0)(self._dispatcher.call)
        self._record.count_calls = lambda: int(counted.cache_info().misses)
        check_static = self._reader.check_static

        def explained(*args: Any, **kwargs: Any) -> Any:
            try:
                result = counted(*args, **kwargs)
            except (TypeError, ValueError):
                check_static(args, kwargs)  # The dispatch hashes them before we see them.
                raise
            # Who passed static arguments right once is spared the frame; JAX's own error has to do.
            function.__call__ = counted
            return result

        self._programs.user_function = weakref.ref(function)
        self._record.function = function.__name__
        function.__call__ = explained if self._options.static_argnums else counted
        return function

    def run_unseen(self, /, *args: Any, **kwargs: Any) -> tuple[Any, fastpath.Repeatable]:
        """Runs one call; returns its result and the program for the dispatch to remember."""
        call = self._reader.read(args, kwargs)
        if is_traced(call):
            return stage(self._programs, call), None
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return self.run_eagerly(*args, **kwargs), None
        if self._programs.spans_processes():
            return self.run_unseen_rows(call)
        executable = self.executable_for(call)
        if debug_nans.is_checking():
            leaves, _ = self._inputs.place(call, executable, executable.in_shardings)
            result = debug_nans.checked(self._programs, call, lambda: executable.run(leaves))
            return on_context_mesh(result)[0], None
        return self._inputs.run(call, executable, self._programs.donated(call.signature))

    def run_unseen_rows(self, call: Call) -> tuple[Any, fastpath.Repeatable]:
        """Runs one call on this process's rows; returns the program for the dispatch likewise."""
        outcome = self.run_across_processes(call)
        executable, options = outcome.executable, self._options
        result = multiprocess_call.seen_from_here(
            self._programs, executable.program, outcome.result
        )
        if not outcome.can_repeat:
            return result, None
        if options.view == "global":
            return result, executable.compiled
        if executable.program.layout.as_shards:
            return result, executable.on_local_devices(multiprocess_call.local_program)
        in_shardings = multiprocess_call.wanted(call, executable)
        return result, fastpath.GlobalProgram(executable.compiled, in_shardings, outcome.result)

    def run_across_processes(self, call: Call) -> multiprocess_call.Outcome:
        """Runs one call of a map that lies in several processes, on this process's rows."""
        if self._options.check_replicas:
            multiprocess_call.check_agreement(self._programs, call)
        donated = self._programs.donated(call.signature)
        call = multiprocess_call.over_all_processes(self._programs, call)
        executable = self.executable_for(call)
        leaves, can_repeat = multiprocess_call.placed(self._inputs, call, executable, donated)
        if jax.config.jax_debug_nans or jax.config.jax_debug_infs:  # type: ignore[attr-defined]
            args, kwargs = executable.program.arguments(leaves)
            with jax.set_mesh(executable.mesh):
                result = executable.program.jitted(*args, **kwargs)
            return multiprocess_call.Outcome(result, executable, can_repeat=False)
        result = executable.run(leaves)
        multiprocess_call.delete_donated(call, donated)
        # A call that is to be checked has to come here each time.
        can_repeat = can_repeat and not (self._options.check_replicas or call.has_narrowed)
        return multiprocess_call.Outcome(result, executable, can_repeat)

    def executable_for(self, call: Call) -> Executable:
        """Returns the compiled program for a call, compiled now if there is none."""
        around = self._programs.mesh_around(call.signature)
        key = (call.signature, around, trace_context.trace_context())
        executables: dict[Any, Executable] = self._shared.executables
        executable = executables.get(key)
        if executable is None:
            with self._shared.lock, nesting.entered(None):
                executable = executables.get(key)
                if executable is None:
                    executable = executables[key] = self.compile(call.signature, around)
        self._record.warn_once(executable.warnings)
        return executable

    def compile(self, signature: Signature, around: Mesh | None) -> Executable:
        """Traces and compiles the program of a signature."""
        as_shards = self._programs.spans_processes() and multiprocess_call.can_run_as_shards(
            self._programs, signature
        )
        program, traced = self._programs.traced(signature, around, as_shards=as_shards)
        function, donated = self._programs.function, self._programs.donated(signature)
        warnings = (
            *varying_outputs(traced, program.mapping, function, as_shards=program.layout.as_shards),
            *unused_donations(traced, program, function, donated),
        )
        self._record.warn_once(warnings)  # Before what may take long.
        executable = Executable(program.lower(traced).compile(), program, warnings)
        latest = self._shared.latest
        self._record.note_compile(signature, latest.get(self._record))
        latest[self._record] = signature
        return executable

    def run_eagerly(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs a call operation by operation, for ``jax.disable_jit``."""
        call = self._reader.read(args, kwargs)
        if is_traced(call):
            return stage(self._programs, call)
        if debug_nans.is_checking() and not jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return self.run_unseen(*args, **kwargs)[0]  # Where the dispatch turns to with a NaN.
        with nesting.entered(None), self._record.counting_traces():
            spans = self._programs.spans_processes()
            if spans:
                call = multiprocess_call.over_all_processes(self._programs, call)
            program = self._programs.program(call.signature, None)
            put: Callable[..., Any] = host_local.to_global if spans else jax.device_put
            with placement.context_of(program.layout.mesh):
                leaves = map(put, call.leaves, program.layout.in_shardings)
                result = program.layout.mapped(*leaves)
            if spans:
                return multiprocess_call.seen_from_here(self._programs, program, result)
            return on_context_mesh(result)[0]

    def trace(self, /, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Traces the function for these arguments, or their shapes."""
        try:
            return self.traced(*args, **kwargs)[1]
        except (errors.NotEnoughDevices, errors.NestingTooLarge):
            return self.traced_alone(*args, **kwargs)

    def traced(self, /, *args: Any, **kwargs: Any) -> tuple[Program, jax.stages.Traced]:
        """Returns the program for these arguments, or their shapes, traced."""
        with self._shared.lock, nesting.entered(None):
            call = self._reader.read(args, kwargs)
            if self._programs.spans_processes():
                call = multiprocess_call.over_all_processes(self._programs, call)
            around = self._programs.mesh_around(call.signature)
            program, traced = self._programs.traced(call.signature, around)
            return program, stages.Traced(traced, self._programs, program, self._inputs)

    def traced_alone(self, /, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Traces the function where there are too few devices to run it."""

        def staged(*args: Any, **kwargs: Any) -> Any:
            return stage(self._programs, self._reader.read(args, kwargs))

        staged.__name__ = staged.__qualname__ = self._programs.function
        static_argnums = self._options.static_argnums
        return jax.jit(staged, static_argnums=static_argnums).trace(*args, **kwargs)

    def lower(self, /, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lowers the function for these arguments, or their shapes."""
        with self._shared.lock, nesting.entered(None):
            return self.trace(*args, **kwargs).lower()

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """Returns the shapes and types of the result."""
        return self.trace(*args, **kwargs).out_info

    def cache_info(self) -> CacheInfo:
        """Returns what was traced, compiled, called and moved so far."""
        return self._record.read()

    def cache_size(self) -> int:
        """Returns how many signatures the dispatch knows."""
        return self._dispatcher.size()

    def clear_cache(self) -> None:
        """Forgets all programs and counts."""
        with self._shared.lock:
            self._dispatcher.clear()
            self._shared.clear()
            self._record.clear()
            self._inputs.known.clear()


def _listed(devices: Sequence[jax.Device]) -> tuple[jax.Device, ...]:
    return placement.check_devices(devices, may_be_empty=True)
