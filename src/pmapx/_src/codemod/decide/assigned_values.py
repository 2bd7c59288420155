"""What a program assigns to a name, passes for a parameter, and builds a value of."""

from __future__ import annotations

import ast
import dataclasses
import functools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pmapx._src.analysis import known_names
from pmapx._src.analysis.definitions import EACH, LOOPS, Definition, taken
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.analysis.syntax import defaults, given_arguments
from pmapx._src.analysis.values import Bound, Class, Function, Mapped, Place

Given = tuple[Module, ast.expr]
_DEEPEST = 5


@dataclasses.dataclass(slots=True)
class _Found:
    """What the files of a project show, by how many there were when they were read."""

    count: int
    # Of maps by their place, of functions by their definition.
    calls: dict[Place | ast.AST, list[tuple[Module, ast.Call]]]
    passed: dict[tuple[ast.AST, str], list[Given]]
    attributes: dict[str, list[Definition]]


_KNOWN: weakref.WeakKeyDictionary[Project, _Found] = weakref.WeakKeyDictionary()


def block_of(module: Module, node: ast.AST) -> ast.AST:
    """Returns the innermost ``def`` around a node, or the file."""
    around = [each for each in module.functions_around(node) if not isinstance(each, ast.Lambda)]
    return around[0] if around else module.source.tree


def is_in_loop(module: Module, node: ast.AST) -> bool:
    """Tells whether the block around a node may run it more than once."""
    block, above = block_of(module, node), module.parent(node)
    while above is not block:
        if isinstance(above, LOOPS):
            return True
        above = module.parent(above)
    return False


def assigned_values(block: ast.AST, name: str) -> Sequence[ast.expr]:
    """Returns the values that assignments in a block give to a name."""
    return assignments(block).get(name, ())


@functools.lru_cache(maxsize=64)
def assignments(block: ast.AST) -> Mapping[str, Sequence[ast.expr]]:
    """Returns the values that assignments in a block give to names; of a tuple, its part or all."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(block):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            assert isinstance(node, ast.Assign)
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(node.value)
            elif isinstance(target, ast.Tuple):
                parts = node.value.elts if isinstance(node.value, ast.Tuple) else []
                is_same = len(parts) == len(target.elts)
                values = parts if is_same else [node.value] * len(target.elts)
                # The first of a name, as ``_, _ = f()`` has several.
                named: dict[str, ast.expr] = {}
                for part, value in zip(target.elts, values, strict=True):
                    if isinstance(part, ast.Name):
                        named.setdefault(part.id, value)
                for name, value in named.items():
                    found.setdefault(name, []).append(value)
    return found


def may_be_none(module: Module, text: str, node: ast.AST) -> bool:
    """Tells whether a name or a field that is read at a node is set to None, or is so by default.

    ``devices = jax.devices()[:n] if is_small else None``; ``self.devices = devices`` is what the
    parameter may be.
    """
    name = text.rpartition(".")[2]
    values: list[ast.expr | None] = []
    if "." in text:
        for part in module.nodes:
            if isinstance(part, (ast.Assign, ast.AnnAssign)):
                targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                is_of_class = isinstance(module.parent(part), ast.ClassDef)
                found = {getattr(each, "id" if is_of_class else "attr", "") for each in targets}
                values += [part.value] if name in found else []
    else:
        for function in module.functions_around(node) or [module.source.tree]:
            known = defaults(function.args) if hasattr(function, "args") else {}
            values += [known.get(name), *assigned_values(function, name)]
    return any(_may_be_none(module, value) for value in values if value is not None)


def _may_be_none(module: Module, value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=None):
            return True
        case ast.IfExp(body=one, orelse=other):
            return _may_be_none(module, one) or _may_be_none(module, other)
        case ast.Name(id=name):
            known = (
                defaults(function.args).get(name)  # type: ignore[attr-defined]
                for function in module.functions_around(value)
            )
            return any(isinstance(each, ast.Constant) and each.value is None for each in known)
    return False


def calls_of(module: Module, called: Place | ast.AST) -> list[tuple[Module, ast.Call]]:
    """Returns the calls of the map at a place, or of a function."""
    return _found(module.project).calls.get(called, [])


def passed_values(module: Module, function: ast.AST, name: str) -> list[Given]:
    """Returns what the calls of a function of the program pass for a parameter."""
    return _found(module.project).passed.get((function, name), [])


def attribute_values(module: Module, name: str) -> list[Definition]:
    """Returns what sets an attribute of this name, of whatever object or class."""
    return _found(module.project).attributes.get(name, [])


def _found(project: Project) -> _Found:
    known = _KNOWN.get(project)
    if known is None or known.count != len(project.modules):
        known = _KNOWN[project] = _Found(len(project.modules), {}, {}, {})
        for module in project.modules.values():
            if module is not None:
                _read(module, known)
    return known


def _read(module: Module, found: _Found) -> None:
    for call, callee in module.facts.callees.items():
        for fact in callee if isinstance(call, ast.Call) else ():
            if isinstance(fact, Mapped):
                found.calls.setdefault(fact.site, []).append((module, call))  # type: ignore[arg-type]
            elif isinstance(fact, (Function, Bound)):
                function = fact.function if isinstance(fact, Bound) else fact
                found.calls.setdefault(function.node, []).append((module, call))  # type: ignore[arg-type]
                skipped = int(isinstance(fact, Bound))
                for name, arg in given_arguments(call, function.node, skipped):  # type: ignore[arg-type]
                    if name is not None:
                        found.passed.setdefault((function.node, name), []).append((module, arg))
            elif isinstance(fact, Class):
                _read_class_call(module, call, fact, found)  # type: ignore[arg-type]
    for target, definition in module.facts.definitions.assigned.items():
        is_in_class = isinstance(target, ast.Name) and isinstance(
            module.parent(module.parent(target)), ast.ClassDef
        )
        if isinstance(target, ast.Attribute) or is_in_class:
            name = target.attr if isinstance(target, ast.Attribute) else target.id  # type: ignore[attr-defined]
            found.attributes.setdefault(name, []).append(definition)


def _read_class_call(module: Module, call: ast.Call, cls: Class, found: _Found) -> None:
    """Notes what a call of a class passes to ``__init__``, or sets the fields of a dataclass to."""
    made = [n for n in cls.node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    for function in made:
        for name, arg in given_arguments(call, function, 1):
            if name is not None:
                found.passed.setdefault((function, name), []).append((module, arg))
    if not made:
        fields = [n.target.id for n in cls.node.body
                  if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]  # fmt: skip
        given = [*zip(fields, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
        for field, arg in given:
            if field is not None:
                found.attributes.setdefault(field, []).append(Definition(arg, module, arg))


def built_of(module: Module, tree: ast.expr) -> Iterator[Given]:
    """Yields a tree and what it is built of, each once.

    Items, values of names and attributes, results of functions, and what callers pass; not what
    is inside of traced functions.
    """
    seen = set[ast.expr]()
    traced = module.project.jitted | module.project.mapped.keys()
    waiting = [(module.with_definitions, tree, 0)]
    for home, node, depth in waiting:
        if node not in seen:
            seen.add(node)
            yield home, node
            for given, part in _parts(home, node) if depth < _DEEPEST else ():
                # A name that is computed from itself is built of its other values.
                is_other = part not in seen and node not in ast.walk(part)
                if is_other and traced.isdisjoint(given.functions_around(part)):
                    waiting.append((given, part, depth + 1))


def _parts(module: Module, tree: ast.expr) -> Iterator[Given]:
    """Yields what a tree is built of directly."""
    match tree:
        case ast.Name():
            for each in module.facts.definitions.of_name(module, tree):
                yield from _values(each)
        case ast.Attribute(attr=name):
            for each in attribute_values(module, name):
                yield from _values(each) if not each.steps else ()
        case ast.Tuple() | ast.List() | ast.Dict() | ast.IfExp() | ast.Starred():
            for part in ast.iter_child_nodes(tree):
                if isinstance(part, ast.expr):
                    yield module, part
        case ast.Call(args=args, keywords=keywords):
            for function in _called(module, tree):
                yield from _given_back(function, ast.Return)
            for fact in module.facts.callees.get(tree, ()):
                if isinstance(fact, Class):
                    own = [n.value for n in fact.node.body if isinstance(n, ast.AnnAssign)]
                    yield from ((fact.module, value) for value in own if value is not None)
                    yield from ((module, arg) for arg in (*args, *(k.value for k in keywords)))


def _values(definition: Definition) -> Iterable[Given]:
    """Returns what a binding may bind."""
    node, module, source = definition.node, definition.module, definition.source
    step = definition.steps[0] if definition.steps else None
    if isinstance(node, ast.arg):
        return _passed(module, node)
    if source is None or step is None:
        return () if source is None else [(module, source)]
    if step == EACH:
        return _items(module, source)
    is_part = isinstance(source, ast.Tuple) and isinstance(step, tuple)
    part = taken(tuple(source.elts), step) if is_part else None  # type: ignore
    return [(module, part)] if isinstance(part, ast.expr) else ()


def _called(module: Module, call: ast.Call) -> list[Function]:
    facts = module.facts.callees.get(call, ())
    known = [fact.function if isinstance(fact, Bound) else fact for fact in facts]
    return [fact for fact in known if isinstance(fact, Function)]


def _given_back(function: Function, kind: type[ast.Return] | type[ast.Yield]) -> list[Given]:
    """Returns what a function returns, or yields."""
    if isinstance(function.node, ast.Lambda):
        return [(function.module, function.node.body)] if kind is ast.Return else []
    values = [part.value for part in ast.walk(function.node) if isinstance(part, kind)]
    return [(function.module, value) for value in values if value is not None]


def _passed(module: Module, node: ast.arg) -> list[Given]:
    """Returns what calls of the program pass to a parameter, or unpack, and its default."""
    function = module.parent(module.parent(node))
    default = defaults(function.args).get(node.arg)  # type: ignore[attr-defined]
    found = [] if default is None else [(module, default)]
    for home, call in calls_of(module, function):
        found += [(home, arg) for arg in call.args if isinstance(arg, ast.Starred)]
        found += [(home, keyword.value) for keyword in call.keywords if keyword.arg is None]
    return [*passed_values(module, function, node.arg), *found]


def _items(module: Module, node: ast.expr, depth: int = 0) -> list[Given]:
    """Returns what a loop takes of a list, of a generator of the program, or of what wraps one."""
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return [(module, node.elt)]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [(module, each) for each in node.elts]
    inner: list[ast.expr] = []
    found: list[Given] = []
    if isinstance(node, ast.Name):
        inner += assigned_values(block_of(module, node), node.id)
    elif isinstance(node, ast.Call):
        for function in _called(module, node):
            found += _given_back(function, ast.Yield)
        inner += node.args if not found else []
    for each in inner if depth < _DEEPEST else ():
        found += _items(module, each, depth + 1)
    return found


def is_always(
    module: Module, node: ast.expr, names: frozenset[str] = known_names.DEVICE_COUNTS
) -> bool:
    """Returns whether an expression is a result of these functions on every path to it."""
    seen = set[tuple[ast.expr, frozenset[str]]]()
    waiting = [(module.with_definitions, node, names)]
    for home, part, wanted in waiting:
        if (part, wanted) not in seen:
            seen.add((part, wanted))
            found = _paths(home, part, wanted)
            if found is None:
                return False
            waiting += found
    return True


def _paths(
    module: Module, node: ast.expr, names: frozenset[str]
) -> list[tuple[Module, ast.expr, frozenset[str]]] | None:
    """Returns what must be a result of these functions for a value to be one; None if it is not."""
    found = module.facts.results.get(node, frozenset())
    is_result = bool(found) and found <= names
    given: list[Given] | None = None
    match node:
        case ast.IfExp(body=one, orelse=other):
            given = [(module, one), (module, other)]
        case ast.Attribute(attr=name):
            given = _all_bound(attribute_values(module, name))
        case ast.Name():
            several = list(module.facts.definitions.of_name(module, node))
            # What an imported name holds was looked at when it was read.
            own = [each for each in several if not isinstance(each.node, ast.alias)]
            is_known = bool(several) and (is_result or len(own) == len(several))
            given = (_all_bound(own) if own else []) if is_known else None
        case ast.Call(func=ast.Name(id="len"), args=[counted]):
            return [(module, counted, known_names.DEVICES)]
        case ast.Call() if is_result:
            given = []
            for function in _called(module, node):
                given += _given_back(function, ast.Return)
    return None if given is None else [(home, value, names) for home, value in given]


def _all_bound(definitions: Sequence[Definition]) -> list[Given] | None:
    """Returns what several bindings bind; None if that is not known of one, or there is none."""
    found: list[Given] = []
    for each in definitions:
        is_plain = isinstance(each.node, ast.arg) or not each.steps
        values = list(_values(each)) if is_plain else []
        if not values:
            return None
        found += values
    return found or None


def is_used_after(module: Module, node: ast.AST, name: str) -> bool:
    """Tells whether a block may use a name after the statement of a node.

    In a loop and in an inner function it may, until it is assigned again.
    """
    block, statement = block_of(module, node), module.statement(node)
    end, last = statement.end_lineno or 0, 1 << 30
    above: ast.AST = statement
    while above is not block and not isinstance(above, ast.Module):
        around = module.parent(above)
        if isinstance(around, LOOPS):
            return True
        for suite in ("body", "orelse", "finalbody"):
            found = getattr(around, suite, [])
            later = found[found.index(above) + 1 :] if above in found else []
            ends = [each.end_lineno for each in later if name in _targets(each)]
            last = min([last, *ends])
        above = around
    inner = [
        part
        for function in ast.walk(block)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        and function is not block
        for part in ast.walk(function)
    ]
    later = [part for part in ast.walk(block) if end < getattr(part, "lineno", 0) <= last]
    return any(
        isinstance(part, ast.Name) and part.id == name and isinstance(part.ctx, ast.Load)
        for part in [*inner, *later]
    )


def _targets(statement: ast.stmt) -> set[str]:
    """Returns the names that an assignment binds."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    parts = [part for target in targets for part in (target, *getattr(target, "elts", ()))]
    return {part.id for part in parts if isinstance(part, ast.Name)}
