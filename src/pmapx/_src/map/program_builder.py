"""From a call's signature to its program: axes resolved, partitioned over a mesh, and traced."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from pmapx._src.map import cache_info
from pmapx._src.map.cache_info import CallStatistics
from pmapx._src.map.options import Options
from pmapx._src.map.program import Program
from pmapx._src.map.program_cache import ProgramCache
from pmapx._src.mesh import context_mesh, device_mesh, process_shards
from pmapx._src.multihost import host_local
from pmapx._src.spmd import auto_out_axes, axes, nesting, partitioning
from pmapx._src.spmd.axes import Axis, LeafNames, MappedAxis, Mapping
from pmapx._src.spmd.axis_names import mesh_axis_name
from pmapx._src.spmd.mapped_body import MappedBody
from pmapx._src.spmd.partitioning import Partitioned
from pmapx._src.trees import names as describe
from pmapx._src.trees.signature import Call, Reader, Signature


def builder_of(function: Any) -> ProgramBuilder | None:
    """Returns the builder of what ``pmapx.pmap`` returned; a wrapper of it has its attributes."""
    builder = getattr(function, "_pmapx", None)
    is_own = isinstance(builder, ProgramBuilder) and builder.user_function() is function
    return builder if is_own else None


class ProgramBuilder:
    """Builds the programs of one pmapped function."""

    def __init__(
        self,
        fun: Callable[..., Any],
        options: Options,
        statistics: CallStatistics,
        cache: ProgramCache,
    ) -> None:
        self.fun = fun
        self.options = options
        self.statistics = statistics
        self.cache = cache
        self.function = describe.function_name(fun)
        self.parameters = statistics.parameters
        self.user_function: Callable[[], Any] = lambda: None  # A weakref to ``PmappedFunction``.
        self.reader = Reader(self.function, self.parameters, options.static_argnums)

    def devices(self) -> tuple[jax.Device, ...]:
        return device_mesh.candidate_devices(self.options.devices, self.options.backend)

    def is_multi_process(self) -> bool:
        return jax.process_count() > 1 and process_shards.is_multi_process(self.devices())

    def context_mesh_for(self, signature: Signature) -> Mesh | None:
        """Returns the context mesh if it has the mapped axis and others."""
        if self.options.devices is not None or self.is_multi_process():
            return None
        context = context_mesh.context_mesh()
        if context is not None and partitioning.has_axis_of(context, self.resolve(signature)):
            return context
        return None

    def trace(
        self, signature: Signature, context: Mesh | None, *, as_shards: bool = False
    ) -> tuple[Program, jax.stages.Traced]:
        """Traces the program of a signature, again if it needs mesh axes for inner pmaps."""
        with self.statistics.counting_traces():
            program = self.program_for(signature, context, as_shards=as_shards)
            with contextlib.suppress(nesting.InnerPmapMet):
                return program, program.trace()
            self.cache.has_inner_pmaps = True
            program = self.program_for(signature, context, as_shards=as_shards)
            return program, program.trace()

    def program_for(
        self, signature: Signature, context: Mesh | None, *, as_shards: bool = False
    ) -> Program:
        key = (signature, context, self.cache.has_inner_pmaps, as_shards)
        return self.cache.program(key, lambda: self.build(signature, context, as_shards=as_shards))

    def build(
        self, signature: Signature, context: Mesh | None, *, as_shards: bool = False
    ) -> Program:
        """Partitions the function for a signature, over the context mesh if one is given.

        ``as_shards`` asks for a program of per-device shards, where that is possible.
        """
        mapping = self.resolve(signature)
        body = self.body(signature, len(mapping.levels))
        if context is not None:
            partitioned = partitioning.partition_along(body, mapping, context)
        else:
            partitioned = partitioning.partition(
                body,
                mapping,
                self.devices(),
                self.inner_axes(signature, mapping),
                may_oversubscribe=self.options.oversubscribe,
                as_shards=as_shards,
            )
        return Program(partitioned, mapping, signature, self.jit(signature, partitioned.mapped))

    def program_in_trace(self, signature: Signature, mapping: Mapping, context: Mesh) -> Program:
        """Returns the program for a trace that is under way on the devices of ``context``."""

        def build() -> Program:
            body = self.body(signature, len(mapping.levels))
            inner_axes = self.inner_axes(signature, mapping)
            mapped = partitioning.map_in_context(body, mapping, context, inner_axes)
            partitioned = Partitioned(context, mapped, (None,) * len(mapping.leaves))
            return Program(partitioned, mapping, signature, self.jit(signature, mapped))

        key = ("in a trace", signature, context, self.cache.has_inner_pmaps)
        return self.cache.program(key, build)

    def resolve(self, signature: Signature) -> Mapping:
        """Resolves the mapped axis of every leaf, and its size; all levels of a pmap of a pmap."""
        options = self.options
        flat_axes, names = self.in_axes(signature)
        size, sized_by = axes.mapped_axis_size(
            flat_axes, signature.leaves, names, options.axis_size
        )
        mesh_axis = mesh_axis_name(options.axis_name)
        outermost = MappedAxis(options.axis_name, mesh_axis, size, flat_axes, options.out_axes)
        if auto_out_axes.is_in(options.out_axes):
            chosen = self.cache.auto_out_axes(signature)
            outermost = dataclasses.replace(outermost, chosen=chosen)
        levels = (outermost, *self._inner_levels(signature, outermost))
        return Mapping(signature.leaves, levels, sized_by, names)

    def in_axes(self, signature: Signature) -> tuple[tuple[Axis, ...], LeafNames]:
        """Returns the mapped axis of every leaf, and the leaves' names."""
        in_axes = self.options.in_axes
        if isinstance(in_axes, tuple) and self.options.static_argnums:
            in_axes = tuple(in_axes[index] for index in signature.positions if index < len(in_axes))
        names = LeafNames(self.function, signature.paths, signature.positions, self.parameters)
        flat_axes = axes.resolve_in_axes(in_axes, signature.tree, names)
        return axes.normalize_in_axes(flat_axes, signature.leaves, names), names

    def global_signature(self, call: Call) -> tuple[Signature, int | None]:
        """Returns the signature with the shapes that the arguments have over all processes.

        Also returns the host-local size of the mapped axis; None if no argument is host-local.
        """
        signature, leaves = call.signature, list(call.signature.leaves)
        flat_axes, names = self.in_axes(signature)
        local_axes = [
            None if self.is_global(leaf) else axis
            for leaf, axis in zip(call.leaves, flat_axes, strict=True)
        ]
        if all(axis is None for axis in local_axes):
            return signature, None
        local_size, sized_by = axes.mapped_axis_size(local_axes, leaves, names, None)
        argument = "axis_size" if sized_by is None else names[sized_by]
        size = self.options.axis_size
        if size is None:
            size = process_shards.global_size(self.function, argument, local_size, self.devices())
        for index, axis in enumerate(local_axes):
            if axis is not None:
                shape = leaves[index].shape
                shape = (*shape[:axis], size, *shape[axis + 1 :])
                leaves[index] = leaves[index]._replace(shape=shape)
        return signature._replace(leaves=tuple(leaves)), local_size

    def is_global(self, leaf: Any) -> bool:
        """Whether an argument is global; a tracer of ``grad`` or ``vmap`` is what the view is."""
        if isinstance(leaf, jax.core.Tracer):
            return self.options.view == "global"
        return host_local.is_global(leaf)

    def _inner_levels(self, signature: Signature, outermost: MappedAxis) -> tuple[MappedAxis, ...]:
        """Returns the axes of the pmap that this is a pmap of, () when it is none."""
        inner = self._inner_pmap()
        if inner is None or self.cache.has_inner_pmaps:
            return ()
        leaves = [
            leaf if axis is None
            else leaf._replace(shape=leaf.shape[:axis] + leaf.shape[axis + 1 :])
            for leaf, axis in zip(signature.leaves, outermost.in_axes, strict=True)
        ]  # fmt: skip
        levels = inner.resolve(signature._replace(leaves=tuple(leaves))).levels
        levels = tuple(
            dataclasses.replace(level, mesh_axis=mesh_axis_name(level.name, depth))
            for depth, level in enumerate(levels, 1)
        )
        mesh_axes = {outermost.mesh_axis, *(level.mesh_axis for level in levels)}
        total = math.prod([outermost.size, *(level.size for level in levels)])
        # Otherwise the inner pmap is met when the body is traced, and handled or refused there.
        has_room = total <= len(self.devices()) and len(mesh_axes) == 1 + len(levels)
        return levels if has_room else ()

    def _inner_pmap(self) -> ProgramBuilder | None:
        """Returns the pmap that this is a pmap of, if it takes the same arguments."""
        inner = builder_of(self.fun)
        if inner is None or inner.options.devices is not None:
            return None
        has_static = self.options.static_argnums or inner.options.static_argnums
        return None if has_static else inner

    def body(self, signature: Signature, depth: int = 1) -> MappedBody:
        """Returns the user's function with its static arguments bound.

        With ``depth`` above 1, that of the pmap that this is a pmap of.
        """
        # The cache outlives this pmapped function, so the body must not keep it alive.
        fun, static_argnums = self.cache.call, self.options.static_argnums
        count = len(static_argnums) + len(signature.positions)

        def with_static(*dynamic: Any, **kwargs: Any) -> Any:
            args: list[Any] = [None] * count
            for index, (_, value) in zip(static_argnums, signature.static, strict=True):
                args[index] = value
            for index, value in zip(signature.positions, dynamic, strict=True):
                args[index] = value
            return fun(*args, **kwargs)

        inner = self._inner_pmap()
        if depth > 1 and inner is not None:
            body, inner_traces = inner.body(signature, depth - 1), inner.statistics.traces

            def count_both() -> None:
                body.on_trace()
                inner_traces.append(None)

            return dataclasses.replace(body, on_trace=count_both)
        return MappedBody(
            call=with_static if static_argnums else fun,
            function=self.function,
            tree=signature.tree,
            on_trace=cache_info.count_trace,
            source=describe.source_of(self.fun),
        )

    def jit(self, signature: Signature, mapped: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the jit of a partitioned function, under the name of the user's."""

        def program(*args: Any, **kwargs: Any) -> Any:
            return mapped(*jax.tree.leaves((args, kwargs)))

        program.__name__ = program.__qualname__ = self.function
        program.__doc__ = getattr(self.fun, "__doc__", None)
        with contextlib.suppress(TypeError, ValueError):  # JAX falls back on numbers for names.
            found = inspect.signature(self.fun)
            parameters = [
                parameter
                for index, parameter in enumerate(found.parameters.values())
                if index not in self.options.static_argnums
            ]
            program.__signature__ = found.replace(parameters=parameters)  # type: ignore[attr-defined]
        describe.name_source(program, describe.source_of(self.fun))
        donated = tuple(
            index
            for index, position in enumerate(signature.positions)
            # A call may have to run again, operation by operation, to find a NaN.
            if position in self.options.donated_argnums and not jax.config.jax_debug_nans  # type: ignore[attr-defined]
        )
        compiler_options = self.options.compiler_options
        return jax.jit(program, donate_argnums=donated, compiler_options=compiler_options)

    def inner_axes(self, signature: Signature, mapping: Mapping) -> partitioning.InnerAxes | None:
        """Discovers inner pmaps, and chooses mesh axes for them; None if none are expected."""
        if not self.cache.has_inner_pmaps:
            return None
        leaves = [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
            for leaf in mapping.leaves
        ]
        outermost = mapping.outermost
        return nesting.choose_inner_axes(
            self.function,
            (outermost.name, outermost.size),
            nesting.discover(self.body(signature), outermost, leaves),
            len(self.devices()),
            may_oversubscribe=self.options.oversubscribe,
            were_passed=self.options.devices is not None,
        )

    def donated(self, signature: Signature) -> list[bool]:
        args, kwargs = signature.tree.children()
        donated: list[bool] = []
        for position, argument in zip(signature.positions, args.children(), strict=True):
            donated += [position in self.options.donated_argnums] * argument.num_leaves
        return donated + [False] * kwargs.num_leaves
