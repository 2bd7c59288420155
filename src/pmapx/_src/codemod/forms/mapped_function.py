"""The function that a use of pmap maps: its parameters, and whether its body can be edited."""

from __future__ import annotations

import ast
import dataclasses
import functools
import keyword
import weakref
from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.analysis.sites import Site
from pmapx._src.analysis.syntax import defaults, positional, returns
from pmapx._src.analysis.values import (
    Bound,
    Class,
    Exported,
    Function,
    Mapped,
    Partial,
    Place,
    Value,
    functions_in,
)
from pmapx._src.codemod.decide import specs
from pmapx._src.codemod.decide.map_calls import map_calls

# What only arrays have.
_OF_ARRAYS = frozenset(
    {
        "shape", "T", "reshape", "astype", "mean", "sum", "ndim", "dtype", "transpose", "flatten",
        "ravel", "squeeze", "max", "min", "at",
    }
)  # fmt: skip
_DATA_OF_ARRAYS = frozenset({"shape", "T", "ndim", "dtype", "at"})
_SCOPES = (
    ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.GeneratorExp,
)  # fmt: skip
_OF_POSITIONS = ("static_broadcasted_argnums", "donate_argnums")
_ARRAY_FUNCTIONS = ("jax.numpy.", "jax.random.", "jax.nn.")


@dataclasses.dataclass(frozen=True, eq=False)
class MappedFunction:
    """One function; ``taken`` of its first arguments and those in ``given`` it has already."""

    function: Function
    taken: int
    given: frozenset[str]

    @property
    def node(self) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda:
        return self.function.node

    @functools.cached_property
    def parameters(self) -> list[str] | None:
        """The names of its arguments by position, None if it takes any number of them."""
        if self.node.args.vararg is not None:
            return None
        names = positional(self.node.args)[self.taken :]
        return [name for name in names if name not in self.given]

    @property
    def by_position(self) -> int:
        """How many of its arguments stand before those that it has already."""
        names = positional(self.node.args)[self.taken :]
        return next((i for i, name in enumerate(names) if name in self.given), len(names))

    @property
    def required(self) -> int:
        """How many of them have no default."""
        known = defaults(self.node.args)
        return sum(known[name] is None for name in self.parameters or ())

    def is_array(self, name: str) -> bool:
        """Returns whether the body uses a parameter as only an array can be used."""
        module, node = self.function.module, self.node
        named = [part for part in _of_scope(node, name) if isinstance(part, ast.Name)]
        named = [part for part in named if part.id == name]
        uses = [part for part in named if isinstance(part.ctx, ast.Load)]
        stored = [part.lineno for part in named if isinstance(part.ctx, ast.Store)]
        first = min(stored, default=1 << 30)
        # ``mask is None``: some calls give None, a tree without leaves.
        may_be_none = any(
            isinstance(above := module.parent(use), ast.Compare)
            and isinstance(above.ops[0], (ast.Is, ast.IsNot))
            for use in uses
        )
        parents = map(module.parent, uses)
        attributes = {each.attr for each in parents if isinstance(each, ast.Attribute)}
        is_object = bool(attributes - known_names.ARRAY_ATTRIBUTES)
        return not (may_be_none or is_object or self._is_of_own_class(name)) and any(
            use.lineno <= first and _is_used_as_array(module, use) for use in uses
        )

    def _is_of_own_class(self, name: str) -> bool:
        """Returns whether a parameter's annotation is a class of the program."""
        arguments = self.node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        noted = next((each.annotation for each in every if each.arg == name), None)
        module = self.function.module
        held = module.env.find(noted.id) if isinstance(noted, ast.Name) else None
        found = [
            module.project.exported(fact.path, fact.name) if isinstance(fact, Exported) else {fact}
            for fact in held or ()
        ]
        return any(isinstance(fact, Class) for each in found for fact in each)

    @functools.cached_property
    def is_vmapped(self) -> bool:
        """Whether ``jax.vmap`` maps it too, so that its body sees neither axis."""
        module, node = self.function.module, self.node
        if "vmap" not in module.source.text:
            return False
        uses: list[ast.AST] = [node]
        if not isinstance(node, ast.Lambda):
            name = node.name
            uses = [
                p for p in module.nodes if name in (getattr(p, "id", ""), getattr(p, "attr", ""))
            ]
            if any("vmap" in ast.unparse(each) for each in node.decorator_list):
                return True
        for each in uses:
            above = module.parent(each)
            while isinstance(above, (ast.expr, ast.keyword)):
                called = above.func if isinstance(above, ast.Call) else None
                if called is not None and called is not each and "vmap" in ast.unparse(called):
                    return True
                each, above = above, module.parent(above)
        return False

    def calls_in_order(
        self, module: Module, site: Site, before: int
    ) -> list[tuple[Module, ast.Call]]:
        """Returns the calls of a map if they give its last arguments by keyword, in their order.

        pmap maps keywords over their leading axis, and donates none of them.
        """
        found = map_calls(module, site)
        own = self.parameters or []
        given = keywords_given(module, site, own)
        static, donated = (specs.argnums(site.option(name) or "()") for name in _OF_POSITIONS)
        if before < 0 or donated is None or static is None or max(donated, default=-1) >= before:
            return []
        # A lambda passes those on that are not the next; static arguments are around it.
        is_next = own[: self.by_position][before : before + len(given)] == given
        are_plain = all(
            [each.arg for each in call.keywords] == given
            and all(
                isinstance(fact, Mapped) and fact.site in site.places
                for fact in where.facts.callees[call]
            )
            for where, call in found
        )
        are_free = max(static, default=-1) < before and (is_next or not static)
        return found if are_plain and are_free else []

    @property
    def is_only_jitted(self) -> bool:
        """Whether it has no decorator but ``@jax.jit``, which sees the same function afterwards."""
        facts = self.function.module.facts
        found = [facts.references.get(each) for each in getattr(self.node, "decorator_list", ())]
        return all(each is not None and each.name == "jax.jit" for each in found)

    @property
    def returns(self) -> list[ast.Return]:
        """The return statements of its own."""
        return list(returns(self.node))

    @property
    def takes_gradients(self) -> bool:
        """Whether its own text has a gradient of JAX's."""
        return any(
            (isinstance(part, ast.Attribute) and part.attr in ("grad", "value_and_grad"))
            or (isinstance(part, ast.Name) and part.id in ("grad", "value_and_grad", "grad_fn"))
            for part in ast.walk(self.node)
        )


def _of_scope(function: ast.AST, name: str) -> Iterator[ast.AST]:
    """Gives the nodes of a function but for inner functions and comprehensions with the name."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, _SCOPES):
            bound = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
            bound |= {
                part.id
                for part in ast.walk(node)
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
            if name in bound:
                continue
        yield node
        waiting += ast.iter_child_nodes(node)


def _is_used_as_array(module: Module, use: ast.Name) -> bool:
    parent = module.parent(use)
    if isinstance(parent, (ast.BinOp, ast.UnaryOp, ast.Compare)):
        return not isinstance(parent, ast.Compare) or not any(
            isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in parent.ops
        )
    if isinstance(parent, ast.Attribute):
        above = module.parent(parent)
        is_called = isinstance(above, ast.Call) and above.func is parent
        # ``stats.mean`` that is not called is a field.
        return parent.attr in _OF_ARRAYS and is_called != (parent.attr in _DATA_OF_ARRAYS)
    if isinstance(parent, ast.Call) and use in parent.args:
        call = module.facts.calls.get(parent)
        names = call.names if call is not None else frozenset()
        return bool(names) and all(name.startswith(_ARRAY_FUNCTIONS) for name in names)
    return False


def mapped_function(module: Module, site: Site) -> MappedFunction | None:
    """Returns the function of a use, None if it is not known or one of several."""
    held: set[MappedFunction] = set()
    seen: dict[tuple[ast.AST, int, frozenset[str]], MappedFunction] = {}
    for making in module.facts.makings.values():
        if making.site not in site.places:
            continue
        # ``self.step = jax.pmap(self.step)``: what is mapped is not the map itself.
        own = frozenset(
            fact
            for fact in making.function
            if isinstance(fact, Mapped) and fact.site in site.places
        )
        for each in _resolved(making.function - own):
            if each is None:
                return None
            key = (each.node, each.taken, each.given)
            held.add(seen.setdefault(key, each))
    return held.pop() if len(held) == 1 else None


def _resolved(
    known: Value, taken: int = 0, given: frozenset[str] = frozenset()
) -> Iterator[MappedFunction | None]:
    if not known:
        yield None
    for fact in known:
        if isinstance(fact, Function):
            yield MappedFunction(fact, taken, given)
        elif isinstance(fact, Bound):
            yield MappedFunction(fact.function, taken + 1, given)
        elif isinstance(fact, Mapped):
            yield from _resolved(fact.function, taken, given)
        elif isinstance(fact, Partial):
            names = {name for name, _ in fact.keywords}
            yield from _resolved(fact.function, taken + len(fact.args), given | names)
        else:
            yield None


def argument_counts(module: Module, site: Site) -> set[int]:
    """Returns the numbers of arguments of the map's calls; -1 for one that is not known."""
    return {
        -1 if any(isinstance(arg, ast.Starred) for arg in call.args) else len(call.args)
        for _, call in map_calls(module, site)
    }


def names_of_arguments(module: Module, site: Site, count: int) -> list[str]:
    """Returns names for the arguments of a function that is not known: those of a call's."""
    for _, call in map_calls(module, site):
        names = [_name_of(arg) or f"arg{i}" for i, arg in enumerate(call.args)]
        if len(names) == count == len(set(names)) and count > 1:
            return names
    return [f"arg{i}" for i in range(count)] if count != 1 else ["x"]


def _name_of(node: ast.expr) -> str:
    """Returns the name of a variable, an attribute or a key."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            pass
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            pass
        case ast.Call(args=[], keywords=[ast.keyword(arg="params"), *_]):
            name = "variables"  # as Flax has it
        case ast.Dict(keys=[ast.Constant(value="params"), *_]):
            name = "variables"
        case _:
            return ""
    is_usable = name.isidentifier() and not keyword.iskeyword(name)
    return name if is_usable and name not in ("jax", "mesh", "function", "self") else ""


def keywords_given(module: Module, site: Site, names: list[str]) -> list[str]:
    """Returns the keywords of every call of the map, in the order of the function's parameters."""
    found = {frozenset(each.arg for each in call.keywords) for _, call in map_calls(module, site)}
    given = found.pop() if len(found) == 1 else frozenset()
    return [name for name in names if name in given] if given <= set(names) else []


def takes_its_name(module: Module, expression: ast.expr, function: ast.FunctionDef) -> bool:
    """Returns whether a map takes the place of its function: ``step = jax.pmap(step)``.

    All that uses the name afterwards has the map; nothing may use it before.
    """
    statement = module.parent(expression)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    if not isinstance(expression, ast.Call) or not expression.args:
        return False
    if ast.unparse(target) != ast.unparse(expression.args[0]):
        return False
    above = module.parent(statement)
    if isinstance(target, ast.Attribute):
        is_own = isinstance(target.value, ast.Name) and target.attr == function.name
        same = [
            node
            for other in module.project.modules.values()
            if other is not None
            for node in other.nodes
            if isinstance(node, ast.FunctionDef) and node.name == function.name
        ]
        is_first = isinstance(above, ast.FunctionDef) and above.name == "__init__"
        return is_own and is_first and len(same) == 1
    if above is not module.parent(function):
        return False
    return not any(
        isinstance(node, ast.Name)
        and node.id == function.name
        and (function.end_lineno or 0) < node.lineno < statement.lineno
        for node in ast.walk(above)
    )


# By project, with how many files it had when it was read.
_HELD: weakref.WeakKeyDictionary[Project, tuple[int, dict[ast.AST, set[Place | None]]]] = (
    weakref.WeakKeyDictionary()
)


def is_mapped_once(module: Module, site: Site, node: ast.AST) -> bool:
    """Returns whether a function that another returns has one map, and is called by it alone.

    It may be named once and made often: ``train, test = make(0), make(1)``.
    """
    project = module.project
    count, found = _HELD.get(project, (-1, {}))
    if count != len(project.modules):
        found = _holders(project)
        _HELD[project] = (len(project.modules), found)
    return found.get(node, set()) <= set(site.places) or not module.functions_around(node)


def _holders(project: Project) -> dict[ast.AST, set[Place | None]]:
    """Returns the maps of each function of a project, with None if it is called without one."""
    found: dict[ast.AST, set[Place | None]] = {}
    for module in project.modules.values():
        if module is None:
            continue
        facts = module.facts
        held: list[tuple[Place | None, Value]] = [(None, each) for each in facts.callees.values()]
        held += [(each.site, each.function) for each in facts.makings.values()]
        held += [(each.site, each.function) for each in facts.made.values()]
        for place, known in held:
            for each in functions_in(known):
                found.setdefault(each.node, set()).add(place)
    return found
