"""Whether a mapped function may return numbers of Python's, which have no axes."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Class, Exported, Function, Named
from pmapx._src.codemod.decide.array_expressions import is_number
from pmapx._src.codemod.decide.assigned_values import assigned_values
from pmapx._src.codemod.forms.mapped_function import MappedFunction

_COUNTS = frozenset(
    {
        "jax.numpy.size", "jax.numpy.ndim", "numpy.size", "numpy.ndim", "jax.lax.axis_size",
        "builtins.bool",
    }
)  # fmt: skip
# These give what they are given, in another container.
_KEEPING = frozenset(
    {"builtins.dict", "builtins.tuple", "builtins.list", "builtins.sum", "dataclasses.replace"}
)
_OF_ITEMS = frozenset({"get", "values", "items", "copy", "replace", "_replace", "pop"})


def may_return_numbers(mapped: MappedFunction | None) -> bool:
    """Returns whether a result may be a number of Python's, which has no axes to add to."""
    if mapped is None:
        return True
    return _Results(mapped.function.module).of(mapped.node)


class _Results:
    """What functions of a program return: whether numbers of Python's may be among it."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._read: set[ast.AST] = set()
        # A name that is computed from itself is what its other values are.
        self._asked: set[tuple[ast.AST, str]] = set()

    def of(self, function: ast.AST) -> bool:
        """Returns whether a function may return a number; once, if it calls itself."""
        if function in self._read:
            return False
        self._read.add(function)
        if isinstance(function, ast.Lambda):
            return self._holds(function.body, function)
        returned = [part.value for part in _parts(function) if isinstance(part, ast.Return)]
        return any(self._holds(value, function) for value in returned if value is not None)

    def _holds(self, node: ast.expr, function: ast.AST) -> bool:
        """Returns whether an expression may be or hold a number."""

        def inside(part: ast.expr) -> bool:
            return self._holds(part, function)

        if is_number(node, function):
            return True
        match node:
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
                return any(map(inside, parts))
            case ast.Starred(value=inner) | ast.UnaryOp(operand=inner):
                return inside(inner)
            case ast.IfExp(body=one, orelse=other):
                return inside(one) or inside(other)
            case ast.BoolOp(values=parts):
                return any(map(inside, parts))
            case ast.BinOp(left=one, right=other):
                return inside(one) and inside(other)
            case ast.Compare(left=one, comparators=others):
                return all(map(inside, (one, *others)))
            case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part) | ast.DictComp(value=part):
                return inside(part) or any(inside(each.iter) for each in node.generators)
            case ast.Name(id=name):
                if name not in _bound(function):
                    return self._is_variable(name)
                is_asked = (function, name) in self._asked
                self._asked.add((function, name))
                return not is_asked and any(map(inside, _given(function, name)))
            case ast.Attribute() | ast.Subscript():
                root: ast.expr = node
                while isinstance(root, (ast.Attribute, ast.Subscript)):
                    root = root.value
                is_own = isinstance(root, ast.Name) and root.id not in _bound(function)
                is_own = is_own or (isinstance(root, ast.Name) and root.id == "self")
                return is_own and self._is_variable(root.id)  # type: ignore[attr-defined]
            case ast.Call():
                return self._called(node, inside)
        return False

    def _called(self, node: ast.Call, inside: Callable[[ast.expr], bool]) -> bool:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        outside = self._module.facts.calls.get(node)
        names = outside.names if outside is not None else frozenset()
        if names & _COUNTS or any(name.startswith("math.") for name in names):
            return True
        if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_ITEMS:
            return any(map(inside, (node.func.value, *given)))
        if names & (known_names.TREE_MAP | _KEEPING):
            return any(map(inside, given))
        if isinstance(node.func, ast.Call):
            # ``jax.value_and_grad(loss, has_aux=True)(params)``
            named = {part.id for part in node.func.args if isinstance(part, ast.Name)}
            return any(getattr(f, "name", "") in named and self.of(f) for f in self._module.nodes)
        for callee in self._definitions(node):
            if isinstance(callee, ast.ClassDef):
                if any(map(inside, given)) or any(map(_is_number_by_default, callee.body)):
                    return True
            elif self.of(callee) or (_gives_back(callee) and any(map(inside, given))):
                return True
        return False

    def _definitions(self, node: ast.Call) -> list[ast.AST]:
        """Returns the functions and classes of the program that a call may be of."""
        held = self._module.facts.callees.get(node, frozenset())
        found: list[ast.AST] = [f.node for f in held if isinstance(f, (Function, Class))]
        name = getattr(node.func, "id", None)
        kinds = (ast.FunctionDef, ast.ClassDef)
        named = (n for n in self._module.nodes if isinstance(n, kinds) and n.name == name)
        return found or list(named)

    def _is_variable(self, name: str) -> bool:
        """Returns whether a name of the code around is no module, function or class."""
        if name == "self":
            return True
        held = self._module.env.find(name)
        kinds = (Named, Exported, Function, Class)
        return not held or not all(isinstance(fact, kinds) for fact in held)


def _parts(function: ast.AST) -> list[ast.AST]:
    """Returns the nodes of a function without those of functions inside of it."""
    found, waiting = [], list(ast.iter_child_nodes(function))
    for node in waiting:
        found.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return found


@functools.lru_cache(maxsize=64)
def _bound(function: ast.AST) -> set[str]:
    parts = _parts(function)
    names = {p.id for p in parts if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Store)}
    arguments = ast.walk(function.args) if hasattr(function, "args") else ()
    inner = {part.name for part in parts if isinstance(part, ast.FunctionDef)}
    return names | inner | {part.arg for part in arguments if isinstance(part, ast.arg)}


def _given(function: ast.AST, name: str) -> list[ast.expr]:
    """Returns what a function assigns to a name, to an item of it, or to a tuple that has it."""
    found = list(assigned_values(function, name))
    for part in _parts(function):
        for target in part.targets if isinstance(part, ast.Assign) else ():
            inner = target.elts if isinstance(target, ast.Tuple) else [target]
            # Items, and tuples within tuples.
            deeper = [each for each in inner if not isinstance(each, ast.Name)]
            named = [n for each in deeper for n in ast.walk(each) if isinstance(n, ast.Name)]
            if name in {each.id for each in named} and isinstance(part, ast.Assign):
                found.append(part.value)
    return found


def _gives_back(function: ast.AST) -> bool:
    """Returns whether a function may return what it is given."""
    arguments = {part.arg for part in ast.walk(function) if isinstance(part, ast.arg)}
    values = [part.value for part in _parts(function) if isinstance(part, ast.Return)]
    values += [function.body] if isinstance(function, ast.Lambda) else []
    return any(isinstance(each, ast.Name) and each.id in arguments for each in values)


def _is_number_by_default(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.AnnAssign) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, (int, float, complex))
