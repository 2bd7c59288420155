"""Batches followed from where they are split over the devices to the maps that take them.

Values are followed as those of the replicated style are; what differs is which calls begin a group,
and which uses give the same whether the leading axes are ``(n, b)`` or one of ``n * b``.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pmapx._src.analysis import known_names
from pmapx._src.analysis.definitions import Definition, Step
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Bound, Exported, Function, Named, Value
from pmapx._src.codemod.merged import device_counts, nested_batching, splits
from pmapx._src.codemod.merged.splits import Reshaped
from pmapx._src.codemod.replicated.groups import (
    OTHER,
    Abstract,
    Change,
    Element,
    Parts,
    Position,
    Ref,
    has_other,
    refs,
)
from pmapx._src.codemod.replicated.mapped_functions import functions
from pmapx._src.codemod.replicated.maps import Map, Maps
from pmapx._src.codemod.replicated.stacked_flow import Flow
from pmapx._src.source.rewriting.edits import keeping, replacing

NOT_SPLIT = "what is passed here is not seen to be split over the devices"
SHARD_TAKEN = "a shard of it is taken"
_MAP = frozenset({"builtins.map"})
# Each gives the elements of its first argument again.
_PASSING = frozenset(
    {
        "builtins.iter", "builtins.list", "builtins.tuple", "builtins.reversed",
        "itertools.islice", "itertools.cycle", "tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm",
        "tqdm.trange", "tensorflow_datasets.as_numpy",
    }
)  # fmt: skip
_PASSING_METHODS = frozenset(
    {"prefetch", "repeat", "cache", "take", "skip", "with_options", "as_numpy_iterator"}
)
_SAME = frozenset(
    {"jax.numpy.asarray", "jax.numpy.array", "numpy.ascontiguousarray", "jax.device_get"}
)
_SAME_METHODS = frozenset({"astype", "numpy", "_numpy"})
_HARMLESS = frozenset({"size", "nbytes"})
Functions = list[tuple[Module, ast.FunctionDef | ast.Lambda]]


@dataclasses.dataclass(frozen=True, slots=True)
class Stream(Parts):
    """An iterator or a list of values that are alike; its one item stands for each."""


class BatchFlow(Flow):
    """One program, and where its batches go."""

    follows_generators = True

    def __init__(self, modules: Sequence[Module], maps: Maps) -> None:
        # Calls that apply a function to the elements of what else they are given.
        self._applying: dict[ast.AST, list[tuple[Module, ast.Call]]] = {}
        super().__init__(modules, maps)
        self.two_axes: set[Element] = set()
        # Iterators that were prefetched to the devices.
        self.prefetched: dict[ast.AST, tuple[Module, ast.expr]] = {}
        self._find_applied()
        self.traced_too = self._called_when_traced()

    def is_count(self, module: Module, node: ast.expr) -> bool:
        return device_counts.is_count(self, module, node)

    def setting(self, module: Module, node: ast.Attribute) -> list[Definition]:
        """Returns what sets an attribute, none if that is not known."""
        cls = self._own_class(module, node)
        families = [self.maps.family(module, cls)] if cls else self._families_of(module, node.value)
        return [each for name in families for each in self._attributes.get((name, node.attr), ())]

    def _called_when_traced(self) -> set[ast.AST]:
        """Returns the functions that traced functions call, directly or through others."""
        callers: dict[ast.AST, list[tuple[list[ast.AST], bool]]] = {}
        for module in self.modules:
            for node, callees in module.facts.callees.items():
                around = module.functions_around(node)
                is_traced = any(function in self._traced for function in around)
                for function, _ in functions(callees):
                    callers.setdefault(function.node, []).append((around, is_traced))
        found: set[ast.AST] = set()
        while True:
            more = {
                function
                for function, calls in callers.items()
                if any(is_traced or found & set(around) for around, is_traced in calls)
            }
            if more <= found:
                return found
            found |= more

    # Functions that are applied by another.

    def _find_applied(self) -> None:
        for module in self.modules:
            for node in ast.walk(module.source.tree):
                if isinstance(node, ast.Call) and self._is_applying(module, node):
                    for _, function in self._functions(module, node):
                        self._applying.setdefault(function, []).append((module, node))
                        self.called.add(function)

    def _is_applying(self, module: Module, node: ast.Call) -> bool:
        if not node.args or self.is_traced(module, node):
            return False
        called = self._outside_names(module, node)
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr == "map"
        if not called:
            return is_method and len(node.args) == 1
        return called <= _MAP | known_names.TREE_MAP

    def _outside_names(self, module: Module, node: ast.Call) -> frozenset[str]:
        """Returns the names of what a call calls itself, without what that calls in turn."""
        callees = self._callee(module, node)
        return frozenset(fact.name for fact in callees if isinstance(fact, Named))

    def _functions(self, module: Module, node: ast.Call) -> Functions:
        """Returns the functions that a call applies, none if one of them is not known."""
        first = node.args[0]
        if isinstance(first, ast.Lambda):
            return [(module, first)]
        found: list[tuple[Module, ast.AST]] = []
        if isinstance(first, ast.Name):
            found = [(each.module, each.node) for each in self.definitions_of(module, first)]
            if len(found) == 1 and isinstance(found[0][1], ast.Name):
                # A lambda with a name.
                value = getattr(module.parent(found[0][1]), "value", None)
                found = [(module, value)] if isinstance(value, ast.Lambda) else []
            elif any(isinstance(definition, ast.alias) for _, definition in found):
                found = self._exported(module, module.env.find(first.id) or frozenset(), "")
        elif isinstance(first, ast.Attribute):
            cls = self._own_class(module, first)
            if cls is not None:
                found = [(module, part) for part in cls.body if _has_name(part, first.attr)]
            elif isinstance(first.value, ast.Name):
                held = module.env.find(first.value.id) or frozenset()
                found = self._exported(module, held, first.attr)
        if not all(_is_plain(function) for _, function in found):
            return []
        return found  # type: ignore[return-value]

    def _exported(self, module: Module, held: Value, name: str) -> list[tuple[Module, ast.AST]]:
        """Returns the functions of another module that a name, or one in that module, leads to."""
        several = [
            fact
            for each in held
            if isinstance(each, Exported) and bool(each.name) != bool(name)
            for fact in module.project.exported(each.path, each.name or name)
        ]
        return [(fact.module, fact.node) for fact in several if isinstance(fact, Function)]

    def _applied(self, module: Module, node: ast.Call) -> Abstract | None:
        """Returns what the function that a call applies gives, None if it is not known."""
        applied = self._functions(module, node)
        if not applied:
            return None
        self.resolved.add(node.args[0])
        found = []
        for home, function in applied:
            if function in self._traced:
                return None
            if isinstance(function, ast.Lambda):
                found.append(self.value(home, function.body))
            else:
                found.append(self._returns(home, function))
        return self._merged(found, module, node)

    def _returns(self, home: Module, function: ast.FunctionDef) -> Abstract:
        def compute() -> Abstract:
            return self._merged((h for h, _ in self.returned(home, function)), home, function)

        return self._once((function, "returns"), compute)

    def _parameter(self, module: Module, node: ast.arg) -> Abstract:
        function = module.parent(module.parent(node))
        applying = self._applying.get(function, [])
        found = [self._element_given(home, call, function, node) for home, call in applying]
        if not isinstance(function, ast.Lambda) and (
            not applying or (function, node.arg) in self.passed
        ):
            found.append(super()._parameter(module, node))
        return self._merged(found, module, node) if found else OTHER

    def _element_given(
        self, module: Module, call: ast.Call, function: ast.AST, node: ast.arg
    ) -> Abstract:
        """Returns what a call that applies a function gives to one of its parameters."""
        arguments = function.args  # type: ignore[attr-defined]
        names = [*arguments.posonlyargs, *arguments.args]
        if names and names[0].arg == "self":
            names = names[1:]
        index = names.index(node) if node in names else -1
        called = self._outside_names(module, call)
        if not called:
            assert isinstance(call.func, ast.Attribute)
            held = self.value(module, call.func.value)
            if isinstance(held, Stream) and index == 0:
                return held.items[0]
            self.escape(held, module, call, "a function is mapped over it that is not followed")
            return OTHER
        if index < 0 or index + 1 >= len(call.args):
            return OTHER
        held = self.value(module, call.args[index + 1])
        if called <= _MAP:
            return self._element(module, held, call.args[index + 1])
        whole = self.graph.joined([held], module.place(call))
        return OTHER if whole is None else Ref(whole.element, True)

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
        if splits.keeps_order(node, called):
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
        if called <= _MAP:
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
            edits = keeping(module.place(node), module.place(only))
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
                self.escape(each, module, node, "a loop goes over it")
        if called == {"builtins.enumerate"}:
            items = [OTHER, items[0]]
        return Stream((Parts(tuple(items)),))

    def _map(self, module: Module, node: ast.Call) -> Abstract:
        names = self._named(module, node)
        if names and names <= splits.SHARD and len(node.args) == 2:
            held = self.value(module, node.args[1])
            self.escape(held, module, node, "it is split again")
            return Stream((self._split(module, node, splits.only(module, node, node.args[1])),))
        applied = self._applied(module, node)
        if applied is None:
            return self._lost(module, node)
        return Stream((applied,)) if list(refs(applied)) else OTHER

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
                self.escape(each, module, node, "a function is mapped over it that is not followed")
            if not isinstance(function, ast.Lambda):
                self.value(module, function)
            return OTHER
        whole = self.graph.joined([applied], module.place(node))
        return OTHER if whole is None else Ref(whole.element)

    def _tree_map_of_reshape(
        self, module: Module, node: ast.Call, function: ast.Lambda, held: Abstract
    ) -> Abstract | None:
        """``tree_map(lambda x: x.reshape(...), tree)`` that is nothing but ``tree`` then."""
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
            return self._once(node, lambda: reader(self, module, node))
        return super().value(module, node)

    def _binary(self, module: Module, node: ast.BinOp) -> Abstract:
        """Arithmetic with a number, or of values that are split alike, goes example by example."""
        held = [self.value(module, part) for part in (node.left, node.right)]
        numbers = [_is_scalar(part) for part in (node.left, node.right)]
        for one, number in ((held[0], numbers[1]), (held[1], numbers[0])):
            if isinstance(one, Ref) and number:
                return one
        for each in held:
            self.escape(each, module, node, "it is part of a calculation")
        return OTHER

    def returned(self, module: Module, function: ast.AST) -> list[tuple[Abstract, ast.Return]]:
        """Returns what the statements of a function return, or yield."""
        if not _yields(function):
            return super().returned(module, function)
        found: list[tuple[Abstract, ast.Return]] = []
        for part in _own_parts(function):
            if isinstance(part, ast.Yield) and part.value is not None:
                found.append((self.value(module, part.value), part))  # type: ignore[arg-type]
            elif isinstance(part, ast.YieldFrom):
                held = self.value(module, part.value)
                if list(refs(held)):
                    held = self._element(module, held, part.value)
                found.append((held, part))  # type: ignore[arg-type]
        return found

    def _from(self, module: Module, node: ast.Call, callee: Any) -> Abstract:
        held = super()._from(module, node, callee)
        function = callee.function if isinstance(callee, Bound) else callee
        if isinstance(function, Function) and _yields(function.node):
            return Stream((held,)) if list(refs(held)) else OTHER
        return held

    def _lambda(self, module: Module, node: ast.Lambda) -> Abstract:
        if self._is_applied_only(module, node):
            return OTHER
        return super()._lambda(module, node)

    def _is_applied_only(self, module: Module, node: ast.Lambda) -> bool:
        """Tells whether a lambda has a name that is only given to what applies it."""
        applying = {call.args[0] for home, call in self._applying.get(node, ()) if home is module}
        assigned = module.parent(node)
        if not applying or node in self._traced or not isinstance(assigned, ast.Assign):
            return False
        target = assigned.targets[0]
        around = module.functions_around(node)
        scope = around[0] if around else module.source.tree
        return isinstance(target, ast.Name) and all(
            part in applying or not isinstance(part.ctx, ast.Load)
            for part in ast.walk(scope)
            if isinstance(part, ast.Name) and part.id == target.id
        )

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
            self.escape(held, module, node, "it is collected")
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

    def _argument(
        self, module: Module, each: Map, index: int, held: Abstract, arg: ast.expr
    ) -> None:
        position = Position.of(each.made_at, index, is_output=False)
        element = self.graph.element(position, position)
        place = module.place(arg)
        found = list(refs(held))
        for ref in found:
            self.graph.join(element, ref.element)
        if not found or has_other(held):
            element.reasons.setdefault(place, NOT_SPLIT)
        elif each.in_axis(index) != 0:
            element.reasons.setdefault(place, "it is passed where its leading axis is not mapped")


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
    """Tells whether a shape is unpacked for the merge of its two leading axes alone."""
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


def _has_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _is_plain(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef):
        return isinstance(node, ast.Lambda)
    return not node.decorator_list and not _yields(node)


def _yields(function: ast.AST) -> bool:
    return any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in _own_parts(function))


def _own_parts(function: ast.AST) -> Iterable[ast.AST]:
    """Gives the nodes of a function, without those of functions inside it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        part = waiting.pop(0)
        yield part
        if not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(part)


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
