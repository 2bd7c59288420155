"""What names and attributes hold."""

from __future__ import annotations

import ast
import builtins
import dataclasses

from pmapx._src.analysis import known_names
from pmapx._src.analysis.facts import Reference
from pmapx._src.analysis.interpreter import functions
from pmapx._src.analysis.interpreter.frame import Frame, evaluate, note_holder
from pmapx._src.analysis.values import (
    UNKNOWN,
    Bound,
    Class,
    Confidence,
    Dict,
    Donated,
    Elements,
    Exported,
    Fact,
    Function,
    Gradient,
    Instance,
    Items,
    Lowered,
    Mapped,
    Method,
    Named,
    Stacked,
    Value,
    join,
    value,
)

_BUILTINS = {name: value(Named(f"builtins.{name}")) for name in dir(builtins)}


def dotted(node: ast.AST) -> str | None:
    """Returns ``a.b.c`` for such an expression, None for others."""
    if type(node) is ast.Name:
        return node.id
    if type(node) is ast.Attribute:
        # Asked for at every reading, and for each part of a chain.
        known = node.__dict__
        if "dotted" not in known:
            base = dotted(node.value)
            known["dotted"] = None if base is None else f"{base}.{node.attr}"
        path: str | None = known["dotted"]
        return path
    return None


def looked_up(frame: Frame, held: Value) -> Value:
    """Replaces names of other modules by what they hold there."""
    for fact in held:
        if type(fact) is Exported and fact.name:
            return _looked_up(frame, held)
    return held


def _looked_up(frame: Frame, held: Value) -> Value:
    found: list[Value] = []
    for fact in held:
        if isinstance(fact, Exported) and fact.name:
            exported = frame.module.project.exported(fact.path, fact.name)
            deeper = frozenset(f for f in exported if f != fact)
            found.append(looked_up(frame, deeper))
        else:
            found.append(value(fact))
    return join(*found)


def path_value(
    frame: Frame, node: ast.Name | ast.Attribute, is_quiet: bool, is_part: bool = False
) -> Value:
    """A name or a chain of attributes; the chain is one reference, not each part of it."""
    is_name = type(node) is ast.Name
    path = node.id if isinstance(node, ast.Name) else dotted(node)
    held = frame.env.find(path) if path is not None else None
    if held is not None and isinstance(node, ast.Attribute) and path is not None:
        _add_prefixes(frame, node.value, path)
    if held is None:
        held = (
            name_value(frame, node.id)
            if isinstance(node, ast.Name)
            else _evaluate_attribute(frame, node, is_quiet)
        )
    if path is not None and frame.module.project.has_definitions:
        definitions, reaching = frame.module.facts.definitions, frame.env.reaching(path)
        definitions.add_reaching(node, reaching)
        if any(isinstance(each.node, ast.FunctionDef) for each in reaching or ()):
            definitions.add_function(node, frame.env.visible.definitions)
    if not held:
        return held
    held = looked_up(frame, held)
    outside = ""
    for fact in held:
        if type(fact) is Named:
            outside = min(outside or fact.name, fact.name)
        elif type(fact) is Donated and not is_quiet:
            frame.module.facts.add_donated_use(node, fact)
    if is_part:
        note_holder(frame, node, held)
    # A parameter has no meaning of its own, whatever its default.
    elif outside and not (is_name and path is not None and frame.env.is_parameter(path)):
        frame.module.facts.references[node] = Reference(
            node, outside, "name" if is_name else "attribute", frame.guards > 0, len(held) == 1
        )
    return held


def _add_prefixes(frame: Frame, node: ast.expr, path: str) -> None:
    """Records the bindings of ``a`` and ``a.b`` where ``a.b.c`` is read, which has its own."""
    while frame.module.project.has_definitions:
        path = path.rpartition(".")[0]
        frame.module.facts.definitions.add_reaching(node, frame.env.reaching(path))
        if not isinstance(node, ast.Attribute):
            return
        node = node.value


def name_value(frame: Frame, name: str) -> Value:
    """Returns what a name is that no scope binds."""
    module = frame.env.outermost
    for star in module.star_imports:
        held = frame.module.project.exported(star, name)
        is_builtin = name in _BUILTINS and not any(isinstance(f, Exported) for f in held)
        if held and not is_builtin:
            return held
    return _BUILTINS.get(name, UNKNOWN)


def _evaluate_attribute(frame: Frame, node: ast.Attribute, is_quiet: bool) -> Value:
    is_quiet |= node.attr in known_names.METADATA or node.attr == "keys"
    if isinstance(node.value, (ast.Name, ast.Attribute)):
        base = path_value(frame, node.value, is_quiet, is_part=True)
    else:
        base = evaluate(frame, node.value, is_quiet=is_quiet)
    if not base:
        return base
    # Most chains lead outside, to the same at every reading.
    known: tuple[Value, Value] | None = node.__dict__.get("outside")
    if known is not None and known[0] is base:
        return known[1]
    held = join(*[attribute(frame, fact, node.attr) for fact in base])
    if len(base) == 1 and type(next(iter(base))) is Named:
        node.__dict__["outside"] = (base, held)
    return held


def attribute(frame: Frame, fact: Fact, name: str) -> Value:
    """Returns what an attribute of something holds."""
    project = frame.module.project
    if isinstance(fact, Named):
        return project.imported(frame.module.path, f"{fact.name}.{name}")
    if isinstance(fact, Exported):
        return looked_up(frame, project.exported(fact.path, name))
    if isinstance(fact, Instance):
        return _of_instance(frame, fact, name)
    if isinstance(fact, Class):
        return of_class(frame, fact, name, [])
    if isinstance(fact, Stacked):
        if name in known_names.METADATA:
            return value(Method(fact, name))
        part = dataclasses.replace(fact, doubt=Confidence.LOW)
        return value(part, Method(fact, name))
    if isinstance(fact, Gradient):
        return value(fact)
    if isinstance(fact, (Mapped, Lowered, Elements, Dict, Items)):
        return value(Method(fact, name))
    return UNKNOWN


def _of_instance(frame: Frame, instance: Instance, name: str) -> Value:
    held = instance.cls.attributes.get(name, UNKNOWN)
    found = of_class(frame, instance.cls, name, [], has_own=bool(held))
    return join(
        held,
        frozenset(
            Bound(fact, instance)
            if isinstance(fact, Function) and functions.self_name(fact)
            else fact
            for fact in found
        ),
    )


def of_class(
    frame: Frame, cls: Class, name: str, seen: list[Class], *, has_own: bool = False
) -> Value:
    """``has_own`` if the object has the attribute already, whatever a base's methods assign."""
    if name in cls.body:
        return looked_up(frame, cls.body[name])
    if len(seen) < 10:
        for base in cls.bases:
            for fact in looked_up(frame, base):
                if isinstance(fact, Class) and fact not in seen:
                    held = of_class(frame, fact, name, [*seen, cls], has_own=has_own)
                    if not has_own:
                        held = join(held, fact.attributes.get(name, UNKNOWN))
                    if held:
                        return held
                if name == "create" and not seen and fact == Named(known_names.FLAX_STATE):
                    # It makes an object of the class, as a call of that does.
                    return value(cls)
    return UNKNOWN
