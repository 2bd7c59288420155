"""``pmap``, and the path of a call from top to bottom.

``pmap`` checks its options and returns a ``PmappedFunction``, whose call is JAX's C++ dispatch. A
signature that the dispatch knows runs its compiled program without a Python frame. Any other call
is a cache miss and comes to ``PmapImpl.on_cache_miss``, which

1. reads the arguments (``signature.Reader``); a call inside a trace is recorded there instead
   (``under_trace``), and one over the devices of several processes takes the same steps with
   global shapes (``multiprocess_call``),
2. finds the compiled program in the ``ProgramCache``,
3. or else traces it (``ProgramBuilder``), reports what looks wrong, and compiles it,
4. places the inputs, transferring those that are committed elsewhere (``InputPlacer``),
5. runs the program (``Executable``),
6. returns the program for the dispatch to remember.
"""

import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import jax
from jax.sharding import Mesh

from pmapx._src import errors, fastpath
from pmapx._src.map import debug_nans, inputs, multiprocess_call, program_cache, stages
from pmapx._src.map.cache_info import CacheInfo, CallStatistics
from pmapx._src.map.inputs import InputPlacer
from pmapx._src.map.options import Options, Reshard, View, check_argnums
from pmapx._src.map.pmapped_function import PmappedFunction
from pmapx._src.map.program import Executable, Program, unused_donations, varying_outputs
from pmapx._src.map.program_builder import ProgramBuilder
from pmapx._src.map.under_trace import is_traced, record_in_trace
from pmapx._src.mesh import trace_context
from pmapx._src.mesh.context_mesh import context_of, on_context_mesh
from pmapx._src.mesh.device_mesh import check_devices
from pmapx._src.multihost import host_local
from pmapx._src.spmd import axes, nesting
from pmapx._src.trees import names
from pmapx._src.trees.signature import Call, Signature

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Pmapped(Protocol[P, R_co]):
    """What ``pmap`` returns: the pmapped function, and its stages.

    Examples:
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
        """Calls the pmapped function."""

    def lower(self, /, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lowers it for these arguments, or their shapes, as ``jax.jit(f).lower`` does."""

    def trace(self, /, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Traces it for these arguments, or their shapes, as ``jax.jit(f).trace`` does."""

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """Returns the shapes and types of the result, without compiling."""

    def cache_info(self) -> CacheInfo:
        """Returns what it traced, compiled and transferred so far."""

    def clear_cache(self) -> None:
        """Drops all programs, and what ``cache_info`` counted."""


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
    """Maps a function over an axis of its arguments, one index of the axis per device.

    The semantics are those of the original ``jax.pmap``: the function sees its arguments without
    the mapped axis, collectives such as ``jax.lax.psum`` work over ``axis_name``, and the results
    are stacked. The cost of a call is that of ``jax.jit(jax.shard_map(...))`` written by hand.

    Examples:
      >>> import jax, jax.numpy as jnp, pmapx
      >>> n = jax.device_count()
      >>> share = pmapx.pmap(lambda x: x / jax.lax.psum(x, "i"), axis_name="i")
      >>> share(jnp.ones(n)).sum()
      Array(1., dtype=float32)

    Args:
      fun: the function to map, of pytrees of arrays; static arguments may be anything hashable.
      axis_name: a name for the mapped axis, any hashable object, for collectives to refer to.
      in_axes: which axis of each positional argument is mapped: an integer (negative ones count
        from the end), None for an argument that is replicated to every device, or a tree prefix of
        these. Keyword arguments are mapped along axis 0.
      out_axes: where the mapped axis goes in each output, likewise; None returns the first
        device's value and is meant for values that are equal on all devices. ``pmapx.AUTO`` is
        None for outputs that are proven equal on all devices and 0 for the others.
      static_broadcasted_argnums: positions of arguments that are compile-time constants.
      devices: the devices to map over, in order; by default all.
      backend: the platform whose devices to use.
      axis_size: the size of the mapped axis, over all processes, if no argument is mapped.
      donate_argnums: positions of arguments whose memory may be reused for results.
      reshard: what to do with an input that is committed to other devices or sharded another way:
        ``"allow"`` transfers it, ``"warn"`` transfers it and warns, ``"error"`` raises.
      oversubscribe: whether an axis with more indices than devices may run several on each.
      compiler_options: options for XLA, as for ``jax.jit``.
      view: what a multi-process call returns: host-local arrays (``"local"``) or global ones
        (``"global"``). Global arrays are accepted in either view.
      check_replicas: whether a multi-process call is compared between the processes before it
        runs: its function, its shapes, and the values of replicated arguments.
      global_arg_shapes: None; the original accepted and ignored it.

    Returns:
      The pmapped function. It also has ``lower``, ``trace``, ``eval_shape``, ``cache_info`` and
      ``clear_cache``.
    """
    if not callable(fun):
        raise errors.NotCallable(fun)
    if global_arg_shapes is not None:
        raise errors.UnknownOption("global_arg_shapes", global_arg_shapes, "None")
    options = Options(
        axis_name=axis_name,
        in_axes=axes.check_axes("in_axes", in_axes),
        out_axes=axes.check_axes("out_axes", out_axes),
        static_argnums=check_argnums("static_broadcasted_argnums", static_broadcasted_argnums, fun),
        donated_argnums=check_argnums("donate_argnums", donate_argnums, fun),
        # As with the original, an empty list is an error of the call only.
        devices=None if devices is None else check_devices(devices, may_be_empty=True),
        backend=backend,
        axis_size=axis_size,
        reshard=reshard,
        oversubscribe=oversubscribe,
        compiler_options=compiler_options,
        view=view,
        check_replicas=check_replicas,
    )
    return cast(Pmapped[P, R], PmapImpl(fun, options).as_function())


class PmapImpl:
    """The implementation of a pmapped function: its dispatch, and the path of a cache miss."""

    def __init__(self, fun: Callable[..., Any], options: Options) -> None:
        self._options = options
        self.statistics = CallStatistics(names.parameter_names(fun))
        self._cache = program_cache.shared_by(fun, options)
        self._builder = ProgramBuilder(fun, options, self.statistics, self._cache)
        function = self._builder.function
        self._inputs = InputPlacer(function, options.reshard, self.statistics)
        self._reader = self._builder.reader
        self.dispatcher = fastpath.Dispatcher(
            function,
            options.static_argnums,
            self.on_cache_miss,
            self._inputs.transfer_known,
            self.run_eagerly,
        )

    def as_function(self) -> PmappedFunction:
        """Returns what the user calls: the dispatch, with a count of its calls."""
        function = PmappedFunction(self._builder, self)
        # A cache that keeps nothing counts its misses in C; a Python frame that counts would cost a
        # small program a tenth of its call. The user gets its bound __call__, without cache_clear.
        counter: Any = functools.lru_cache(maxsize=0)(self.dispatcher.call)
        counted = counter.__call__
        self.statistics.count_calls = lambda: int(counter.cache_info().misses)
        check_static = self._reader.check_static

        def explained(*args: Any, **kwargs: Any) -> Any:
            try:
                result = counted(*args, **kwargs)
            except (TypeError, ValueError):
                check_static(args, kwargs)  # The dispatch hashes them before we see them.
                raise
            # After one good call the frame goes; a later mistake gets JAX's own error.
            function.__call__ = counted
            return result

        self._builder.user_function = weakref.ref(function)
        self.statistics.function = function.__name__
        function.__call__ = explained if self._options.static_argnums else counted
        return function

    def on_cache_miss(self, /, *args: Any, **kwargs: Any) -> tuple[Any, fastpath.Repeatable]:
        """Runs a call that the dispatch does not know; returns its result and what to remember."""
        call = self._reader.read(args, kwargs)
        if is_traced(call):
            return record_in_trace(self._builder, call), None
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return self._run_operations(call), None
        if self._builder.is_multi_process():
            return self._on_multiprocess_miss(call)
        executable = self.find_executable(call)
        leaves, transferred = self._inputs.place(call, executable, executable.in_shardings)
        if trace_context.is_checking_nans():
            result = debug_nans.checked(self._builder, call, lambda: executable.run(leaves))
            return on_context_mesh(result)[0], None
        result, is_same = on_context_mesh(executable.run(leaves))
        donated = self._builder.donated(call.signature)
        inputs.delete_donated(call, transferred, donated)
        if not is_same:
            return result, None
        return result, self._inputs.repeatable(call, executable, transferred, donated)

    def find_executable(self, call: Call) -> Executable:
        """Returns the compiled program of a call, traced and compiled if the cache has none."""
        context = self._builder.context_mesh_for(call.signature)
        key = (call.signature, context, trace_context.trace_context())
        executable = self._cache.executable(key, lambda: self._compile(call.signature, context))
        self.statistics.warn_once(executable.warnings)
        return executable

    def _compile(self, signature: Signature, context: Mesh | None) -> Executable:
        builder = self._builder
        as_shards = multiprocess_call.can_run_as_shards(builder, signature)
        program, traced = builder.trace(signature, context, as_shards=as_shards)
        warnings = (
            *varying_outputs(traced, program.mapping, as_shards=program.as_shards),
            *unused_donations(traced, program, builder.donated(signature)),
        )
        self.statistics.warn_once(warnings)  # Before the compiler, which may take long.
        executable = Executable(program.lower(traced).compile(), program, warnings)
        before = self._cache.swap_last_compiled(self.statistics, signature)
        self.statistics.note_compile(signature, before)
        return executable

    def _on_multiprocess_miss(self, call: Call) -> tuple[Any, fastpath.Repeatable]:
        """Does what ``on_cache_miss`` does where other processes have some of the devices."""
        builder, options = self._builder, self._options
        if options.check_replicas:
            multiprocess_call.check_agreement(builder, call)
        call = multiprocess_call.with_global_shapes(builder, call)
        executable = self.find_executable(call)
        donated = builder.donated(call.signature)
        leaves, can_repeat = multiprocess_call.place(self._inputs, call, executable, donated)
        if trace_context.is_checking_nans():
            global_result = executable.run_jitted(leaves)
            can_repeat = False
        else:
            global_result = executable.run(leaves)
            multiprocess_call.delete_donated(call, donated)
        result = multiprocess_call.to_users_view(builder, executable.program, global_result)
        # A call that is compared between the processes has to miss each time.
        if not can_repeat or options.check_replicas or call.has_narrowed:
            return result, None
        return result, multiprocess_call.repeatable(builder, call, executable, global_result)

    def run_eagerly(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs a call in place of the dispatch: under ``jax.disable_jit``, or to find a NaN."""
        if jax.config.jax_disable_jit or not trace_context.is_checking_nans():  # type: ignore[attr-defined]
            call = self._reader.read(args, kwargs)
            if not is_traced(call):
                return self._run_operations(call)
        return self.on_cache_miss(*args, **kwargs)[0]

    def _run_operations(self, call: Call) -> Any:
        """Runs a call operation by operation."""
        builder = self._builder
        with nesting.entered(None), self.statistics.counting_traces():
            is_multi_process = builder.is_multi_process()
            if is_multi_process:
                call = multiprocess_call.with_global_shapes(builder, call)
            program = builder.build(call.signature, None)
            put: Callable[..., Any] = host_local.to_global if is_multi_process else jax.device_put
            with context_of(program.mesh):
                leaves = map(put, call.leaves, program.in_shardings)
                result = program.mapped(*leaves)
            if is_multi_process:
                return multiprocess_call.to_users_view(builder, program, result)
            return on_context_mesh(result)[0]

    def trace(self, /, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        try:
            return self.traced(*args, **kwargs)[1]
        except (errors.NotEnoughDevices, errors.NestingTooLarge):
            return self._trace_without_devices(*args, **kwargs)

    def traced(self, /, *args: Any, **kwargs: Any) -> tuple[Program, jax.stages.Traced]:
        """Returns the program for these arguments, or their shapes, and its trace."""
        builder = self._builder
        with self._cache.building():
            call = self._reader.read(args, kwargs)
            if builder.is_multi_process():
                call = multiprocess_call.with_global_shapes(builder, call)
            context = builder.context_mesh_for(call.signature)
            program, traced = builder.trace(call.signature, context)
            return program, stages.Traced(traced, builder, program, self._inputs)

    def _trace_without_devices(self, /, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Traces the function where there are too few devices to run it."""

        def recorded(*args: Any, **kwargs: Any) -> Any:
            return record_in_trace(self._builder, self._reader.read(args, kwargs))

        recorded.__name__ = recorded.__qualname__ = self._builder.function
        static_argnums = self._options.static_argnums
        return jax.jit(recorded, static_argnums=static_argnums).trace(*args, **kwargs)

    def lower(self, /, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        with self._cache.building():
            return self.trace(*args, **kwargs).lower()

    def clear_cache(self) -> None:
        self.dispatcher.clear()
        self._cache.clear()
        self.statistics.clear()
        self._inputs.clear()
