"""Which values of a multi-process program may differ between its processes.

Under pmap, each process may ``replicate`` its own value. A replicated array of all processes must
be equal on them. A value is followed back from where it is used, through names, attributes,
conditions, functions and containers, to what each process has for itself.
"""

from __future__ import annotations

import ast
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from pmapx._src.analysis import known_names
from pmapx._src.analysis.definitions import EACH, Definition, Step, taken
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.syntax import defaults, given_arguments
from pmapx._src.analysis.values import Bound, Class, Function, Mapped, Value
from pmapx._src.codemod.decide.copies import names_called
from pmapx._src.codemod.varying.changes import changing, conditions, name_of, returned
from pmapx._src.codemod.varying.own_values import is_own, seeds
from pmapx._src.codemod.varying.proof import SourceProof
from pmapx._src.codemod.varying.values import Cause

# What these give is equal on all processes, or is no value of an array.
_EQUAL = frozenset(
    {
        "jax.experimental.multihost_utils.broadcast_one_to_all", "builtins.len", "jax.eval_shape",
        "jax.experimental.multihost_utils.process_allgather", "builtins.isinstance",
        "jax.tree.structure", "jax.tree_util.tree_structure", "jax.tree_structure",
    }
    | {
        f"{module}.{name}" for module in ("jax.numpy", "numpy")
        for name in ("shape", "ndim", "zeros_like", "ones_like", "empty_like")
    }
)  # fmt: skip
_ITERATES = frozenset({"builtins.next", "builtins.iter"})
# How many parts of parts of a value, and calls around each other, are distinguished.
_MOST_PARTS = 2
_MOST_CALLS = 4

Path = tuple[Step, ...]
Callee = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Around = tuple[tuple[Callee, Module, ast.Call, int], ...]


class Maps(Protocol):
    """The pmaps of a program, and what their bodies give if one argument differs."""

    differing: dict[ast.expr, bool]  # Values that were asked for before.

    def get(self, mapped: Mapped) -> Any: ...

    def functions_of(self, each: Any) -> list[Value]: ...


class ProcessValues:
    """The values of a program: their bindings, what calls pass, and what attributes are set to."""

    def __init__(
        self,
        modules: Sequence[Module],
        maps: Maps,
        passed: Mapping[tuple[ast.AST, str], list[tuple[Module, ast.expr]]],
        set_to: Callable[[Module, ast.Attribute], tuple[list[Definition], bool]],
    ) -> None:
        self._modules = modules
        self._maps = maps
        self._passed = passed
        self._set_to = set_to
        # Expressions that were read, those that are computed from each, and what may differ.
        self._explored: set[ast.AST] = set()
        self._users: dict[ast.AST, list[ast.AST]] = {}
        self._suspected: set[ast.AST] = set()
        self._changes: dict[ast.AST, dict[str, list[ast.expr]]] = {}
        self._differing = maps.differing

    def differs(self, module: Module, node: ast.expr) -> bool:
        """Tells whether a value may differ between processes."""
        if node not in self._differing:
            self._differing[node] = self._may_differ(module, node)
        return self._differing[node]

    def _may_differ(self, module: Module, node: ast.expr) -> bool:
        self._explore(module, node)
        seen: set[tuple[ast.AST, Path, Around]] = set()
        waiting: list[tuple[Module, ast.expr, Path, Around]] = [(module, node, (), ())]
        while waiting:
            home, part, path, around = waiting.pop()
            key = part, path[:_MOST_PARTS], around
            if part not in self._suspected or key in seen:
                continue
            if self._is_own(home, part, path):
                return True
            seen.add(key)
            waiting += self._sources(home, *key)
        return False

    def _explore(self, module: Module, node: ast.expr) -> None:
        """Finds what depends on something of the process, whichever part and call is followed."""
        waiting, found = [(module, node)], list[ast.AST]()
        while waiting:
            home, part = waiting.pop()
            if part in self._explored:
                continue
            self._explored.add(part)
            if self._is_own(home, part):
                found.append(part)
            sources = [(m, n) for m, n, _, _ in self._sources(home, part, (), ())]
            links: list[tuple[ast.AST, ast.AST]] = []
            if isinstance(part, ast.Call):
                given = (*part.args, *(keyword.value for keyword in part.keywords))
                sources += [(home, arg) for arg in given]
                links += _into_parameters(home, part)
            elif isinstance(part, ast.Name):
                bound = home.facts.definitions.of_name(home, part)
                links += [(each.node, part) for each in bound if isinstance(each.node, ast.arg)]
            links += [(source, part) for _, source in sources]
            for source, user in links:
                self._users.setdefault(source, []).append(user)
                if source in self._suspected:
                    found.append(user)
            waiting += sources
        while found:
            each = found.pop()
            if each not in self._suspected:
                self._suspected.add(each)
                found += self._users.get(each, ())

    def _is_own(self, module: Module, node: ast.expr, path: Path | None = None) -> bool:
        return is_own(module, node, path, lambda: self._is_seeded)

    @functools.cached_property
    def _is_seeded(self) -> bool:
        """Whether the generators that all modules share have the same seed in each process."""
        given = list(seeds(self._modules))
        return bool(given) and not any(self.differs(*each) for each in given)

    def _sources(
        self, module: Module, node: ast.expr, path: Path, around: Around
    ) -> Iterator[tuple[Module, ast.expr, Path, Around]]:
        """Gives what a part of an expression is computed from, with the parts of that."""
        parts: Iterable[ast.AST] = ast.iter_child_nodes(node)
        if isinstance(node, ast.Name):
            yield from self._named(module, node, path, around)
            return
        if isinstance(node, ast.Attribute):
            if node.attr in known_names.METADATA:
                return
            found, is_known = self._set_to(module, node)
            for each in (*found, *self._variables(module, node)):
                use = node if each.module is module else None
                yield from self._defined(each, path, around, use)
            for home, getter in self._properties.get(node.attr, ()):
                yield from _given_back(home, getter, path, ())
            for home, changed in self._changed_attributes.get(name_of(module, node), ()):
                yield home, changed, (), ()
                for test in conditions(home, changed, node if home is module else None):
                    yield home, test, (), ()
            if not is_known:
                yield module, node.value, (node.attr, *path), around
            return
        if isinstance(node, ast.Subscript):
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            step: Step = key if isinstance(key, str) else EACH
            step = (key, -key - 1) if type(key) is int and key >= 0 else step
            yield module, node.value, (step, *path), around
            parts = () if key is not None else [node.slice]
        elif isinstance(node, (ast.Tuple, ast.List)) and path:
            items = taken(tuple(node.elts), path[0]) if isinstance(path[0], tuple) else None
            items = (items,) if isinstance(items, ast.expr) else items or node.elts
            parts = ()
            for item in items:
                yield module, item, path[1:], around
        elif isinstance(node, ast.Dict) and path and isinstance(path[0], str):
            keys = [getattr(key, "value", None) for key in node.keys]
            chosen = [v for k, v in zip(keys, node.values, strict=True) if k == path[0]]
            parts = ()
            for item in chosen or node.values:
                yield module, item, path[1:], around
        elif isinstance(node, ast.IfExp):
            parts = [node.test]
            for item in (node.body, node.orelse):
                yield module, item, path, around
        elif isinstance(node, ast.Call):
            inner = self._call(module, node, path, around)
            if inner is not None:
                yield from inner
                return
        for part in parts:
            # The keywords of a call, and what a comprehension iterates over.
            inside = [part] if isinstance(part, ast.expr) else ast.iter_child_nodes(part)
            for item in inside:
                if isinstance(item, ast.expr):
                    yield module, item, (), around

    def _named(
        self, module: Module, node: ast.Name, path: Path, around: Around
    ) -> Iterator[tuple[Module, ast.expr, Path, Around]]:
        for each in module.facts.definitions.of_name(module, node):
            yield from self._defined(each, path, around, node)
            for changed in self._changed(each.module, each.node).get(node.id, ()):
                yield each.module, changed, (), around
                for test in conditions(each.module, changed, node):
                    yield each.module, test, (), around

    def _defined(
        self, definition: Definition, path: Path, around: Around, use: ast.AST | None
    ) -> Iterator[tuple[Module, ast.expr, Path, Around]]:
        home, node = definition.module, definition.node
        if isinstance(node, ast.arg):
            yield from self._parameter(definition, path, around)
            return
        if isinstance(node, ast.alias):
            statement = home.parent(node)
            if isinstance(statement, ast.ImportFrom):
                for each in self._in_modules(statement.module or "", node.name):
                    yield from self._defined(each, path, around, None)
            return
        if definition.source is not None:
            yield home, definition.source, (*definition.steps, *path), around
        if isinstance(home.parent(node), ast.AugAssign) and isinstance(node, ast.Name):
            # What it was before.
            yield home, node, path, around
        for test in conditions(home, node, use):
            yield home, test, (), around

    def _variables(self, module: Module, node: ast.Attribute) -> Iterator[Definition]:
        """Gives what sets a variable of a module that is read as its attribute."""
        if isinstance(node.value, ast.Name):
            for each in module.facts.definitions.of_name(module, node.value):
                if isinstance(each.node, ast.alias):
                    yield from self._in_modules(each.node.name, node.attr)
        elif isinstance(node.value, ast.Attribute):
            yield from self._in_modules(node.value.attr, node.attr)

    def _in_modules(self, path: str, name: str) -> Iterator[Definition]:
        """Gives what a name is bound to in modules with a dotted name, or where they have it from.

        Of a package, that is a name in any of its files.
        """
        waiting, seen = [(path.rpartition(".")[2], name)], set[tuple[str, str]]()
        for key in waiting:
            for module in self._by_stem.get(key[0], ()) if key not in seen else ():
                for each in module.facts.definitions.bound.get((module.source.tree, key[1]), ()):
                    statement = module.parent(each.node)
                    if not isinstance(each.node, ast.alias):
                        yield each
                    elif isinstance(statement, ast.ImportFrom):
                        stem = (statement.module or "").rpartition(".")[2]
                        waiting.append((stem, each.node.name))
            seen.add(key)

    @functools.cached_property
    def _by_stem(self) -> dict[str, list[Module]]:
        found: dict[str, list[Module]] = {}
        for project in {module.project for module in self._modules}:
            for module in filter(None, project.modules.values()):
                for stem in module.path.removesuffix(".py").split(os.sep)[-2:]:
                    found.setdefault(stem, []).append(module)
        return found

    def _parameter(
        self, definition: Definition, path: Path, around: Around
    ) -> Iterator[tuple[Module, ast.expr, Path, Around]]:
        """Gives what the call that is followed passes, or what all calls do."""
        module, node = definition.module, definition.node
        assert isinstance(node, ast.arg)
        function = module.parent(module.parent(node))
        default = defaults(function.args).get(node.arg)  # type: ignore[attr-defined]
        if default is not None:
            yield module, default, path, ()
        for index, (called, home, call, skipped) in enumerate(around):
            if called is function:
                for name, arg in given_arguments(call, called, skipped):
                    if name in (node.arg, None):
                        yield home, arg, path if name else (), around[:index]
                return
        for home, arg in self._passed.get((function, node.arg), ()):
            yield home, arg, path, ()

    def _call(
        self, module: Module, node: ast.Call, path: Path, around: Around
    ) -> Iterable[tuple[Module, ast.expr, Path, Around]] | None:
        """Returns what a call's result is computed from, None if that may be all that it names."""
        called = names_called(module, node)
        if called and called <= _EQUAL:
            return ()
        if called and called <= _ITERATES:
            return [(module, arg, (EACH, *path), around) for arg in node.args[:1]]
        if called == {"builtins.enumerate"} and path[:1] == (EACH,) and len(path) > 1:
            # The number, or what is counted.
            given = node.args[:1] if path[1] == (1, 2) else []
            return [(module, arg, (EACH,), around) for arg in given]
        if called == {"builtins.zip"} and path[:1] == (EACH,) and len(path) > 1:
            item = taken(tuple(node.args), path[1]) if isinstance(path[1], tuple) else None
            if isinstance(item, ast.expr):
                return [(module, item, (EACH, *path[2:]), around)]
        if called == {"builtins.range"}:
            # All processes count as far, but may not start at the same number.
            return [(module, arg, (), around) for arg in node.args[:-1][:1]]
        if called == {"jax.device_put"}:
            return [(module, arg, path, around) for arg in node.args[:1]]
        callees = module.facts.callees.get(node, frozenset())
        if callees and all(isinstance(each, Mapped) for each in callees):
            index = path[0][0] if path and isinstance(path[0], tuple) else -1
            args = [*node.args, *(keyword.value for keyword in node.keywords)]
            return [
                (module, arg, (), around)
                for position, arg in enumerate(args)
                if arg in self._suspected
                and any(self._depends(each, position, index) for each in callees)  # type: ignore[arg-type]
            ]
        if callees and all(isinstance(each, Class) for each in callees) and path:
            chosen = [arg for each in callees for arg in _field(each, node, path[0])]  # type: ignore[arg-type]
            return [(module, arg, path[1:], around) for arg in chosen] or None
        followed = [each for each in callees if isinstance(each, (Function, Bound))]
        if len(around) == _MOST_CALLS:
            return None
        if not callees or len(followed) < len(callees):
            if getattr(node.func, "attr", "").startswith("init") and not called:
                # Parameters are initialized by the key; of the data, only shapes count.
                return [(module, each, (), around) for each in (node.func, *node.args[:1])]
            return None
        found = (_returned(module, node, each, path, around) for each in followed)
        # What no parameter takes by its name is not followed into the function.
        unnamed = ((module, arg, (), around) for each in followed for arg in _unnamed(node, each))
        return itertools.chain(itertools.chain.from_iterable(found), unnamed)

    def _depends(self, mapped: Mapped, position: int, index: int) -> bool:
        """Returns whether a result of a pmap depends on an argument, other than by a collective."""
        each = self._maps.get(mapped)
        if each is None or each.is_method:
            return True
        count = max(*each.counts, len(each.parameters), position + 1)
        causes = [Cause("it") if i == position else None for i in range(count)]
        functions, proof = self._maps.functions_of(each), SourceProof(self._modules)
        found = proof.varying(each.module, functions, each.axis, causes, None)
        return bool(found.reason(index))

    def _changed(self, module: Module, node: ast.AST) -> dict[str, list[ast.expr]]:
        """Returns what a function puts in the containers that its names stand for."""
        scope = next(iter(module.functions_around(node)), module.source.tree)
        if scope not in self._changes:
            found = self._changes[scope] = {}
            for part in ast.walk(scope):
                for changed, values in changing(part):
                    if isinstance(changed, ast.Name):
                        found.setdefault(changed.id, []).extend(values)
        return self._changes[scope]

    @functools.cached_property
    def _properties(self) -> dict[str, list[tuple[Module, ast.FunctionDef]]]:
        found: dict[str, list[tuple[Module, ast.FunctionDef]]] = {}
        for module in self._modules:
            for node in module.nodes:
                decorators = getattr(node, "decorator_list", ())
                if any("property" in ast.unparse(each) for each in decorators):
                    found.setdefault(node.name, []).append((module, node))  # type: ignore[attr-defined, arg-type]
        return found

    @functools.cached_property
    def _changed_attributes(self) -> dict[str | None, list[tuple[Module, ast.expr]]]:
        """What the program puts in the containers that attributes stand for, or sets by name."""
        found: dict[str | None, list[tuple[Module, ast.expr]]] = {}
        for module in self._modules:
            for node in module.nodes:
                for changed, values in changing(node):
                    if name := name_of(module, changed):
                        found.setdefault(name, []).extend((module, each) for each in values)
        return found


def _into_parameters(module: Module, node: ast.Call) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Gives the arguments of a call with the parameters that each may be for."""
    for callee in module.facts.callees.get(node, ()):
        if not isinstance(callee, (Function, Bound)):
            continue
        function = callee.function if isinstance(callee, Bound) else callee
        parameters = [part for part in ast.walk(function.node.args) if isinstance(part, ast.arg)]
        for name, arg in given_arguments(node, function.node, int(isinstance(callee, Bound))):
            is_any = name is None or isinstance(arg, ast.Starred)
            yield from ((arg, each) for each in parameters if is_any or each.arg == name)


def _unnamed(node: ast.Call, callee: Function | Bound) -> Iterator[ast.expr]:
    """Gives the arguments of a call that are for ``*args`` or ``**options``, or are unpacked."""
    function = callee.function if isinstance(callee, Bound) else callee
    for name, arg in given_arguments(node, function.node, int(isinstance(callee, Bound))):
        if name is None or isinstance(arg, ast.Starred):
            yield arg


def _field(cls: Class, node: ast.Call, name: Step) -> list[ast.expr]:
    """Returns what a call of a dataclass sets a field to."""
    fields = [
        part.target.id
        for part in cls.node.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    ]
    given = dict(zip(fields, node.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    return [given[name]] if name in given else []  # type: ignore[index]


def _made_by(module: Module, call: ast.Call, function: Function) -> Around:
    """Returns the call that defined a function which is called at once: ``make(x)()``."""
    made, callees = call.func, module.facts.callees.get(call.func, frozenset())
    maker = next(iter(callees), None)
    if not isinstance(made, ast.Call) or len(callees) != 1 or not isinstance(maker, Function):
        return ()
    home = maker.module
    returned = [part.value for part in ast.walk(maker.node) if isinstance(part, ast.Return)
                and maker.node in home.functions_around(part)[:1]]  # fmt: skip
    # Any other may have been defined by an earlier call.
    is_own = isinstance(maker.node, ast.FunctionDef) and all(
        isinstance(each, ast.Name)
        and [d.node for d in home.facts.definitions.of_name(home, each)] == [function.node]
        for each in returned
    )
    return ((maker.node, module, made, 0),) if is_own else ()


def _returned(
    module: Module, call: ast.Call, callee: Function | Bound, path: Path, around: Around
) -> Iterator[tuple[Module, ast.expr, Path, Around]]:
    """Gives what a function of the program returns or yields."""
    function = callee.function if isinstance(callee, Bound) else callee
    inner = (*around, *_made_by(module, call, function))
    inner += ((function.node, module, call, int(isinstance(callee, Bound))),)
    if isinstance(function.node, ast.Lambda):
        yield function.module, function.node.body, path, inner
        return
    yield from _given_back(function.module, function.node, path, inner)


def _given_back(
    module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef, path: Path, around: Around
) -> Iterator[tuple[Module, ast.expr, Path, Around]]:
    for part, value in returned(function):
        yield module, value, path[1:] if isinstance(part, ast.Yield) else path, around
        for test in conditions(module, part):
            yield module, test, (), around
