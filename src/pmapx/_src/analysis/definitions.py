"""Which bindings reach each use of a name, so that a value can be followed from maker to use.

Recorded for projects that ask for it: ``migrate`` edits every place that a value goes through, and
must miss none. Within a function, the bindings that reach a use are those on the paths to it; from
outside, a name or an attribute has all that was ever bound to it.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pmapx._src.analysis.module import Module

# Steps from an expression to what a target gets: one of those that it iterates over, an
# unknown part of it, or (index, count) for one of several targets. With a starred target, the
# count is that of the others, negative; the starred one has the number of those after it, too.
EACH = "each"
OPAQUE = "opaque"
Step = str | tuple[int, ...]


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Definition:
    """One binding of a name or an attribute.

    ``node`` is the target, the parameter, or what else binds the name. Its value comes from
    ``source``, if any, by ``steps``.
    """

    node: ast.AST
    module: Module
    source: ast.expr | None = None
    steps: tuple[Step, ...] = ()


Reaching = frozenset[Definition]
# What runs its body more than once.
LOOPS = (
    ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip


def taken(items: tuple[Any, ...], step: tuple[int, ...]) -> Any:
    """Returns what a target gets of several items, None if there are not as many as it needs.

    >>> [taken(("a", "b", "c"), step) for step in ((0, 3), (-1, -1), (0, -1, 1), (0, 2))]
    ['a', 'c', ('a', 'b'), None]
    """
    index, count, *after = step
    if len(items) < -count if count < 0 else len(items) != count:
        return None
    return items[index : len(items) - after[0]] if after else items[index]


class Definitions:
    """The bindings of one module."""

    def __init__(self) -> None:
        self.reaching: dict[ast.AST, Reaching] = {}
        self._from_elsewhere: set[ast.AST] = set()
        self.assigned: dict[ast.AST, Definition] = {}
        # All that a function, class or module ever binds to a name.
        self.bound: dict[tuple[ast.AST, str], set[Definition]] = {}
        # Names that a function inside binds by ``global`` or ``nonlocal``.
        self.rebound: set[tuple[ast.AST, str]] = set()
        # What had been bound in the scope around a function when it was made, or named.
        self.around: dict[ast.AST, dict[str, Reaching]] = {}
        self._calls: dict[ast.AST, tuple[ast.Call, ...]] = {}
        # What an object's own methods leave in its attributes, by class and attribute.
        self.published: dict[tuple[ast.ClassDef, str], set[Definition]] = {}

    def add_reaching(self, node: ast.AST, found: Reaching | None) -> None:
        """Notes what reaches a use; one read again, as in a loop, keeps all.

        None is for a use of what is bound elsewhere: any binding may reach that.
        """
        if found is None:
            self._from_elsewhere.add(node)
        else:
            self.reaching[node] = self.reaching.get(node, frozenset()) | found
        if node in self._from_elsewhere:
            self.reaching.pop(node, None)

    def add_function(self, node: ast.AST, scope: Mapping[str, Reaching]) -> None:
        """Notes what reaches a function where it is made; one made again keeps all."""
        known = self.around.get(node, {})
        more = {name: held | known.get(name, frozenset()) for name, held in scope.items()}
        self.around[node] = {**known, **more}

    def of_name(self, module: Module, node: ast.Name) -> Iterable[Definition]:
        """Returns the bindings that a name may have its value from."""
        functions = module.functions_around(node)
        scopes = [*functions, module.source.tree]
        reaching = self.reaching.get(node)
        if reaching is not None and (scopes[0], node.id) not in self.rebound:
            return reaching
        for inner, scope in zip([None, *functions], scopes, strict=True):
            if (scope, node.id) in self.bound:
                at_calls = self._bound_at_calls(module, inner, scope, node)
                return at_calls or self._seen_from(module, inner, scope, node.id)
        return ()

    def _bound_at_calls(
        self, module: Module, inner: ast.AST | None, scope: ast.AST, node: ast.Name
    ) -> set[Definition] | None:
        """Returns what a function sees that only its own scope calls; None if others may."""
        if module.functions_around(node)[:1] != [inner] or (scope, node.id) in self.rebound:
            return None
        assert inner is not None
        if inner not in self._calls:
            self._calls[inner] = _calls_of(module, inner, scope, self.bound)
        found: set[Definition] = set()
        for call in self._calls[inner]:
            held = self.around.get(call.func, {}).get(node.id)
            if held is None:
                return None
            # Its arguments may bind the name as well.
            inside = module.place(call)
            bound = self.bound[scope, node.id]
            found |= {*held, *(d for d in bound if module.place(d.node).is_inside(inside))}
        return found

    def _seen_from(
        self, module: Module, inner: ast.AST | None, scope: ast.AST, name: str
    ) -> Iterable[Definition]:
        """Returns what a function inside may see: what was bound when it was made, or is later."""
        found, made = self.bound[scope, name], self.around.get(inner, {}).get(name)  # type: ignore[arg-type]
        if inner is None or made is None or (scope, name) in self.rebound:
            return found
        at, loop, above = module.place(inner), None, module.parent(inner)
        while above is not scope:
            loop = above if isinstance(above, LOOPS) else loop
            above = module.parent(above)
        # What a loop around both binds is bound again after the function is made.
        return {
            each
            for each in found
            if each in made
            or (place := module.place(each.node)).line > at.line
            or (loop is not None and place.is_inside(module.place(loop)))
        }


def _calls_of(
    module: Module, function: ast.AST, scope: ast.AST, bound: Mapping[tuple[ast.AST, str], Any]
) -> tuple[ast.Call, ...]:
    """Returns all calls of a function that runs at once, and when its scope calls it by name."""
    is_plain = isinstance(function, ast.FunctionDef) and not function.decorator_list
    # Other files may import what a module defines, but not what a notebook does.
    is_own = is_plain and (scope is not module.source.tree or bool(module.source.cells))
    name = getattr(function, "name", "")
    if not is_own or {each.node for each in bound.get((scope, name), ())} != {function}:
        return ()
    late = (ast.Yield, ast.YieldFrom, ast.GeneratorExp)
    if any(isinstance(part, late) for part in ast.walk(function)):
        return ()
    named = [n for n in module.nodes if isinstance(n, ast.Name) and n.id == name]
    above = [(n, module.parent(n)) for n in named]
    is_called = all(
        isinstance(call, ast.Call) and call.func is n
        and (module.functions_around(n) or [module.source.tree])[0] is scope
        for n, call in above
    )  # fmt: skip
    return tuple(call for _, call in above) if is_called else ()  # type: ignore[misc]


def bound_or_imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Returns the names that these nodes bind or import."""
    several = list(nodes)
    aliases = (node for node in several if isinstance(node, ast.alias))
    return bound(several) | {each.asname or each.name.partition(".")[0] for each in aliases}


def bound(nodes: Iterable[ast.AST]) -> set[str]:
    """Returns the names that these nodes bind."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
    return found
