"""The stages of a pmapped function: traced, lowered, compiled, each in the user's terms.

They wrap JAX's own stages and derive from their classes: the structure and the types of the
arguments are those of the user's call, without the mesh that the program is traced for. A compiled
function takes its inputs as a call does: it transfers those that are committed elsewhere, and in a
multi-process program it takes and returns host-local arrays.
"""

from collections.abc import Sequence
from typing import Any

import jax

from pmapx._src import errors, fastpath
from pmapx._src.map import multiprocess_call
from pmapx._src.map.inputs import InputPlacer, delete_donated
from pmapx._src.map.program import Executable, Program
from pmapx._src.map.program_builder import ProgramBuilder
from pmapx._src.mesh.context_mesh import on_context_mesh
from pmapx._src.multihost import host_local
from pmapx._src.trees import names as describe
from pmapx._src.trees.signature import Call, Reader


class _InUsersTerms:
    """What the stages have in common; everything else is left to the stage of JAX.

    The slots of JAX's classes stay empty, so that looking them up ends in ``__getattr__``.
    """

    def __init__(
        self, stage: Any, builder: ProgramBuilder, program: Program, inputs: InputPlacer
    ) -> None:
        self._stage = stage
        self._builder = builder
        self._program = program
        self._inputs = inputs

    def __getattr__(self, name: str) -> Any:
        if name == "_stage":  # Not set yet, while a copy is being made.
            raise AttributeError(name)
        return getattr(self._stage, name)

    @property
    def in_tree(self) -> jax.tree_util.PyTreeDef:
        return self._program.tree

    @property
    def args_info(self) -> Any:
        donated = [info.donated for info in jax.tree.leaves(self._stage.args_info)]
        infos = map(jax.stages.ArgInfo, self._avals(), donated)
        return jax.tree.unflatten(self._program.tree, infos)

    @property
    def in_avals(self) -> Any:
        return jax.tree.unflatten(self._program.tree, self._avals())

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        infos = jax.tree.leaves(self._stage.args_info)
        return tuple(index for index, info in enumerate(infos) if info.donated)

    @property
    def out_info(self) -> Any:
        """The shapes of what the compiled function returns in this process."""
        out_info = self._stage.out_info
        if not self._builder.is_multi_process():
            return out_info
        return multiprocess_call.shapes_in_users_view(self._builder, self._program, out_info)

    def _avals(self) -> list[Any]:
        return [
            jax.core.ShapedArray(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
            for leaf in self._program.mapping.leaves
        ]


class Traced(_InUsersTerms, jax.stages.Traced):
    def lower(self, **options: Any) -> jax.stages.Lowered:
        """Lowers it; the options are those of ``jax.stages.Traced.lower``."""
        lowered = self._program.lower(self._stage, **options)
        return Lowered(lowered, self._builder, self._program, self._inputs)


class Lowered(_InUsersTerms, jax.stages.Lowered):
    def compile(self, *args: Any, **kwargs: Any) -> jax.stages.Compiled:
        """Compiles it; the arguments are those of ``jax.stages.Lowered.compile``."""
        compiled = self._stage.compile(*args, **kwargs)
        return Compiled(compiled, self._builder, self._program, self._inputs)


class Compiled(_InUsersTerms, jax.stages.Compiled):
    """A compiled pmapped function, called without its static arguments."""

    def __init__(
        self,
        compiled: jax.stages.Compiled,
        builder: ProgramBuilder,
        program: Program,
        inputs: InputPlacer,
    ) -> None:
        """Creates a dispatch, so that a call costs what one of JAX's compiled function costs."""
        super().__init__(compiled, builder, program, inputs)
        self._compiled = Executable(compiled, program, ())
        self._donated = [info.donated for info in jax.tree.leaves(compiled.args_info)]
        static_argnums = builder.options.static_argnums
        dynamic = [name for k, name in enumerate(builder.parameters) if k not in static_argnums]
        self._reader = Reader(builder.function, tuple(dynamic), ())
        run_eagerly = lambda *args, **kwargs: self._on_cache_miss(*args, **kwargs)[0]
        self._dispatch = fastpath.Dispatcher(
            builder.function, (), self._on_cache_miss, inputs.transfer_known, run_eagerly
        ).call

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs it on inputs that are transferred as those of a call are."""
        return self._dispatch(*args, **kwargs)

    def _on_cache_miss(self, /, *args: Any, **kwargs: Any) -> tuple[Any, fastpath.Repeatable]:
        """Runs one call; returns its result, and the program if the dispatch may repeat it."""
        call = self._reader.read(args, kwargs)
        if call.signature.tree != self._program.tree:
            difference = describe.tree_difference(self._program.tree, call.signature.tree)
            raise errors.CompiledForAnotherTree(self._builder.function, difference)
        if self._builder.is_multi_process():
            return self._run_multiprocess(call), None
        if any(isinstance(leaf, jax.core.Tracer) for leaf in call.leaves):
            return self._compiled.run(call.leaves), None  # JAX raises: it cannot be traced.
        executable, donated = self._compiled, self._donated
        leaves, transferred = self._inputs.place(call, executable, executable.in_shardings)
        result, is_same = on_context_mesh(executable.run(leaves))
        delete_donated(call, transferred, donated)
        if not is_same:
            return result, None
        return result, self._inputs.repeatable(call, executable, transferred, donated)

    def _run_multiprocess(self, call: Call) -> Any:
        mapping = self._program.mapping
        shardings: Sequence[Any] = self._program.in_shardings
        for index, (leaf, sharding) in enumerate(zip(call.leaves, shardings, strict=True)):
            found, wanted = jax.numpy.shape(leaf), mapping.leaves[index].shape
            if not host_local.is_global(leaf):
                wanted = host_local.local_shape(wanted, sharding)
            if found != wanted:
                argument = mapping.names[index]
                raise errors.CompiledForAnotherShape(
                    self._builder.function, argument, found, wanted
                )
        result = self._compiled.run(list(map(host_local.to_global, call.leaves, shardings)))
        return multiprocess_call.to_users_view(self._builder, self._program, result)
