"""Parts of states: fields that keep their axis, items of tuples, what only moves such parts."""

from __future__ import annotations

import ast
import re
import weakref
from typing import TYPE_CHECKING

from pmapx._src.analysis import known_names, syntax
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.analysis.syntax import positional
from pmapx._src.analysis.values import Bound, Function
from pmapx._src.codemod.decide import copies, host_arrays
from pmapx._src.codemod.replicated.groups import (
    MIXED,
    NOTHING,
    OTHER,
    READING,
    Abstract,
    Parts,
    Ref,
    has_other,
    refs,
)
from pmapx._src.codemod.replicated.mapped_functions import definition_of
from pmapx._src.codemod.varying.moving import Built, Result, rearranged

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pmapx._src.codemod.replicated.stacked_calls import StackedCalls
    from pmapx._src.codemod.replicated.stacked_values import StackedValues

# What the arguments of an array's method may have: numbers, and tuples of them.
_AXES = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.USub, ast.Load)
_STATE = re.compile(r"register|struct|chex|NamedTuple|Module|PyTree|State")
_MARKED = re.compile(r"\bpytree_node=False|\bstatic=True|\bstatic_field\(")
# By project, with how many files it had when it was read.
_STATIC: weakref.WeakKeyDictionary[Project, tuple[int, frozenset[str]]] = (
    weakref.WeakKeyDictionary()
)
ALIKE = "it is used here regardless of its fields"


def part_of(
    values: StackedValues, tree: Ref, module: Module, node: ast.AST, name: str = ""
) -> Abstract:
    """Returns a part of a tree, which holds together with all others but stacked fields."""
    tree.element.is_taken_apart = True
    if name and not tree.is_leaf and name in _static_fields(module.project):
        return OTHER
    if not tree.is_field and name in values.stacked:
        tree.element.fields[name] = module.place(node)
        return OTHER
    if not name:
        alike(tree, module, node)
    is_leaf, is_part = name in tree.arrays, bool(values.stacked)
    return Ref(tree.element, is_leaf, is_part, host=tree.host)


def got(values: StackedCalls, tree: Abstract, module: Module, node: ast.Call) -> Abstract:
    """Returns what ``getattr(state, "field")`` reads."""
    if isinstance(tree, Ref) and not tree.is_leaf:
        written = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
        return part_of(values, tree, module, node, str(written))
    values.escape(tree, module, node.args[0], "an attribute of it is read")
    return OTHER


def _static_fields(project: Project) -> frozenset[str]:
    """Returns the fields of states that hold no arrays, by names that no other state has."""
    count, known = _STATIC.get(project, (-1, frozenset[str]()))
    if count == len(project.modules):
        return known
    static, others = set[str](), set[str]()
    for module in project.modules.values():
        for cls in module.nodes if module is not None else ():
            around = [*cls.decorator_list, *cls.bases] if isinstance(cls, ast.ClassDef) else []
            text = " ".join(map(ast.unparse, around))
            if not _STATE.search(text):
                continue
            meta = {
                part.value
                for keyword in (k for each in around for k in getattr(each, "keywords", ()))
                if keyword.arg == "meta_fields"
                for part in getattr(keyword.value, "elts", ())
            }
            for part in cls.body:  # type: ignore[attr-defined]
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    own = ast.unparse(part.value) if part.value is not None else ""
                    is_static = part.target.id in meta or bool(_MARKED.search(own))
                    (static if is_static else others).add(part.target.id)
    _STATIC[project] = len(project.modules), frozenset(static - others)
    return _STATIC[project][1]


def takes_item(values: StackedValues, base: Ref, module: Module, node: ast.Subscript) -> bool:
    """Tells whether an index takes an item of a tuple, and not a shard."""
    is_item = not base.is_leaf and (base.is_tuple or _chooses_item(module, node))
    return is_item and not values.maps.evidence.takes_shard(module, node)


def _chooses_item(module: Module, node: ast.Subscript) -> bool:
    """Tells whether ``state[0]`` is an item of a tuple: something is read of it that a shard lacks.

    ``state[0]["w"]``, ``state[0].count``, ``state[0][1].count`` and ``unreplicate(state[0])``.
    """
    above = module.parent(node)
    if isinstance(above, ast.Subscript) and isinstance(module.parent(above), ast.Attribute):
        # An item of an array would be an array, too.
        is_number = isinstance(above.slice, ast.Constant) and type(above.slice.value) is int
        above = module.parent(above) if is_number else above
    if isinstance(above, ast.Attribute):
        return above.attr not in known_names.ARRAY_ATTRIBUTES
    if isinstance(above, ast.Subscript):
        return isinstance(above.slice, ast.Constant) and isinstance(above.slice.value, str)
    if not isinstance(above, ast.Call) or node not in above.args:
        return False
    names = copies.names_called(module, above)
    is_first = bool(names) and names <= copies.UNREPLICATE
    return is_first or (bool(names) and names <= known_names.TREE_MAP and copies.takes_first(above))


def takes_shard(values: StackedValues, base: Ref, module: Module, node: ast.Subscript) -> bool:
    """Tells whether an index surely takes a shard."""
    may_be_tuple = any(element.root is base.element.root for element in values.unpacked)
    return values.maps.takes_shard(module, node, may_be_tuple)


def is_of_array(values: StackedValues, module: Module, node: ast.Attribute) -> bool:
    """Tells whether an attribute is no field of an object of the program, though one has its name.

    ``x.mean(0)`` is a method of an array, and what traced code passes to a function has no axis.
    """
    above = module.parent(node)
    if isinstance(above, ast.Call) and above.func is node and node.attr in READING:
        given = [*above.args, *(keyword.value for keyword in above.keywords)]
        return all(isinstance(part, _AXES) for arg in given for part in ast.walk(arg))
    function = next(iter(module.functions_around(node)), None)
    if not isinstance(function, ast.FunctionDef) or not isinstance(node.value, ast.Name):
        return False
    is_parameter = node.value.id in positional(function.args)
    return is_parameter and _is_called_in_traced_code(values, function)


def _is_called_in_traced_code(values: StackedValues, function: ast.FunctionDef) -> bool:
    """Tells whether traced functions call a function, those that they call, and nothing else."""
    if values.inner is None:
        uses: dict[str, list[tuple[Module, ast.AST]]] = {}
        defined: list[ast.FunctionDef] = []
        for module in values.modules:
            for part in module.nodes:
                name = part.id if isinstance(part, ast.Name) else getattr(part, "attr", "")
                uses.setdefault(name, []).append((module, part))
                if isinstance(part, ast.FunctionDef) and not part.decorator_list:
                    defined.append(part)
        found: set[ast.AST] = set()
        is_more = True
        while is_more:
            new = {
                each for each in defined if each not in found and uses.get(each.name)
                and all(values.is_traced(m, n) or not found.isdisjoint(m.functions_around(n))
                        for m, n in uses[each.name])
            }  # fmt: skip
            found |= new
            is_more = bool(new)
        values.inner = found
    return function in values.inner


def view(held: Ref, module: Module, node: ast.expr) -> None:
    """Notes that an expression takes a shard: of an array of NumPy, a view that may be changed."""
    if held.host and host_arrays.may_change(module, node, held.host == 2):
        held.element.reasons.setdefault(module.place(node), "it may be changed in place here")


def alike(held: Abstract, module: Module, node: ast.AST) -> None:
    """Notes a use of a state that is understood only if all of its fields are alike."""
    for ref in refs(held):
        if not ref.is_field:
            ref.element.unsplit.setdefault(module.place(node), ALIKE)


def replaced(values: StackedValues, module: Module, node: ast.Call, base: Ref) -> Abstract:
    """Joins a state with what some of its fields are replaced by, but for stacked ones.

    ``node`` calls its method, or ``dataclasses.replace`` with it as the first argument.
    """
    function = node.func
    is_method = isinstance(function, ast.Attribute) and values.value(module, function.value) is base
    given = [*node.args[not is_method :], *(keyword.value for keyword in node.keywords)]
    if len(given) > len(node.keywords) or base.is_field:
        several = [base, *(values.value(module, arg) for arg in given)]
        return values.graph.joined(several, module.place(node)) or OTHER
    if is_method:
        base.element.methods.add(function.attr)  # type: ignore[attr-defined]
    for name, value in _fields_given(node):
        held = values.value(module, value)
        if name is None:
            alike(base, module, node)
        if name in values.stacked:
            base.element.fields[str(name)] = module.place(node)
            values.escape(held, module, value, "it is assigned to a stacked field")
            continue
        found = values.graph.joined([held], module.place(node))
        if found is not None:
            values.graph.join(base.element, found.element)
        elif has_other(held):
            base.element.reasons.setdefault(module.place(node), MIXED)
            # It may keep its axis, if the others lose theirs.
            base.element.fields.update({name: module.place(node)} if name else {})
    return base


def _fields_given(node: ast.Call) -> Iterator[tuple[str | None, ast.expr]]:
    """Yields the keywords of a call, also those of ``**{"step": step}``."""
    for keyword in node.keywords:
        table = keyword.value if isinstance(keyword.value, ast.Dict) else ast.Dict([None], [])
        names = [key.value if isinstance(key, ast.Constant) else None for key in table.keys]
        if keyword.arg is None and all(isinstance(name, str) for name in names):
            yield from zip(map(str, names), table.values, strict=True)
        else:
            yield keyword.arg, keyword.value


def as_passed(
    values: StackedValues,
    module: Module,
    given: dict[str | None, ast.expr],
    function: ast.FunctionDef,
    held: Abstract,
) -> Abstract:
    """Returns what a call gives: of a parameter that is returned as it is, what the call passes."""
    if type(held) is Parts:
        items = [as_passed(values, module, given, function, item) for item in held.items]
        return Parts(tuple(items))
    if not isinstance(held, Ref) or held.element.is_joined:
        return held
    arguments = function.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if held.element.key == (each,) and each.arg in given:
            return held if held.is_part else values.value(module, given[each.arg])
    return held


def moved_by(values: StackedCalls, function: Function, name: str) -> Result | None:
    """Returns what a function gives of a parameter, if it moves the parts of a state, and no more.

    Such a function is not read: it takes a state with the axis, and one without, alike.
    """
    node = function.node
    held = {
        each: [values.value(home, arg) for home, arg in values.passed.get((node, each), ())]
        for each in syntax.defaults(node.args)
    }
    found = [each for each in held.get(name, ()) if list(refs(each))]
    is_only = not any(list(refs(e)) for other in held if other != name for e in held[other])
    if not found or not is_only or not all(isinstance(each, Ref) for each in found):
        return None
    result = rearranged(function, name)
    if result is None or not values.stacked:
        return result
    are_fields = {each.is_field for each in found}  # type: ignore[union-attr]
    is_moved = _is_alike(result, values.stacked) if False in are_fields else not _has_object(result)
    return result if is_moved and len(are_fields) == 1 else None


def _has_object(result: Result) -> bool:
    if isinstance(result, tuple):
        return any(map(_has_object, result))
    return isinstance(result, Built)


def _is_alike(result: Result, stacked: Collection[str]) -> bool:
    """Tells whether the fields of a state that keep their axis are, and stay, by themselves."""
    if isinstance(result, tuple):
        return all(_is_alike(each, stacked) for each in result)
    if not isinstance(result, Built):
        return result.isdisjoint({"", *stacked})
    return {*stacked} <= {name for name, _ in result.fields} and all(
        held == {name} if name in stacked else _is_alike(held, stacked)
        for name, held in result.fields
    )


def moved(
    values: StackedCalls,
    module: Module,
    given: Collection[tuple[str | None, ast.expr]],
    function: Function,
) -> Abstract | None:
    """Returns what a call gives of a state whose parts it only moves, None if it does more."""
    for name, arg in given:
        held = values.value(module, arg)
        result = moved_by(values, function, name) if name and isinstance(held, Ref) else None
        if result is not None and isinstance(held, Ref):
            held.element.is_taken_apart = True
            return _as_moved(result, held, is_by_field=bool(values.stacked))
    return None


def _as_moved(result: Result, held: Ref, *, is_by_field: bool) -> Abstract:
    if isinstance(result, tuple):
        return Parts(tuple(_as_moved(each, held, is_by_field=is_by_field) for each in result))
    if isinstance(result, Built):
        held.element.is_rebuilt = True
        return Ref(held.element, host=held.host)
    return Ref(held.element, is_part=is_by_field, host=held.host) if result else NOTHING


def origins(values: StackedCalls, module: Module, node: ast.AST, seen: set[ast.AST]) -> set[object]:
    """Returns where a state has its class from: what builds it, or passes or makes it first."""
    if node in seen:
        return set()
    seen.add(node)
    if isinstance(node, ast.arg):
        return {node}
    if isinstance(node, ast.Name):
        several = [(d.module, d.source or d.node) for d in values.definitions_of(module, node)]
        return {each for home, part in several for each in origins(values, home, part, seen)}
    if not isinstance(node, ast.Call):
        return {node}
    found: set[object] = set()
    for callee in module.facts.callees.get(node, ()):
        target = definition_of(callee) if isinstance(callee, (Function, Bound)) else None
        for name in syntax.defaults(target.node.args) if target is not None else ():
            result = moved_by(values, target, name)  # type: ignore[arg-type]
            if isinstance(result, Built):
                return {result.cls}
        for _, own in values.returned(target.module, target.node) if target is not None else ():
            inner = origins(values, target.module, own.value, seen)  # type: ignore
            found |= {each for each in inner if isinstance(each, ast.ClassDef)}
    parts = [*node.args, *(keyword.value for keyword in node.keywords)]
    parts += [node.func.value] if isinstance(node.func, ast.Attribute) else []
    held = [(part, values.value(module, part)) for part in parts]
    states = [part for part, each in held if isinstance(each, Ref) and not each.is_field]
    found |= {each for part in states for each in origins(values, module, part, seen)}
    return found if states else {*found, node}
