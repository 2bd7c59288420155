"""The programs of a pmapped function, by signature: resolved, laid out, and traced."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from pmapx._src.map import cache_info
from pmapx._src.map.cache_info import Record
from pmapx._src.map.options import Options
from pmapx._src.map.program import Program, jit_of
from pmapx._src.map.program_cache import shared_by
from pmapx._src.mesh import placement, process_shards, trace_context
from pmapx._src.multihost import host_local
from pmapx._src.spmd import auto_out_axes, axes, nesting, partitioning
from pmapx._src.spmd.axes import Axis, LeafNames, MappedAxis, Mapping
from pmapx._src.spmd.mapped_body import Element
from pmapx._src.trees import names as describe
from pmapx._src.trees.signature import Call, Signature


class Programs:
    """Makes and keeps the programs of one function.

    Attributes:
      fun: the function.
      options: what the user said to pmap.
      record: where traces are counted.
      function: the function's name.
      parameters: the names of its positional parameters.
      shared: what it shares with equal maps of the function.
      user_function: returns what the user has of it, if that is still there.
    """

    def __init__(self, fun: Callable[..., Any], options: Options, record: Record) -> None:
        """Starts with none."""
        self.fun = fun
        self.options = options
        self.record = record
        self.function = describe.function_name(fun)
        self.parameters = record.parameters
        self.shared = shared_by(fun, options)
        self.user_function: Callable[[], Any] = lambda: None

    def resolve(self, signature: Signature) -> Mapping:
        """Finds the mapped axis of every leaf, and its size; those of a pmap of a pmap at once."""
        options = self.options
        flat_axes, names = self.in_axes(signature)
        size, sized_by = axes.mapped_axis_size(
            flat_axes, signature.leaves, names, options.axis_size
        )
        mesh_axis = axes.mesh_axis(options.axis_name)
        outermost = MappedAxis(options.axis_name, mesh_axis, size, flat_axes, options.out_axes)
        if auto_out_axes.is_in(options.out_axes):
            # All that lay this signature out find the same, and see what the others found.
            chosen = self.shared.chosen.setdefault(signature, [])
            outermost = dataclasses.replace(outermost, chosen=chosen)
        levels = (outermost, *self.inner_levels(signature, outermost))
        return Mapping(signature.leaves, levels, sized_by, names)

    def in_axes(self, signature: Signature) -> tuple[tuple[Axis, ...], LeafNames]:
        """Returns the mapped axis of every leaf, and the leaves' names."""
        in_axes = self.options.in_axes
        if isinstance(in_axes, tuple) and self.options.static_argnums:
            in_axes = tuple(in_axes[index] for index in signature.positions if index < len(in_axes))
        names = LeafNames(self.function, signature.paths, signature.positions, self.parameters)
        flat_axes = axes.resolve_in_axes(in_axes, signature.tree, names)
        return axes.normalize_in_axes(flat_axes, signature.leaves, names), names

    def over_all_processes(self, call: Call) -> tuple[Signature, int | None]:
        """Returns the signature with the shapes that the arguments have over all processes.

        Also returns how many rows this process passes; None when it passes none of its own.
        """
        signature, leaves = call.signature, list(call.signature.leaves)
        flat_axes, names = self.in_axes(signature)
        local_axes = [
            None if self.is_whole(leaf) else axis
            for leaf, axis in zip(call.leaves, flat_axes, strict=True)
        ]
        if all(axis is None for axis in local_axes):
            return signature, None
        rows, sized_by = axes.mapped_axis_size(local_axes, leaves, names, None)
        argument = "axis_size" if sized_by is None else names[sized_by]
        size = self.options.axis_size
        if size is None:
            size = process_shards.global_size(self.function, argument, rows, self.devices())
        for index, axis in enumerate(local_axes):
            if axis is not None:
                shape = leaves[index].shape
                shape = (*shape[:axis], size, *shape[axis + 1 :])
                leaves[index] = leaves[index]._replace(shape=shape)
        return signature._replace(leaves=tuple(leaves)), rows

    def is_whole(self, leaf: Any) -> bool:
        """Says whether an argument has the rows of all processes.

        What ``grad`` or ``vmap`` follows does not tell where it lies; then the view does.
        """
        if isinstance(leaf, jax.core.Tracer):
            return self.options.view == "global"
        return host_local.is_global(leaf)

    def spans_processes(self) -> bool:
        """Says whether the map runs on devices of other processes too."""
        return jax.process_count() > 1 and process_shards.spans_processes(self.devices())

    def inner_levels(self, signature: Signature, outermost: MappedAxis) -> tuple[MappedAxis, ...]:
        """Returns the axes of the pmap that this is a pmap of, () when it is none."""
        inner = self.mapped_by_inner()
        if inner is None or self.shared.has_inner_pmaps:
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

    def mapped_by_inner(self) -> Programs | None:
        """Returns the pmap that this is a pmap of, if its arguments are simply ours."""
        inner = getattr(self.fun, "_pmapx", None)
        if (
            not isinstance(inner, Programs)
            or inner.user_function() is not self.fun  # A wrapper of it, with its attributes.
            or self.options.static_argnums
            or inner.options.static_argnums
            or inner.options.devices is not None
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
        # What is shared outlives this pmapped function, and must not hold it.
        fun, static_argnums = self.shared.call, self.options.static_argnums
        count = len(static_argnums) + len(signature.positions)

        def with_static(*dynamic: Any, **kwargs: Any) -> Any:
            args: list[Any] = [None] * count
            for index, (_, value) in zip(static_argnums, signature.static, strict=True):
                args[index] = value
            for index, value in zip(signature.positions, dynamic, strict=True):
                args[index] = value
            return fun(*args, **kwargs)

        inner = self.mapped_by_inner()
        if depth > 1 and inner is not None:
            element, inner_traces = inner.element(signature, depth - 1), inner.record.traces

            def count_both() -> None:
                element.on_trace()
                inner_traces.add()

            return dataclasses.replace(element, on_trace=count_both)
        return Element(
            call=with_static if static_argnums else fun,
            function=self.function,
            tree=signature.tree,
            on_trace=cache_info.count_trace,
            source=describe.source_of(self.fun),
        )

    def mesh_around(self, signature: Signature) -> Mesh | None:
        """Returns the mesh around the call if it has the mapped axis and others beside it."""
        if self.options.devices is not None or self.spans_processes():
            return None
        context = placement.context_mesh()
        if context is not None and partitioning.has_room_around(self.resolve(signature), context):
            return context
        return None

    def traced(
        self, signature: Signature, around: Mesh | None, *, as_shards: bool = False
    ) -> tuple[Program, jax.stages.Traced]:
        """Traces the program of a signature, making room on the mesh for pmaps met inside."""
        with self.record.counting_traces():
            program = self.program_for(signature, around, as_shards=as_shards)
            with contextlib.suppress(nesting.InnerPmapMet):
                return program, program.trace()
            self.shared.has_inner_pmaps = True
            program = self.program_for(signature, around, as_shards=as_shards)
            return program, program.trace()

    def program_for(
        self, signature: Signature, around: Mesh | None, *, as_shards: bool = False
    ) -> Program:
        """Returns the program of a signature, laid out now if there is none."""
        key = (signature, around, self.shared.has_inner_pmaps, as_shards)
        program: Program | None = self.shared.programs.get(key)
        if program is None:
            trace_context.watched_context()  # Programs go when JAX's traces do.
            program = self.program(signature, around, as_shards=as_shards)
            self.shared.programs[key] = program
        return program

    def program(
        self, signature: Signature, around: Mesh | None, *, as_shards: bool = False
    ) -> Program:
        """Lays out the program of a signature, on the mesh around the call if that is given.

        ``as_shards`` asks for a program of what each device holds, where there is one.
        """
        mapping = self.resolve(signature)
        element = self.element(signature, len(mapping.levels))
        if around is not None:
            laid_out = partitioning.lay_out_along(element, mapping, around)
        else:
            laid_out = partitioning.lay_out(
                element,
                mapping,
                self.devices(),
                self.inner_axes(signature, mapping) if self.shared.has_inner_pmaps else None,
                may_oversubscribe=self.options.oversubscribe,
                as_shards=as_shards,
            )
        return Program(laid_out, mapping, signature, self.jitted(signature, laid_out.mapped))

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

    def inner_axes(self, signature: Signature, mapping: Mapping) -> partitioning.InnerAxes:
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
            were_passed=self.options.devices is not None,
        )

    def donated(self, signature: Signature) -> list[bool]:
        """Says of each leaf whether it is donated."""
        args, kwargs = signature.tree.children()
        donated: list[bool] = []
        for position, argument in zip(signature.positions, args.children(), strict=True):
            donated += [position in self.options.donated_argnums] * argument.num_leaves
        return donated + [False] * kwargs.num_leaves
