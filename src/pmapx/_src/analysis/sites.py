"""The places where a module uses ``jax.pmap``, and how each does.

A site is where ``jax.pmap`` is written, under whatever name. A call through a wrapper or a partial
is not a site of its own: the wrapper is.
"""

from __future__ import annotations

import ast
import dataclasses
import weakref

from pmapx._src.analysis import known_names, syntax
from pmapx._src.analysis.facts import Facts, Making
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Bound, Mapped, Partial, Place

OPTIONS = (
    "axis_name", "in_axes", "out_axes", "static_broadcasted_argnums", "devices", "backend",
    "axis_size", "donate_argnums", "global_arg_shapes",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """One use of pmap. Texts are as the user wrote them.

    ``kind`` is ``call``, ``decorator``, ``partial`` (a partial that is kept and used later),
    ``wrapper`` (a function that hands its own argument to pmap) or ``value`` (pmap is passed
    on, chosen or stored).
    """

    name: Place
    place: Place
    kind: str
    function: str = ""
    options: tuple[tuple[str, str], ...] = ()
    has_unpacked_options: bool = False
    is_called_at_once: bool = False
    wraps: str = ""
    is_nested: bool = False

    @property
    def places(self) -> frozenset[Place]:
        """The place of its name, and of the entire expression."""
        return frozenset({self.name, self.place})

    def option(self, name: str) -> str | None:
        """Returns an option's text, or None if it is not given."""
        return dict(self.options).get(name)


# Several rules ask for them.
_FOUND: weakref.WeakKeyDictionary[Module, tuple[Facts, list[Site]]] = weakref.WeakKeyDictionary()


def find_sites(module: Module) -> list[Site]:
    """Returns the sites of a module that was read, in the order of the file."""
    facts, found = _FOUND.get(module, (None, []))
    if facts is not module.facts:
        found = _find_sites(module)
        _FOUND[module] = (module.facts, found)
    return list(found)


def _find_sites(module: Module) -> list[Site]:
    sites = [
        _site(module, reference.node)
        for reference in module.facts.references.values()
        if reference.name in known_names.PMAP
        and reference.by != "import"
        and reference.is_certain
        and not _is_alias(module, reference.node)
    ]
    return sorted(sites, key=lambda site: (site.name.line, site.name.column))


def _is_alias(module: Module, node: ast.AST) -> bool:
    """``pm = jax.pmap`` only gives it another name, under which its uses are found."""
    parent = module.parent(node)
    if not isinstance(parent, ast.Assign) or parent.value is not node:
        return False
    given = {target.id for target in parent.targets if isinstance(target, ast.Name)}
    if len(given) < len(parent.targets):
        return False
    around = list(module.functions_around(node))
    uses = [
        use
        for use in syntax.walk(around[0] if around else module.source.tree)
        if isinstance(use, ast.Name) and use.id in given and isinstance(use.ctx, ast.Load)
        # What stood there before was something else.
        if use.lineno > parent.lineno or module.functions_around(use) != around
    ]
    # Where the name may be something else too, this is a choice, not an alias.
    return not uses or any(_is_certain(module, use) for use in uses)


def _is_certain(module: Module, node: ast.AST) -> bool:
    reference = module.facts.references.get(node)
    return reference is not None and reference.is_certain and reference.name in known_names.PMAP


def _site(module: Module, node: ast.AST) -> Site:
    parent = module.parent(node)
    name = module.place(node)
    if isinstance(parent, ast.Call) and parent.func is node:
        return _applied(module, name, parent, parent.args, parent.keywords)
    if is_decorator(parent, node):
        return _decorating(module, name, node, parent, ())
    if _is_partial_of(module, parent, node):
        assert isinstance(parent, ast.Call)
        above = module.parent(parent)
        if is_decorator(above, parent):
            return _decorating(module, name, parent, above, parent.keywords)
        if isinstance(above, ast.Call) and above.func is parent:
            return _applied(module, name, above, above.args, [*parent.keywords, *above.keywords])
        return Site(
            name,
            module.place(parent),
            "partial",
            options=_options(module, [], parent.keywords),
            has_unpacked_options=_has_unpacked(parent.keywords),
        )
    return Site(name, name, "value")


def _applied(
    module: Module,
    name: Place,
    call: ast.Call,
    args: list[ast.expr],
    keywords: list[ast.keyword],
) -> Site:
    function = args[0] if args else next((k.value for k in keywords if k.arg == "fun"), None)
    if function is None:
        return Site(name, module.place(call), "partial", options=_options(module, args, keywords))
    making = module.facts.makings.get(call)
    above = module.parent(call)
    is_wrapper = isinstance(function, ast.Name) and _is_parameter(module, function)
    return Site(
        name,
        module.place(call),
        "wrapper" if is_wrapper else "call",
        function=module.text(function),
        options=_options(module, args, keywords),
        has_unpacked_options=_has_unpacked(keywords),
        is_called_at_once=isinstance(above, ast.Call) and above.func is call,
        wraps=_manner(function, making),
        is_nested=making is not None and making.is_nested,
    )


def _decorating(
    module: Module,
    name: Place,
    decorator: ast.AST,
    function: ast.AST,
    keywords: list[ast.keyword] | tuple[()],
) -> Site:
    making = module.facts.makings.get(decorator)
    return Site(
        name,
        module.place(decorator),
        "decorator",
        function=getattr(function, "name", ""),
        options=_options(module, [], list(keywords)),
        has_unpacked_options=_has_unpacked(list(keywords)),
        wraps="function",
        is_nested=making is not None and making.is_nested,
    )


def _options(
    module: Module, args: list[ast.expr], keywords: list[ast.keyword]
) -> tuple[tuple[str, str], ...]:
    given = [("axis_name", module.text(args[1]))] if len(args) > 1 else []
    given += [
        (keyword.arg, module.text(keyword.value))
        for keyword in keywords
        if keyword.arg in OPTIONS and keyword.arg is not None
    ]
    return tuple(given)


def _has_unpacked(keywords: list[ast.keyword]) -> bool:
    return any(keyword.arg is None for keyword in keywords)


def is_decorator(parent: ast.AST, node: ast.AST) -> bool:
    """Returns whether a node is among the decorators of a definition."""
    return isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and any(
        node is decorator for decorator in parent.decorator_list
    )


def _is_partial_of(module: Module, parent: ast.AST, node: ast.AST) -> bool:
    return (
        isinstance(parent, ast.Call)
        and bool(parent.args)
        and parent.args[0] is node
        and parent in module.facts.calls
        and bool(module.facts.calls[parent].names & known_names.PARTIAL)
    )


def _is_parameter(module: Module, node: ast.Name) -> bool:
    for function in module.functions_around(node):
        assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if node.id in syntax.defaults(function.args):
            return True
    return False


def _manner(function: ast.expr, making: Making | None) -> str:
    if isinstance(function, ast.Lambda):
        return "lambda"
    known = making.function if making is not None else frozenset()
    for fact in known:
        for kind, word in ((Partial, "partial"), (Bound, "method"), (Mapped, "pmap")):
            if isinstance(fact, kind):
                return word
    return "function" if isinstance(function, (ast.Name, ast.Attribute)) else "expression"
