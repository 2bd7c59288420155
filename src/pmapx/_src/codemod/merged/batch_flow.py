"""Batches followed from where they are split over the devices to the maps that take them.

Values are followed as those of the replicated style are; what differs is which calls begin a group,
and which uses give the same whether the leading axes are ``(n, b)`` or one of ``n * b``.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from pmapx._src.analysis import known_names
from pmapx._src.analysis.definitions import Step
from pmapx._src.analysis.module import Module
from pmapx._src.codemod.decide.assigned_values import is_always
from pmapx._src.codemod.merged import nested_batching, splits
from pmapx._src.codemod.merged.applied_functions import MAP, AppliedFunctions, Stream, yields
from pmapx._src.codemod.merged.splits import Reshaped
from pmapx._src.codemod.replicated.groups import (
    OTHER,
    Abstract,
    Change,
    Element,
    Parts,
    Ref,
    refs,
)
from pmapx._src.codemod.replicated.mapped_functions import functions
from pmapx._src.codemod.replicated.maps import Maps
from pmapx._src.source.rewriting.edits import keeping, replacing

SHARD_TAKEN = "a shard of it is taken"
# Each gives the elements of its first argument again.
_PASSING = frozenset(
    {
        "builtins.iter", "builtins.list", "builtins.tuple", "builtins.reversed",
        "itertools.islice", "itertools.cycle", "tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm",
        "tqdm.trange", "tensorflow_datasets.as_numpy",
    }
)  # fmt: skip
_ITERATING = (_PASSING | MAP | known_names.PREFETCH | {"builtins.enumerate", "builtins.zip"}) - {
    "tensorflow_datasets.as_numpy",
    "tqdm.trange",
}
_PASSING_METHODS = frozenset(
    {"prefetch", "repeat", "cache", "take", "skip", "with_options", "as_numpy_iterator"}
)
_SAME = frozenset(
    {"jax.numpy.asarray", "jax.numpy.array", "numpy.ascontiguousarray", "jax.device_get"}
)
_SAME_METHODS = frozenset({"astype", "numpy", "_numpy"})
_HARMLESS = frozenset({"size", "nbytes"})
Functions = list[tuple[Module, ast.FunctionDef | ast.Lambda]]


class BatchFlow(AppliedFunctions):
    """One program, and where its batches go."""

    not_made = "what is passed here is not known to be split over the devices"

    def __init__(self, modules: Sequence[Module], maps: Maps) -> None:
        super().__init__(modules, maps)
        self.two_axes: set[Element] = set()
        # Iterators that were prefetched to the devices.
        self.prefetched: dict[ast.AST, tuple[Module, ast.expr]] = {}

    def is_count(self, module: Module, node: ast.expr) -> bool:
        return is_always(module, node)

    # What a call makes.

    def _call(self, module: Module, node: ast.Call) -> Abstract:
        if any(isinstance(arg, ast.Starred) for arg in node.args[:1]):
            return super()._call(module, node)
        found = splits.split(module, node, self.is_count)
        if found is not None:
            return self._split(module, node, found)
        sizes = nested_batching.sizes(self, module, node)
        if sizes is not None:
            return self._batched(module, node, sizes)
        merged = splits.merge(module, node)
        if merged is not None:
            held = self.value(module, merged.of)
            if isinstance(held, Ref):
                return self._merge(module, node, merged, held)
        called = self._outside_names(module, node)
        if splits.keeps_order(node, called) and (node.args or not called):
            of = node.func.value if not called else node.args[0]  # type: ignore[attr-defined]
            if isinstance(self.value(module, of), Ref):
                for arg in (*node.args, *(k.value for k in node.keywords)):
                    held = OTHER if arg is of else self.value(module, arg)
                    self.escape(held, module, arg, "it is part of a shape")
                return OTHER
        if isinstance(node.func, ast.Attribute) and not called:
            held = self.value(module, node.func.value)
            if isinstance(held, Ref) and node.func.attr in _SAME_METHODS:
                self._arguments(module, node)
                return held
            if isinstance(held, Stream) and node.func.attr in _PASSING_METHODS:
                self._arguments(module, node)
                return held
            if isinstance(held, Stream) and node.func.attr in ("__next__", "next"):
                return held.items[0]
            if self._is_applying(module, node):
                applied = self._applied(module, node)
                if applied is not None and list(refs(applied)):
                    return Stream((applied,))
        return super()._call(module, node)

    def _split(self, module: Module, node: ast.Call, found: Reshaped) -> Abstract:
        held = self.value(module, found.of)
        if found.is_gone:
            self.escape(held, module, node, "it is split again")
        else:
            inside = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            for arg in (*inside, *node.args, *(k.value for k in node.keywords)):
                if arg is not found.of:
                    self.escape(self.value(module, arg), module, arg, "it is part of a shape")
        element = self.graph.element(node)
        element.is_made = True
        element.changes[node] = Change(module, "merge", node, found.of, edits=found.edits)
        return Ref(element)

    def _batched(self, module: Module, node: ast.Call, sizes: nested_batching.Sizes) -> Abstract:
        """A pipeline that batches by the number of devices last."""
        for arg in (*node.args, *(k.value for k in node.keywords)):
            self.escape(self.value(module, arg), module, arg, "it is a size")
        element = self.graph.element(node)
        for home, written in sizes:
            # All pipelines of the same sizes change with these.
            size = self.graph.element(written)
            size.is_made = True
            size.changes[written] = nested_batching.change(home, written)
            self.graph.join(element, size)
        return Stream((Ref(element),))

    def _name(self, module: Module, node: ast.Name) -> Abstract:
        found = list(self.definitions_of(module, node))
        loops = [
            (loop.lineno, loop.end_lineno or 0)
            for each in found
            if isinstance(each.source, ast.Call)
            and (loop := nested_batching.batching_loop(module, each.source)) is not None
        ]
        if loops:
            # A loop over sizes runs: what the name held before it is gone.
            first = max(line for line, _ in loops)
            found = [each for each in found if getattr(each.node, "lineno", 0) >= first]
        return self._all_defined(found, module, node) if found else OTHER

    def _merge(self, module: Module, node: ast.Call, found: Reshaped, held: Ref) -> Abstract:
        change = Change(module, "merge", node, found.of, edits=found.edits)
        held.element.changes[node] = change
        if found.has_two_axes:
            self.two_axes.add(held.element)
        return OTHER

    def _made(self, module: Module, node: ast.Call, tree: ast.expr, *_: Any, **__: Any) -> Abstract:
        self.escape(self.value(module, tree), module, node, "it is replicated")
        return OTHER

    def _first(self, module: Module, node: ast.Call, tree: ast.expr, around: str = "") -> Abstract:
        self.escape(self.value(module, tree), module, node, SHARD_TAKEN)
        return OTHER

    def _outside(self, module: Module, node: ast.Call, called: frozenset[str]) -> Abstract:
        only = node.args[0] if node.args and not isinstance(node.args[0], ast.Starred) else None
        if only is None:
            return super()._outside(module, node, called)
        if called <= MAP:
            return self._map(module, node)
        if called <= known_names.TREE_MAP and len(node.args) > 1:
            return self._tree_map(module, node)
        held = self.value(module, only)
        if called <= _SAME and isinstance(held, Ref):
            self._arguments(module, node)
            return held
        if not isinstance(held, Stream):
            if called <= {"builtins.enumerate", "builtins.zip"}:
                return self._zip(module, node, called)
            return super()._outside(module, node, called)
        self._arguments(module, node)
        if called <= known_names.PREFETCH:
            edits = self.iterated(module, node, only).edits
            for ref in refs(held):
                ref.element.changes[node] = Change(module, "merge", node, only, edits=edits)
            self.prefetched[node] = (module, only)
            return held
        if called <= _PASSING:
            return held
        if called == {"builtins.next"}:
            return held.items[0]
        if called <= {"builtins.enumerate", "builtins.zip"}:
            return self._zip(module, node, called)
        return super()._outside(module, node, called)

    def _zip(self, module: Module, node: ast.Call, called: frozenset[str]) -> Abstract:
        held = [self.value(module, arg) for arg in node.args]
        if not any(isinstance(each, Stream) for each in held):
            return super()._outside(module, node, called)
        items = [each.items[0] if isinstance(each, Stream) else OTHER for each in held]
        for each in held:
            if not isinstance(each, Stream):
                self.escape(each, module, node, "a loop iterates over it")
        if called == {"builtins.enumerate"}:
            items = [OTHER, items[0]]
        return Stream((Parts(tuple(items)),))

    def _map(self, module: Module, node: ast.Call) -> Abstract:
        names = self._named(module, node)
        if names and names <= splits.SHARD and len(node.args) == 2:
            held = self.value(module, node.args[1])
            self.escape(held, module, node, "it is split again")
            return Stream((self._split(module, node, self.iterated(module, node, node.args[1])),))
        applied = self._applied(module, node)
        if applied is None:
            return self._lost(module, node)
        return Stream((applied,)) if list(refs(applied)) else OTHER

    def is_map(self, module: Module, node: ast.Call) -> bool:
        return self._outside_names(module, node) == MAP

    def iterated(self, module: Module, node: ast.Call, kept: ast.expr) -> Reshaped:
        """Replaces an iterator over an argument, as one that ``next`` takes, by the argument."""
        found = splits.only(module, node, kept)
        inner: ast.AST = node
        above = module.parent(node)
        while isinstance(above, ast.Call) and inner in above.args:
            called = self._outside_names(module, above)
            if not called or not called <= _ITERATING:
                break
            if not called <= known_names.PREFETCH:
                return found
            above, inner = module.parent(above), above
        is_loop = isinstance(above, (ast.For, ast.comprehension)) and above.iter is inner
        if is_loop or self._is_iterator(module, kept):
            return found
        edits = keeping(module.place(node), module.place(kept), "iter(", ")")
        return dataclasses.replace(found, edits=edits)

    def _is_iterator(self, module: Module, node: ast.expr, steps: int = 0) -> bool:
        if isinstance(node, ast.Name) and steps < 4:
            bound = list(self.definitions_of(module, node))
            return bool(bound) and all(
                each.source is not None
                and not each.steps
                and self._is_iterator(each.module, each.source, steps + 1)
                for each in bound
            )
        if isinstance(node, ast.GeneratorExp) or not isinstance(node, ast.Call):
            return isinstance(node, ast.GeneratorExp)
        called = self._outside_names(module, node)
        callees = self._callee(module, node)
        if called:
            return called <= _ITERATING - {"builtins.list", "builtins.tuple"}
        return bool(callees) and all(yields(f.node) for f, _ in functions(callees))

    def _named(self, module: Module, node: ast.Call) -> frozenset[str]:
        """Returns the outside function that a call applies, by its name."""
        reference = module.facts.references.get(node.args[0])
        return frozenset({reference.name} if reference is not None else ())

    def _tree_map(self, module: Module, node: ast.Call) -> Abstract:
        function, trees = node.args[0], node.args[1:]
        held = [self.value(module, tree) for tree in trees]
        named = self._named(module, node)
        if named and len(trees) == 1 and named <= splits.SHARD:
            return self._split(module, node, splits.only(module, node, trees[0]))
        if named and len(trees) == 1 and named <= _SAME | {"numpy.asarray", "numpy.array"}:
            return held[0]
        if isinstance(function, ast.Lambda) and len(trees) == 1:
            short = self._tree_map_of_reshape(module, node, function, held[0])
            if short is not None:
                return short
        if any(not isinstance(each, Ref) and list(refs(each)) for each in held):
            held = [self.graph.joined([each], module.place(node)) or OTHER for each in held]
        applied = None if node.keywords else self._applied(module, node)
        if applied is None:
            for each in held:
                self.escape(each, module, node, "an unknown function is mapped over it")
            if not isinstance(function, ast.Lambda):
                self.value(module, function)
            return OTHER
        merged = self.graph.joined([applied], module.place(node))
        return OTHER if merged is None else Ref(merged.element)

    def _tree_map_of_reshape(
        self, module: Module, node: ast.Call, function: ast.Lambda, held: Abstract
    ) -> Abstract | None:
        """``tree_map(lambda x: x.reshape(...), tree)`` that is then just ``tree``."""
        body, parameters = function.body, function.args.args
        if not isinstance(body, ast.Call) or len(parameters) != 1:
            return None
        tree = node.args[1]
        found = splits.split(module, body, self.is_count)
        if found is not None and found.is_gone and _is_name(found.of, parameters[0]):
            return self._split(module, node, splits.only(module, node, tree))
        merged = splits.merge(module, body)
        if merged is None or not _is_name(merged.of, parameters[0]) or not isinstance(held, Ref):
            return None
        has_two_axes = merged.has_two_axes
        short = dataclasses.replace(splits.only(module, node, tree), has_two_axes=has_two_axes)
        return self._merge(module, node, short, held)

    # Functions that yield.

    def value(self, module: Module, node: ast.expr) -> Abstract:
        """Returns what an expression is; what is yielded goes to the callers of a generator."""
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            if node.value is not None:
                self.value(module, node.value)
            return OTHER
        reader = _READERS.get(type(node))
        if reader is not None:
            return self._once(node, reader, self, module, node)
        return super().value(module, node)

    def _binary(self, module: Module, node: ast.BinOp) -> Abstract:
        """Arithmetic with a number, or of values that are split alike, goes example by example."""
        held = [self.value(module, part) for part in (node.left, node.right)]
        numbers = [_is_scalar(part) for part in (node.left, node.right)]
        for one, number in ((held[0], numbers[1]), (held[1], numbers[0])):
            if isinstance(one, Ref) and number:
                return one
        for each in held:
            self.escape(each, module, node, "it is used in a calculation")
        return OTHER

    def _comprehension(self, module: Module, node: Any) -> Abstract:
        for generator in node.generators:
            self.value(module, generator.iter)
            for test in generator.ifs:
                self.condition(module, test)
        if isinstance(node, ast.DictComp):
            self.escape(self.value(module, node.key), module, node.key, "it is a key")
            return self.graph.joined([self.value(module, node.value)], module.place(node)) or OTHER
        held = self.value(module, node.elt)
        if isinstance(node, ast.SetComp):
            self.escape(held, module, node, "it is stored in a container")
            return OTHER
        return Stream((held,)) if list(refs(held)) else OTHER

    # What is done with a part of a value.

    def _part(
        self, module: Module, held: Abstract, step: Step, target: ast.AST, source: ast.expr
    ) -> Abstract:
        if isinstance(held, Stream) and isinstance(step, tuple):
            return held.items[0]
        return super()._part(module, held, step, target, source)

    def _subscript(self, module: Module, node: ast.Subscript) -> Abstract:
        base = self.value(module, node.value)
        if isinstance(base, Stream):
            self.escape(self.value(module, node.slice), module, node.slice, "it is an index")
            return base if isinstance(node.slice, ast.Slice) else base.items[0]
        is_name = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        if isinstance(base, Ref) and not (is_name and not base.is_leaf):
            self.escape(self.value(module, node.slice), module, node.slice, "it is an index")
            self.escape(base, module, node, SHARD_TAKEN)
            return OTHER
        return super()._subscript(module, node)

    def _attribute(self, module: Module, node: ast.Attribute) -> Abstract:
        if node.attr in _HARMLESS and isinstance(self.value(module, node.value), Ref):
            return OTHER
        if node.attr == "shape":
            base = self.value(module, node.value)
            later = _later_dimensions(module, node)
            if isinstance(base, Ref) and later is not None:
                number = ast.literal_eval(later)
                edits = (replacing(module.place(later), str(number - 1)),)
                base.element.changes[later] = Change(module, "merge", later, later, edits=edits)
                return OTHER
            if isinstance(base, Ref) and _is_for_merge(module, node):
                return OTHER
        return super()._attribute(module, node)


def _later_dimensions(module: Module, node: ast.Attribute) -> ast.expr | None:
    """Returns the 2 of ``x.shape[2:]`` or ``x.shape[2]``, or a greater number."""
    parent = module.parent(node)
    if not isinstance(parent, ast.Subscript) or parent.value is not node:
        return None
    chosen = parent.slice
    if isinstance(chosen, ast.Slice):
        if chosen.upper is not None or chosen.step is not None or chosen.lower is None:
            return None
        chosen = chosen.lower
    is_later = isinstance(chosen, ast.Constant) and type(chosen.value) is int and chosen.value > 1
    return chosen if is_later else None


def _is_for_merge(module: Module, node: ast.Attribute) -> bool:
    """Returns whether a shape is unpacked for the merge of its two leading axes alone."""
    parent, around = module.parent(node), module.functions_around(node)
    return isinstance(parent, ast.Assign) and any(
        isinstance(part, ast.Call) and splits.unpacked_shape(module, part) is parent
        for part in ast.walk(around[0] if around else parent)
    )


def _is_name(node: ast.expr, parameter: ast.arg) -> bool:
    return isinstance(node, ast.Name) and node.id == parameter.arg


def _is_scalar(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant) and type(inner.value) in (int, float, bool)


_READERS: dict[type[ast.expr], Callable[[BatchFlow, Module, Any], Abstract]] = {
    ast.BinOp: BatchFlow._binary,
    ast.Name: BatchFlow._name,
    ast.Subscript: BatchFlow._subscript,
    ast.Attribute: BatchFlow._attribute,
    ast.ListComp: BatchFlow._comprehension,
    ast.SetComp: BatchFlow._comprehension,
    ast.GeneratorExp: BatchFlow._comprehension,
    ast.DictComp: BatchFlow._comprehension,
    ast.Lambda: BatchFlow._lambda,
}
