"""Which functions can lead to a finding, by the names in their text: the others are not read.

A function is relevant if a name in it, looked up where the function is defined, leads to a name
that a rule looks for: at once, or through functions, classes and attributes of the project.
"""

from __future__ import annotations

import ast
import bisect
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pmapx._src.analysis import known_names, syntax
from pmapx._src.analysis.interpreter import functions
from pmapx._src.analysis.interpreter.indexing import index_taken
from pmapx._src.analysis.interpreter.statements import imported
from pmapx._src.analysis.values import (
    Bound,
    Class,
    Const,
    Dict,
    Elements,
    Exported,
    Fact,
    Function,
    Instance,
    Items,
    Method,
    Named,
    NotATuple,
    Partial,
    Result,
    Value,
)
from pmapx._src.source.files import Source, first_line

if TYPE_CHECKING:
    from pmapx._src.analysis.project import Project
    from pmapx._src.analysis.scopes import Environment

# Without names to look for, all names of these packages count.
_KNOWN_PACKAGES = frozenset(
    {"jax", "flax", "acme", "kfac_jax", "jaxline", "haiku", "optax", "equinox", "tree", "pmapx"}
)
# What a function leads to: a name; or a tree_map and, in the function itself, a function that takes
# the first element; or a module as a value and, in the function itself, a name in a module.
_NAME, _TREE_MAP, _TAKES_FIRST, _MODULE, _NAME_IN_MODULE = 1, 2, 4, 8, 16
_PAIRS = (_TREE_MAP | _TAKES_FIRST, _MODULE | _NAME_IN_MODULE)
_IS_RELEVANT = [
    bool(found & _NAME) or any(found & pair == pair for pair in _PAIRS) for found in range(32)
]

_PLAIN = frozenset({Const, NotATuple})
_FOLLOWED = frozenset({Function, Class, Instance, Exported})

_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
# It begins with one of three signs, which are found many times faster than a string's prefix.
_STRING_OR_COMMENT = re.compile(
    r'#[^\n]*+|"""(?:[^"\\]++|\\.|"(?!""))*+"""|"(?:[^"\\\n]++|\\.)*+"'
    r"|'''(?:[^'\\]++|\\.|'(?!''))*+'''|'(?:[^'\\\n]++|\\.)*+'",
    re.DOTALL,
)
_PREFIX = re.compile(r"(?<!\w)[a-zA-Z]{1,2}\Z")
# ``f(x, train=True)``, ``train = True``: this uses no function ``train``. f"{train=}" uses one.
_BOUND = re.compile(r"([(,\n]\s*+)[^\W\d]\w*+\s*+(?==(?!=|\s*[}!:]))")
# A method of a class in a function has an object of its own.
_FIRST_PARAMETER = re.compile(r"(def\s++\w++\s*+\(\s*+)\w+")
# An attribute, and whether it is assigned.
_ATTRIBUTE = re.compile(r"\.\s*(\w+)(\s*=(?!=|\s*[}!:]))?")
# ``lambda x: x[0]``, or the end of a function that returns it.
_FIRST = re.compile(r"(?::|\breturn\b)[\s(\\]*\w+[\s)\\]*\[[\s(]*0\w*[\s)]*\]")
# Found many times faster, since it begins with one sign.
_ZERO = re.compile(r"\[[\s(]*0")

Attributes = tuple[str, ...]
Import = ast.Import | ast.ImportFrom
# A fact, the attributes that are taken of it, and whether the function in question does that.
Use = tuple[Fact, Attributes, bool]


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """The dotted names in a function's body, by their first part, and what else is there.

    The function may be ``lambda x: x[0]`` itself, or have one that takes the first element.
    """

    paths: dict[str, list[Attributes]]
    words: frozenset[str]
    is_first: bool
    takes_first: bool
    names_mesh: bool
    imports: tuple[Import, ...]


class Relevance:
    """Tells which functions of a project are relevant to some names, or else to JAX as such."""

    def __init__(
        self,
        project: Project,
        names: frozenset[str],
        texts: dict[ast.AST, Text] | None = None,
    ) -> None:
        self._project = project
        self._names = names
        self._modules = _modules(names)
        self._leaves = frozenset(name.rpartition(".")[2] for name in names)
        # What these return matters to callers, and to the callers of those.
        self._returning = names & known_names.RETURNING
        self._returning_modules = _modules(self._returning)
        # Attributes that hold something relevant, by the path of their class's module.
        self._attributes: dict[str, set[str]] = {}
        # What functions lead to, at most, elsewhere than in themselves.
        self._known: dict[Function, int] = {}
        # What the text of a function leads to elsewhere than in itself, and what its names hold.
        self._uses: dict[Function, tuple[int, list[Use]]] = {}
        # These depend on the files alone.
        self._texts: dict[ast.AST, Text] = {} if texts is None else texts
        self._named = functools.cache(self._leads_to)

    def for_another(self, project: Project) -> Relevance:
        """Returns the same for a project of the same files that has read none of them."""
        return Relevance(project, self._names, self._texts)

    def to_names(self, names: frozenset[str]) -> Relevance:
        """Returns the relevance of the same project's functions to other names."""
        return Relevance(self._project, names, self._texts)

    def add_attribute(self, cls: Class, name: str, held: Value) -> bool:
        """Notes what is assigned to an attribute of objects; tells whether it can matter."""
        is_relevant = self.is_in(held)
        found = self._attributes.setdefault(cls.module.path, set())
        if is_relevant and name not in found:
            found.add(name)
            self._known.clear()
            for function in [*self._uses]:
                if function.module is cls.module and name in self._text(function).words:
                    del self._uses[function]
        # Without names to look for, it matters whose method is called.
        return is_relevant or not self._names

    def reads_attribute(self, function: Function, name: str) -> bool:
        """Returns whether a function's body may do more with an attribute than to assign it."""
        text = self._text(function)
        if name not in text.words:
            return False
        code = _code(function, text.imports)
        return any(found[0] == name and not found[1] for found in _ATTRIBUTE.findall(code))

    def is_in(self, held: Iterable[Fact]) -> bool:
        """Returns whether a value leads to one of the names."""
        seen: set[Use] = set()
        found = self._reached([(fact, (), True) for fact in held], seen)
        if not found:
            self._settle(seen, 0)
        return _IS_RELEVANT[found]

    def of(self, function: Function) -> bool:
        """Returns whether reading a function, of whose arguments nothing is known, can matter."""
        seen: set[Use] = set()
        found, uses = self._in_text(function, is_here=True)
        if not _IS_RELEVANT[found]:
            found |= self._reached(uses, seen, found)
        if not _IS_RELEVANT[found]:
            self._settle(seen, found & _TREE_MAP)
        return _IS_RELEVANT[found]

    def _settle(self, seen: set[Use], elsewhere: int) -> None:
        """Notes of all functions that were followed to their ends what they lead to at most."""
        visited = (fact for fact, _, _ in seen if type(fact) is Function)
        self._known.update((fact, elsewhere) for fact in visited if _is_settled(fact))

    def _reached(self, todo: list[Use], seen: set[Use], found: int = 0) -> int:
        while todo and not _IS_RELEVANT[found]:
            fact, attributes, is_here = use = todo.pop()
            kind = type(fact)
            if kind in _PLAIN:
                continue
            if isinstance(fact, Named):
                found |= self._named(".".join((fact.name, *attributes)), is_here)
            elif isinstance(fact, Result):
                found |= self._named(fact.of, False)
            elif kind in _FOLLOWED:
                if use not in seen:
                    seen.add(use)
                    more, uses = self._behind(fact, attributes, is_here)
                    found |= more
                    todo += uses
            elif isinstance(fact, (Bound, Method, Partial, Items, Dict, Elements)):
                todo += [(inner, (), is_here) for inner in _parts(fact)]
            else:
                # Pmapped functions and what they return, meshes, derivatives.
                return _NAME
        return found

    def _leads_to(self, name: str, is_here: bool) -> int:
        if self._is_below(name, self._names if is_here else self._returning):
            return _NAME
        if name in known_names.TREE_MAP:
            return _TREE_MAP
        if name in self._returning_modules:
            return _NAME
        return _MODULE if is_here and name in self._modules else 0

    def _is_below(self, name: str, names: frozenset[str]) -> bool:
        """Returns whether a dotted name is one of several, or something in one of them."""
        if not self._names:
            return name.partition(".")[0] in _KNOWN_PACKAGES
        while name and name not in names:
            name = name.rpartition(".")[0]
        return bool(name)

    def _behind(self, fact: Fact, attributes: Attributes, is_here: bool) -> tuple[int, list[Use]]:
        if isinstance(fact, Function):
            first = _TAKES_FIRST if is_here and self._text(fact).is_first else 0
            known, uses = self._known.get(fact), list[Use]()
            if known is None:
                if fact not in self._uses:
                    found = self._in_text(fact, is_here=False)
                    if not _is_settled(fact):
                        return first | found[0], found[1]
                    self._uses[fact] = found
                known, uses = self._uses[fact]
            return first | known, uses
        if isinstance(fact, Exported):
            return self._exported(fact, attributes, is_here)
        cls = fact.cls if isinstance(fact, Instance) else fact
        assert isinstance(cls, Class)
        if attributes:
            held = [cls.body.get(attributes[0], ()), cls.attributes.get(attributes[0], ())]
        else:
            held = [*cls.body.values(), *cls.attributes.values()]
        uses = [(inner, attributes[1:], is_here) for value in held for inner in value]
        return 0, uses + [(base, attributes, is_here) for value in cls.bases for base in value]

    def _exported(
        self, fact: Exported, attributes: Attributes, is_here: bool
    ) -> tuple[int, list[Use]]:
        name = fact.name
        if not name:
            if not attributes:
                return _NAME, []
            name, attributes = attributes[0], attributes[1:]
        module = self._project.modules.get(fact.path)
        if module is not None and not module.is_read:
            # It is being read, and what the name will hold is not known.
            return _NAME, []
        held = self._project.exported(fact.path, name)
        return 0, [(inner, attributes, is_here) for inner in held if inner != fact]

    def _in_text(self, function: Function, *, is_here: bool) -> tuple[int, list[Use]]:
        """Returns what a function's text alone leads to, and what its names hold."""
        text, module = self._text(function), function.module
        if not text.words.isdisjoint(self._attributes.get(module.path, ())):
            return _NAME, []
        # A mesh that a with statement enters may be known by its name alone.
        if is_here and text.names_mesh and "mesh" in self._names:
            return _NAME, []
        if is_here and any(self._is_below(name, self._names) for name in _imported(text.imports)):
            return _NAME, []
        found = _TAKES_FIRST if is_here and text.takes_first else 0
        if is_here and not text.words.isdisjoint(self._leaves):
            found |= _NAME_IN_MODULE
        uses: list[Use] = [(fact, (), is_here) for _, held in function.defaults for fact in held]
        if function.owner is not None:
            own = text.paths.get(functions.self_name(function), [])
            uses += [(Instance(function.owner), path, is_here) for path in own]
            if "super" in text.paths:
                bases = [base for held in function.owner.bases for base in held]
                uses += [(base, (word,), is_here) for base in bases for word in text.paths]
        for name, held in self._around(function, text):
            for fact in held:
                for path in text.paths.get(name, ()):
                    named, attributes = self._in_project(module.path, fact, path)
                    if isinstance(named, Named):
                        found |= self._named(".".join((named.name, *attributes)), is_here)
                    else:
                        uses.append((named, attributes, is_here))
        return found, uses

    def _around(self, function: Function, text: Text) -> Iterator[tuple[str, Value]]:
        """Yields the names in a function's text that are bound around it or imported in it."""
        for node in text.imports:
            for _, name, held in imported(function.module, node):
                yield name, held
        scope: Environment | None = function.around
        while scope is not None:
            if not scope.is_class:
                for name in text.paths.keys() & scope.names.keys():
                    yield name, scope.names[name]
            for star in scope.star_imports:
                for name in text.paths.keys() - scope.names.keys():
                    yield name, self._project.exported(star, name)
            scope = scope.around

    def _in_project(
        self, importer: str, fact: Fact, attributes: Attributes
    ) -> tuple[Fact, Attributes]:
        """Follows ``import package.module`` to the module of the project that it names."""
        if isinstance(fact, Named) and not self._project.is_outside(fact.name):
            for end in range(1, len(attributes) + 1):
                name = ".".join((fact.name, *attributes[:end]))
                path = self._project.module_path(importer, name, 0)
                if path is not None:
                    return Exported(path, ""), attributes[end:]
        return fact, attributes

    def _text(self, function: Function) -> Text:
        node = function.node
        if node not in self._texts:
            imports = _imports(function)
            code = _code(function, imports)
            paths: dict[str, list[Attributes]] = {}
            for path in set(_PATH.findall(code)):
                first, *rest = path.split(".")
                paths.setdefault(first, []).append(tuple(rest))
            words = frozenset(paths).union(*(rest for found in paths.values() for rest in found))
            takes_first = _ZERO.search(code) is not None and _FIRST.search(code) is not None
            names_mesh = "mesh" in code.lower() and any(
                word.lower().endswith("mesh") for word in words
            )
            is_first = index_taken(node) == 0
            self._texts[node] = Text(paths, words, is_first, takes_first, names_mesh, imports)
        return self._texts[node]


def _code(function: Function, imports: tuple[Import, ...]) -> str:
    """Returns the text of a function's body without what names nothing: strings, and bindings.

    Defaults and annotations were read where the function is defined.
    """
    node = function.node
    if isinstance(node, ast.Lambda):
        # It may begin in the middle of a line.
        return _without_names_bound(f"lambda: {ast.unparse(node.body)}")
    first = node.body[0]
    start = first_line(first)
    lines = _lines_of_code(function.module.source)[start - 1 : node.end_lineno]
    for inner in imports:
        own = slice(inner.lineno - start, (inner.end_lineno or inner.lineno) - start + 1)
        if ";" not in "".join(lines[own]):
            lines[own] = [""] * len(lines[own])
    return "\n".join(lines)


@functools.lru_cache(maxsize=128)
def _lines_of_code(source: Source) -> list[str]:
    """Returns a file's lines without strings and comments, and without names that are bound."""
    text = _without_names_bound(_without_strings("\n" + "\n".join(source.lines)))
    return "".join(_FIRST_PARAMETER.split(text)).split("\n")[1:]


def _without_names_bound(text: str) -> str:
    # Splitting keeps what is in the group, many times faster than a function replaces matches.
    return "".join(_BOUND.split(text))


def _without_strings(text: str) -> str:
    """Returns a text without strings, but those that have code in them, and without comments."""
    kept, done = [], 0
    for found in _STRING_OR_COMMENT.finditer(text):
        start = found.start()
        if text[start] != "#" and text[start - 1 : start].isalpha():
            prefix = _PREFIX.search(text[max(0, start - 3) : start])
            if prefix is not None:
                if "f" in prefix[0].lower():
                    continue
                start -= len(prefix[0])
        kept.append(text[done:start])
        kept.append('""')
        done = found.end()
        lines = text.count("\n", start, done)
        if lines:
            kept.append("\n" * lines)
    kept.append(text[done:])
    return "".join(kept)


@functools.lru_cache(maxsize=128)
def _lines_with_imports(source: Source) -> list[int]:
    return [number for number, line in enumerate(source.lines, 1) if "import" in line]


def _imports(function: Function) -> tuple[Import, ...]:
    node = function.node
    lines = _lines_with_imports(function.module.source)
    first = bisect.bisect_left(lines, node.lineno)
    if first == len(lines) or lines[first] > (node.end_lineno or 0):
        return ()
    return tuple(n for n in syntax.walk(node) if isinstance(n, (ast.Import, ast.ImportFrom)))


def _imported(imports: Iterable[Import]) -> Iterator[str]:
    for node in imports:
        package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        yield from (package + alias.name for alias in node.names)


def _modules(names: Iterable[str]) -> frozenset[str]:
    """Returns the modules that names are in, and the packages of these."""
    found = set[str]()
    for name in names:
        while name := name.rpartition(".")[0]:
            found.add(name)
    return frozenset(found)


def _parts(fact: Bound | Method | Partial | Items | Dict | Elements) -> Iterator[Fact]:
    if isinstance(fact, (Bound, Method)):
        yield fact.owner
        if isinstance(fact, Bound):
            yield fact.function
    elif isinstance(fact, Elements):
        yield from fact.element
    elif isinstance(fact, Partial):
        yield from fact.function
        for held in (*fact.args, *(held for _, held in fact.keywords)):
            yield from held
    elif isinstance(fact, Items):
        for held in fact.items:
            yield from held
    else:
        for _, held in fact.items:
            yield from held


def _is_settled(function: Function) -> bool:
    """Returns whether the names around a function have all been bound."""
    scope: Environment | None = function.around
    while scope is not None:
        if not scope.is_finished and not isinstance(scope.node, (ast.Module, ast.ClassDef)):
            return False
        scope = scope.around
    return function.module.is_executed
