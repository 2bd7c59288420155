"""Parts of states: fields that keep their axis, what is read of them and set, items of tuples."""

from __future__ import annotations

import ast
import re
import weakref
from typing import TYPE_CHECKING

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.codemod.decide.first_shards import chooses_item
from pmapx._src.codemod.replicated.groups import (
    MIXED,
    OTHER,
    READING,
    Abstract,
    Parts,
    Ref,
    has_other,
    refs,
)

if TYPE_CHECKING:
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
    return Ref(tree.element, name in tree.arrays, bool(values.stacked))


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
    is_item = not base.is_leaf and (base.is_tuple or chooses_item(module, node))
    return is_item and not values.maps.evidence.takes_shard(module, node)


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
    names = {arg.arg for arg in (*function.args.posonlyargs, *function.args.args)}
    return node.value.id in names and _is_called_in_traced_code(values, function)


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


def alike(held: Abstract, module: Module, node: ast.AST) -> None:
    """Notes a use of a state that is understood only if all of its fields are alike."""
    for ref in refs(held):
        if not ref.is_field:
            ref.element.unsplit.setdefault(module.place(node), ALIKE)


def replace(values: StackedValues, module: Module, node: ast.Call, base: Ref) -> None:
    """Joins a state with what some of its fields are replaced by, but for stacked ones."""
    base.element.methods.add(node.func.attr)  # type: ignore[attr-defined]
    for keyword in node.keywords:
        held = values.value(module, keyword.value)
        if keyword.arg in values.stacked:
            base.element.fields[str(keyword.arg)] = module.place(node)
            values.escape(held, module, keyword.value, "it is assigned to a stacked field")
            continue
        found = values.graph.joined([held], module.place(node))
        if found is not None:
            values.graph.join(base.element, found.element)
        elif has_other(held):
            base.element.reasons.setdefault(module.place(node), MIXED)


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
