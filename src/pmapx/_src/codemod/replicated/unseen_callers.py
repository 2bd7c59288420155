"""Functions that are passed on as values, so that not all of their calls are seen."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Bound, Class, Exported, Function, Mapped, Named, Place
from pmapx._src.codemod.replicated import wrappers
from pmapx._src.codemod.replicated.groups import Element, Position, refs
from pmapx._src.codemod.replicated.mapped_functions import definition_of
from pmapx._src.codemod.replicated.maps import Map
from pmapx._src.codemod.replicated.stacked_flow import Flow
from pmapx._src.source import files

Reason = tuple[Place, str]
# From where a function is named to where it is called: a table, what returns it, a variable.
MOST_STEPS = 8


def passed_on(flow: Flow) -> dict[Element, Reason]:
    """Returns the elements that code which is not seen may give or take, and where."""
    found: dict[Element, Reason] = {}
    for module in flow.modules:
        for element, reason in _maps_passed_on(flow, module):
            found.setdefault(element, reason)
    for element, reason in (*_functions_passed_on(flow), *_imported_elsewhere(flow)):
        found.setdefault(element, reason)
    return found


def _imported_elsewhere(flow: Flow) -> Iterator[tuple[Element, Reason]]:
    """A module's name may be read by another module, where it is not followed."""
    held: dict[str, list[tuple[ast.AST, Element]]] = {}
    for module in flow.modules:
        for (scope, name), bound in module.facts.definitions.bound.items():
            if scope is module.source.tree:
                found = [(scope, ref.element) for one in bound for ref in refs(flow.defined(one))]
                held.setdefault(name, []).extend(found)
    for module in flow.modules:
        for node in module.nodes:
            name = ""
            if isinstance(node, ast.alias):
                name = node.name
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                known = module.env.find(node.value.id) or frozenset()
                name = node.attr if any(isinstance(f, Exported) for f in known) else ""
            for scope, element in held.get(name, ()):
                if scope is not module.source.tree:
                    yield element, (module.place(node), f"{name} is used in another module")


def _maps_passed_on(flow: Flow, module: Module) -> Iterator[tuple[Element, Reason]]:
    for node, held in module.facts.holders.items():
        mapped = [fact for fact in held if isinstance(fact, Mapped)]
        if not mapped or _is_followed(flow, module, node):
            continue
        for fact in mapped:
            site = flow.maps.get(fact)
            if site is None or _is_replaced(module, node, site):
                continue
            reason = (module.place(node), f"{site.name} is used in a way that cannot be followed")
            count = max([*site.counts, 0])
            for index in range(count):
                position = Position.of(site.made_at, index, is_output=False)
                yield flow.graph.element(position, position), reason
            for index in range(-1, max(site.arity or 0, 0)):
                position = Position.of(site.made_at, index, is_output=True)
                yield flow.graph.element(position, position), reason


def _is_replaced(module: Module, node: ast.AST, site: Map) -> bool:
    """Tells whether a name is the method that is mapped, before the map takes its place."""
    return (
        isinstance(site.node, ast.Call) and site.node.args[:1] == [node] and module is site.module
    )


def _is_followed(flow: Flow, module: Module, node: ast.AST) -> bool:
    """Tells whether what is done with a mapped function is seen: called, named, passed inside."""
    parent = module.parent(node)
    if isinstance(parent, ast.keyword):
        parent = module.parent(parent)
    if isinstance(parent, ast.Call):
        if parent.func is node:
            return parent.func in flow.resolved
        if wrappers.is_padding(module, parent):
            return is_only_called(flow, module, parent)
        callees = module.facts.callees.get(parent, frozenset())
        inside = all(isinstance(fact, (Function, Bound, Class)) for fact in callees)
        return bool(callees) and inside
    if isinstance(parent, (ast.Tuple, ast.List)):
        above = module.parent(parent)
        return isinstance(above, ast.Return) or (
            isinstance(above, ast.Assign)
            and all(isinstance(target, (ast.Tuple, ast.List)) for target in above.targets)
        )
    if isinstance(parent, ast.Attribute):
        # ``step.lower(...)`` is followed as a call.
        return parent in flow.resolved
    if isinstance(parent, ast.Dict):
        is_kept = _is_renamed(flow, module.parent(parent), is_table=True)
        return is_kept or _is_chosen_by_key(flow, module, parent, 0)
    if isinstance(parent, ast.Assign):
        return all(isinstance(target, (ast.Name, ast.Attribute)) for target in parent.targets)
    # A decorator's name is bound by its function.
    is_decorator = isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef))
    return is_decorator or isinstance(
        parent, (ast.AnnAssign, ast.Return, ast.Expr, ast.NamedExpr, ast.Compare)
    )


def _functions_passed_on(flow: Flow) -> Iterator[tuple[Element, Reason]]:
    """A function that is passed on may be called with anything; what it returns is stacked."""
    concerned: dict[ast.AST, list[Element]] = {}
    # What functions return of which no call that is seen uses the result.
    unused: dict[ast.AST, list[tuple[Module, ast.expr]]] = {}
    for (function, name), passed in flow.passed.items():
        if any(part.arg == name for part in flow.cut.intersection(ast.walk(function))):
            continue
        found = [ref.element for home, arg in passed for ref in refs(flow.value(home, arg))]
        concerned.setdefault(function, []).extend(found)
    used = _functions_with_used_results(flow)
    for module in flow.modules:
        for function in module.nodes:
            is_function = isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            if not is_function or not flow.maps.connected.has(module, function):
                continue
            if flow.is_traced(module, function.body[0]):  # type: ignore[attr-defined]
                continue
            for held, statement in flow.returned(module, function):
                assert statement.value is not None
                if function not in flow.called:
                    inner = _returned_from(module, statement.value)
                    if inner is None or inner.node in used:
                        _hand_back(flow, module, statement.value, function)
                        continue
                    for _, own in flow.returned(inner.module, inner.node):
                        assert own.value is not None
                        _hand_back(flow, inner.module, own.value, inner.node)
                elif function in used:
                    found = [ref.element for ref in refs(held)]
                    concerned.setdefault(function, []).extend(found)
                else:
                    concerned.setdefault(function, [])
                    unused.setdefault(function, []).append((module, statement.value))
    by_name: dict[str, list[tuple[ast.AST, list[Element]]]] = {}
    for function, elements in concerned.items():
        if elements or function in unused:
            by_name.setdefault(getattr(function, "name", ""), []).append((function, elements))
    for module in flow.modules:
        for node in module.nodes if by_name else ():
            name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
            if name not in by_name or node in flow.resolved or _is_bound_here(node):
                continue
            if not flow.maps.connected.has(module, node):
                # Another function of that name.
                continue
            parent = module.parent(node)
            is_call = isinstance(parent, ast.Call) and parent.func is node
            if _is_variable(flow, module, node) or (
                isinstance(parent, ast.Attribute) and isinstance(node, ast.Name)
            ):
                continue
            if isinstance(node, ast.Attribute) and is_call:
                # What goes into such a call is followed there.
                continue
            if _is_renamed(flow, parent) or is_only_called(flow, module, node):
                continue
            reason = (module.place(node), f"{name} is used in a way that cannot be followed")
            for function, elements in by_name[name]:
                if not _may_be(flow, module, node, function):
                    continue
                if elements:
                    flow.passed_functions.add(function)
                yield from ((element, reason) for element in elements)
                for home, value in unused.pop(function, ()):
                    _hand_back(flow, home, value, function)


def _hand_back(flow: Flow, module: Module, value: ast.expr, function: ast.AST) -> None:
    """Notes that code which is not seen may take what a function returns."""
    name = function.name  # type: ignore[attr-defined]
    flow.hand_over(module, value, "it is returned to unknown code", f"the caller of {name}")


def _functions_with_used_results(flow: Flow) -> set[ast.AST]:
    """Returns the functions that a call is seen of which does something with the result.

    To return it where no call is seen does nothing with it yet.
    """
    return {
        target.node
        for module in flow.modules
        for call, callees in module.facts.callees.items()
        if isinstance(call, ast.Call) and not _is_left_alone(flow, module, call)
        for callee in callees
        if isinstance(callee, (Function, Bound, Class))
        and (target := definition_of(callee)) is not None
    }


def _is_left_alone(flow: Flow, module: Module, call: ast.Call) -> bool:
    parent = module.parent(call)
    if not isinstance(parent, ast.Return):
        return isinstance(parent, ast.Expr)
    # A file may have a return outside of functions, which does not compile.
    is_called = any(function in flow.called for function in module.functions_around(parent)[:1])
    return not is_called and _returned_from(module, call) is not None


def _returned_from(module: Module, value: ast.expr) -> Function | None:
    """Returns the function of the program whose result another returns as it is."""
    callees = module.facts.callees.get(value, frozenset())
    found = [callee for callee in callees if isinstance(callee, Function)]
    return found[0] if isinstance(value, ast.Call) and len(found) == len(callees) == 1 else None


def _may_be(flow: Flow, module: Module, node: ast.AST, function: ast.AST) -> bool:
    """Tells whether a name may be that of this function, and not of another or of a setting."""
    held = module.facts.holders.get(node, frozenset())
    known = {fact.node for fact in held if isinstance(fact, Function)}
    if known:
        return function in known
    if function in flow.local_functions:
        # Where it becomes an attribute, its name is used.
        around = module.functions_around(node)
        return isinstance(node, ast.Name) and flow.local_functions[function] in around
    if isinstance(node, ast.Name):
        facts = module.env.find(node.id) or frozenset()
        is_bound = bool(facts) and not _is_variable(flow, module, node)
        if is_bound and all(isinstance(fact, Function) for fact in facts):
            return any(fact.node is function for fact in facts if isinstance(fact, Function))
        return True
    is_of_module = function.col_offset == 0  # type: ignore[attr-defined]
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(node, ast.Attribute) or not is_of_module or not isinstance(root, ast.Name):
        return True
    facts = module.env.find(root.id) or frozenset()
    if (facts and all(isinstance(fact, Named) for fact in facts)) or _is_set_before(module, node):
        # Of a library, or what is set above.
        return False
    if root is node.value and facts and all(isinstance(fact, Exported) for fact in facts):
        homes = {_module_of(fact) for fact in facts if isinstance(fact, Exported)}
        return any(_has(flow, path, function) for path in homes)
    # A module's function is no attribute of what a function is given.
    found = flow.definitions_of(module, root)
    return not found or not all(isinstance(each.node, ast.arg) for each in found)


def _is_set_before(module: Module, node: ast.Attribute) -> bool:
    """Tells whether the function around an attribute sets it on every way there."""
    around = [each for each in module.functions_around(node) if isinstance(each, ast.FunctionDef)]
    text = ast.unparse(node)
    lines = [
        each.lineno
        for each in (around[0].body if around else ())
        if isinstance(each, ast.Assign) and text in map(ast.unparse, each.targets)
    ]
    stored = (
        part.lineno
        for part in (ast.walk(around[0]) if lines else ())
        if isinstance(part, ast.Name) and part.id == text.partition(".")[0] and _is_bound_here(part)
    )
    return bool(lines) and max(stored, default=0) < lines[0] < node.lineno


def _has(flow: Flow, path: str, function: ast.AST) -> bool:
    """Tells whether a file may have a function of some module, its own or imported."""
    own = next((each for each in flow.modules if function in each.source.tree.body), None)
    known = next((each for each in flow.modules if each.path == path), None)
    if known is not None:
        return function in known.source.tree.body
    data = files.read_bytes(path)
    if own is None or not isinstance(data, bytes):
        return True
    # A file that is not read could have it from there.
    folder, name = os.path.split(own.path)
    stem = os.path.basename(folder) if name == "__init__.py" else name.removesuffix(".py")
    return own.path == path or stem.encode() in files.imported_words(data)


def _module_of(fact: Exported) -> str:
    """Returns the file of a module that is imported, itself or from its package."""
    folder, name = os.path.split(fact.path)
    is_below = fact.name and name == "__init__.py"
    return os.path.join(folder, f"{fact.name}.py") if is_below else fact.path


def _is_variable(flow: Flow, module: Module, node: ast.AST) -> bool:
    """Tells whether a name is that of a parameter or variable, which no function has here."""
    found = flow.definitions_of(module, node) if isinstance(node, ast.Name) else ()
    return bool(found) and all(isinstance(each.node, (ast.arg, ast.Name)) for each in found)


def _is_renamed(flow: Flow, parent: ast.AST, *, is_table: bool = False) -> bool:
    """Tells whether a function gets another name, ``self.update = update``, that is only called.

    With ``is_table``, it is an item of what gets the name, and only the items of that are called.
    """
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return False
    (target,) = parent.targets
    name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
    uses = [
        (home, node)
        for home, node in flow.loads.get(name, ())
        if flow.maps.connected.has(home, node)
    ]
    if is_table:
        uses = [(home, home.parent(node)) for home, node in uses]
        if not all(isinstance(node, ast.Subscript) for _, node in uses):
            return False
    # ``steps["train"].lower(...)`` is followed as a call.
    return bool(uses) and all(
        flow.resolved & {node, home.parent(node)}
        and isinstance(home.parent(node), (ast.Call, ast.Attribute))
        for home, node in uses
    )


def _is_bound_here(node: ast.AST) -> bool:
    return not isinstance(getattr(node, "ctx", None), ast.Load)


def is_only_called(flow: Flow, module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Tells whether nothing becomes of a function but calls that are followed.

    It may be returned, chosen from a table by its key, or get another name on the way there.
    """
    parent = module.parent(node)
    if depth > MOST_STEPS or isinstance(parent, (ast.Expr, ast.Compare)):
        return depth <= MOST_STEPS
    if isinstance(parent, ast.Call):
        return parent.func is node and node in flow.resolved
    if isinstance(parent, ast.IfExp) and parent.test is not node:
        return is_only_called(flow, module, parent, depth + 1)
    if isinstance(parent, ast.Return):
        calls = _calls_of(flow, module, parent)
        return bool(calls) and all(
            is_only_called(flow, home, call, depth + 1) for home, call in calls
        )
    if isinstance(parent, ast.Dict):
        return _is_chosen_by_key(flow, module, parent, depth)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        (target,) = parent.targets
        local = module.functions_around(parent)
        if isinstance(target, ast.Name) and local:
            uses = [
                (module, part)
                for part in ast.walk(local[0])
                if isinstance(part, ast.Name) and part.id == target.id and not _is_bound_here(part)
            ]
            return all(is_only_called(flow, module, use, depth + 1) for _, use in uses)
    return False


def _calls_of(flow: Flow, module: Module, statement: ast.Return) -> list[tuple[Module, ast.Call]]:
    """Returns the calls of the function that a statement ends, none if it is used otherwise."""
    around = module.functions_around(statement)[0]
    if not isinstance(around, ast.FunctionDef) or around.name in flow.renamed:
        return []
    uses = [use for use in flow.loads.get(around.name, ()) if _may_be(flow, *use, around)]
    calls = [(home, home.parent(use)) for home, use in uses]
    found = [
        (home, call)
        for (home, call), (_, use) in zip(calls, uses, strict=True)
        if isinstance(call, ast.Call) and call.func is use
    ]
    return found if len(found) == len(uses) else []


def _is_chosen_by_key(flow: Flow, module: Module, table: ast.expr, depth: int) -> bool:
    """Tells whether the items of a table of functions are only called, wherever it is used."""
    assigned = module.parent(table)
    if isinstance(assigned, ast.Return) and depth <= MOST_STEPS:
        calls = _calls_of(flow, module, assigned)
        return bool(calls) and all(
            _is_chosen_by_key(flow, home, call, depth + 1) for home, call in calls
        )
    target = assigned.targets[0] if isinstance(assigned, ast.Assign) else None
    if not isinstance(target, ast.Name) or target.id in flow.renamed:
        return False
    for home, use in flow.loads.get(target.id, ()):
        above = home.parent(use)
        if isinstance(above, ast.Subscript) and above.value is use:
            chosen: ast.AST = above
        elif isinstance(above, ast.Attribute) and above.attr in ("get", "keys"):
            chosen = home.parent(above)
            if above.attr == "keys":
                continue
        elif isinstance(above, ast.Compare):
            continue
        else:
            return False
        if not is_only_called(flow, home, chosen, depth + 1):
            return False
    return True
