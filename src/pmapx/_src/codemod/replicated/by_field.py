"""Parts of states: fields that keep their axis, what is read of them and set, items of tuples."""

from __future__ import annotations

import ast
import collections
import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pmapx._src.analysis.interpreter.frame import Frame
from pmapx._src.analysis.interpreter.lookup import looked_up
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Class, Named
from pmapx._src.codemod.decide import fields
from pmapx._src.codemod.decide.fields import Fields
from pmapx._src.codemod.decide.first_shards import chooses_item
from pmapx._src.codemod.replicated.groups import (
    MIXED,
    OTHER,
    READING,
    SPLIT,
    Abstract,
    Element,
    Parts,
    Ref,
    has_other,
    refs,
)
from pmapx._src.codemod.replicated.mapped_functions import functions, one_class

if TYPE_CHECKING:
    from pmapx._src.codemod.replicated.maps import Map
    from pmapx._src.codemod.replicated.stacked_values import StackedValues

# What the arguments of an array's method may have: numbers, and tuples of them.
_AXES = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.USub, ast.Load)
ALIKE = "it is used here whatever its fields are"


def part_of(
    values: StackedValues, whole: Ref, module: Module, node: ast.AST, name: str = ""
) -> Abstract:
    """Returns a part of a tree, which holds together with all others but stacked fields."""
    whole.element.is_taken_apart = True
    if not whole.is_field and name in values.stacked:
        whole.element.fields[name] = module.place(node)
        return OTHER
    if not name:
        whole.element.is_unpacked = True
        alike(whole, module, node)
    return Ref(whole.element, name in whole.arrays, bool(values.stacked))


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


def is_library(module: Module, node: ast.expr) -> bool:
    """Tells whether a name is that of a library's module or object."""
    found = (module.env.find(node.id) if isinstance(node, ast.Name) else None) or ()
    return bool(found) and all(isinstance(fact, Named) for fact in found)


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
            values.escape(held, module, keyword.value, "it goes into a field that is stacked")
            continue
        found = values.graph.joined([held], module.place(node))
        if found is not None:
            values.graph.join(base.element, found.element)
        elif has_other(held):
            base.element.reasons.setdefault(module.place(node), MIXED)


def constructed(
    values: StackedValues, module: Module, node: ast.Call, cls: Class | None
) -> Abstract:
    """A NamedTuple or dataclass of stacked values is one itself, but for fields that stay so."""
    names = (fields.names_of(cls) or ()) if cls is not None and fields.replacing(cls) else ()
    given = [*zip(names, node.args, strict=False), *((k.arg, k.value) for k in node.keywords)]
    parts = [arg for arg in node.args if not isinstance(arg, ast.Starred)]
    parts += [keyword.value for keyword in node.keywords]
    held = {arg: values.value(module, arg) for arg in parts}
    place = module.place(node)
    is_plain = len(given) == len(parts) == len(node.args) + len(node.keywords)
    is_plain = is_plain and all(name in names for name, _ in given)
    if cls is None or not is_plain or not any(list(refs(each)) for each in held.values()):
        return values.graph.joined(held.values(), place) or OTHER
    if values.stacked.isdisjoint(names):
        found = values.graph.joined(held.values(), place)
        assert found is not None
        found.element.classes[cls.node] = cls
        if any(map(has_other, held.values())):
            values.made_of.update({arg: (str(n), has_other(held[arg])) for n, arg in given})
        return found
    element = values.graph.element(node)
    element.classes[cls.node] = cls
    element.methods.add(fields.replacing(cls))
    for name, arg in given:
        if name in values.stacked:
            element.fields[str(name)] = place
            values.escape(held[arg], module, arg, "it goes into a field that is stacked")
            continue
        for ref in refs(held[arg]):
            # What was stacked together, to be the fields of a state, has no such fields itself.
            own = ref.element
            own.is_part |= not ref.is_part or (own.is_made and own.is_unpacked)
            values.graph.join(element, own)
        if has_other(held[arg]):
            element.reasons.setdefault(place, MIXED)
    return Ref(element)


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
        return dataclasses.replace(held, items=tuple(items))
    if not isinstance(held, Ref) or held.element.is_joined:
        return held
    arguments = function.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if held.element.key == (each,) and each.arg in given:
            return held if held.is_part else values.value(module, given[each.arg])
    return held


def mixed(values: StackedValues) -> frozenset[str]:
    """Returns the fields that stay stacked, by what most states are made of that are not copies."""
    counts: collections.Counter[str] = collections.Counter()
    for name, is_other in values.made_of.values():
        counts[name] += 1 if is_other else -1
    return frozenset(name for name, count in counts.items() if count > 0)


def class_of(states: list[Element]) -> Class | None:
    """Returns the class of states that are all made of its fields, None if others may be, too."""
    classes = {node: cls for each in states for node, cls in each.classes.items()}
    is_copied = any(each.is_made for each in states)
    return next(iter(classes.values())) if len(classes) == 1 and not is_copied else None


def with_class(known: Fields, cls: Class, each: Map, states: list[Element]) -> Fields:
    """Returns fields of a state whose specs are an object of its class."""
    own = [state.position for state in states if state.position is not None]
    taken = sorted(p.index for p in own if p.site == each.key and not p.is_output)
    names = [each.parameters[i] for i in taken if i < len(each.parameters)]
    every = fields.names_of(cls) or ()
    in_order = tuple(name for name in every if name in known.names)
    state = names[0] if names else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.node.name).lower()
    return dataclasses.replace(known, names=in_order, state=state, cls=cls.node.name, every=every)


def is_state(values: StackedValues, held: Parts, module: Module, node: ast.expr) -> None:
    """Notes that what a map gives is a state itself, and not an object with one in a field."""
    assert held.site is not None
    if values.maps.is_settled:
        # Too late: what it gives was followed field by field before.
        values.escape(held, module, node, SPLIT)
    else:
        values.maps.by_key(held.site).is_by_field = False


def class_of_results(each: Map) -> Class | None:
    """Returns the class of what a map gives, if its out_specs can be an object of that."""
    is_plain = each.record is None and type(each.out_axes) is int and each.out_axes == 0
    if not is_plain or not each.is_splittable or not isinstance(each.axis, str):
        return None
    found = one_class(function for function, _ in functions(each.function))
    return found if found is not None and statement_of_map(each, found) is not None else None


def of_results(cls: Class, axes: Sequence[object]) -> set[str] | None:
    """Returns the axes of what a map gives, an object of a class, by those of its fields."""
    every = fields.names_of(cls) or ()
    known = dict(zip(every, axes, strict=True))
    names = tuple(name for name in every if known[name] is not None)
    inner = tuple((n, fields.read(held)) for n, held in known.items() if isinstance(held, set))
    method = fields.replacing(cls)
    return Fields(names, method, "", cls.node.name, every, inner).axes if names else None


def statement_of_map(each: Map, cls: Class) -> ast.stmt | None:
    """Returns the statement that makes a map, if the class of a state has its name there."""
    module, node = each.module, each.node
    held = module.env.find(cls.node.name) or frozenset()
    found = looked_up(Frame(module, module.env), held)
    is_it = bool(found) and all(isinstance(f, Class) and f.node is cls.node for f in found)
    while not isinstance(node, ast.stmt):
        node = module.parent(node)
    is_later = cls.module is module and not module.functions_around(each.node)
    is_seen = not is_later or cls.node.lineno < node.lineno
    return node if is_it and is_seen and fields.is_tree(cls) else None
