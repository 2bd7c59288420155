"""Which files of a tree are one program: a script, and what it imports.

A tree may have several programs. What is known of one, such as that it is multi-process, holds for
the files of the scripts that reach a pmapped function, not for the others.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import MOST_OTHERS
from pmapx._src.codemod.decide.process_model import ORDINARY, Surroundings
from pmapx._src.source import files, notebooks

# Of those that import one with pmap, which may call what it has, so many bytes are read.
MOST_IMPORTING = 2_000_000
_FROM = re.compile(
    rb"^[ \t]*(?:>>> )?from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n;#]*)", re.MULTILINE
)
_IMPORT = re.compile(rb"^[ \t]*import[ \t]+([^\n;#]+)", re.MULTILINE)
_WORD = re.compile(rb"\w+")
# Modules that are chosen while the program runs.
_DYNAMIC = re.compile(rb"\bimportlib\.import_module\b|\b__import__\(")
# What maps, or puts arrays on devices for maps elsewhere.
_MAPPING = frozenset(
    {
        "jax.pmap", "jax.device_put_replicated", "jax.device_put_sharded",
        "flax.jax_utils.replicate",
    }
)  # fmt: skip


def importers(paths: Sequence[str], texts: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the files that import one with a use of pmap, and have none themselves.

    Those that import one with the word are all read, or the shortest if there are very many.
    """
    stems = {_stem(path) for path in texts}
    mapping = {_stem(path) for path, data in texts.items() if b"pmap" in data}
    found: list[tuple[bool, int, str, bytes]] = []
    for path in paths:
        data = files.read_bytes(path) if path not in texts else None
        if isinstance(data, bytes) and path.endswith((".py", ".ipynb")):
            words = files.imported_words(data)
            if words & stems:
                found.append((not words & mapping, len(data), path, data))
    kept: dict[str, bytes] = {}
    size = 0
    for is_other, length, path, data in sorted(found):
        size += length
        if len(kept) >= MOST_OTHERS and (is_other or size > MOST_IMPORTING):
            break
        kept[path] = data
    return {path: kept[path] for path in paths if path in kept}


def _stem(path: str) -> bytes:
    """Returns the word by which a file is imported."""
    folder, name = os.path.split(path)
    word = os.path.basename(folder) if name == "__init__.py" else name.removesuffix(".py")
    return word.encode()


def surroundings(
    modules: Iterable[Module], paths: Mapping[str, str], shown: Mapping[str, Surroundings]
) -> dict[str, Surroundings]:
    """Returns what is known of the program that each module is part of, by its path.

    ``paths`` are all files of the tree by their normal path, ``shown`` what each of them shows. A
    module that no script of the tree reaches may be part of any program.
    """
    every = ORDINARY
    for each in shown.values():
        every |= each
    tree = _Tree(modules, paths)
    found: dict[str, Surroundings] = {}
    for path in tree.modules:
        scripts = [user for user in tree.users(path) if tree.is_script(user)]
        around = ORDINARY
        for script in scripts:
            for file in tree.reached(script):
                around |= shown.get(file, ORDINARY)
        is_known = bool(scripts) and not any(map(tree.is_dynamic, scripts))
        found[path] = around if is_known else every
    for group in tree.agreeing():
        around = ORDINARY
        for path in group:
            around |= found[path]
        found.update(dict.fromkeys(group, around))
    # What is asked for elsewhere in the tree shows how its authors use devices.
    return {
        path: Surroundings(
            each.in_processes, every.counts_devices, each.takes_some, each.is_set_late
        )
        for path, each in found.items()
    }


class _Tree:
    """The imports between the files of a tree."""

    def __init__(self, modules: Iterable[Module], paths: Mapping[str, str]) -> None:
        self.modules = {os.path.normpath(module.path): module for module in modules}
        self._leading: dict[str, set[bytes] | None] = {}
        self._texts = {path: _python(given) for path, given in paths.items()}
        self._imports: dict[str, dict[str, set[bytes]]] = {path: {} for path in self._texts}
        self._importers: dict[str, set[str]] = {path: set() for path in self._texts}
        project = next(iter(self.modules.values())).project
        for path, data in self._texts.items():
            for name, level, words in _imported(data):
                target = project.module_path(path, name, level)
                children = [
                    (project.module_path(path, f"{name}.{word}" if name else word, level), word)
                    for word in (each.decode("utf-8", "ignore") for each in words)
                ]
                if target is not None:
                    self._add(path, target, words)
                for child, word in children:
                    if child is not None and child != target:
                        self._add(path, child, {b"", word.encode()})

    def _add(self, path: str, target: str, words: set[bytes]) -> None:
        target = os.path.normpath(target)
        if target in self._texts and target != path:
            self._imports[path].setdefault(target, set()).update(words)
            self._importers[target].add(path)

    def is_script(self, path: str) -> bool:
        """Returns whether a file is run: by its last lines, or because no other imports it."""
        data, folder = self._texts[path], os.path.dirname(path)
        if b"__main__" in data or path.endswith(".ipynb"):
            return True
        is_package = os.path.exists(os.path.join(folder, "__init__.py"))
        return not self._importers[path] and not is_package and not files.is_test(path)

    def is_dynamic(self, script: str) -> bool:
        return any(_DYNAMIC.search(self._texts[file]) for file in self.reached(script))

    def reached(self, path: str) -> set[str]:
        """Returns a file and all that it imports."""
        return _closure([path], lambda each: self._imports[each])

    def users(self, path: str) -> set[str]:
        """Returns a module, the files that use its maps, and all that import these."""
        direct = [user for user in self._importers[path] if self._uses(user, path)]
        return {path} | _closure(direct, lambda each: self._importers[each])

    def _uses(self, user: str, path: str) -> bool:
        """Returns whether a file imports something that leads to a map of a module."""
        if path not in self._leading:
            self._leading[path] = _leading(self.modules[path])
        words, leading = self._imports[user][path], self._leading[path]
        if b"*" in words or leading is None or words & leading:
            return True
        return b"" in words and any(
            re.search(rb"\b" + name + rb"\b", self._texts[user]) for name in leading
        )

    def agreeing(self) -> Iterator[set[str]]:
        """Yields the modules that hand arrays to each other's maps."""
        near: dict[str, set[str]] = {path: set() for path in self.modules}
        for path in self.modules:
            for user in self._importers[path] & near.keys():
                if self._uses(user, path):
                    near[path].add(user)
                    near[user].add(path)
        left = set(near)
        while left:
            group = _closure([left.pop()], lambda each: near[each])
            left -= group
            yield group


def _python(path: str) -> bytes:
    data = files.read_bytes(path)
    if not isinstance(data, bytes) or not path.endswith(".ipynb"):
        return data if isinstance(data, bytes) else b""
    try:
        return "\n".join(text for _, text in notebooks.texts(data)).encode("utf-8", "replace")
    except ValueError:
        return b""


def _closure(start: Sequence[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    found, new = set(start), list(start)
    while new:
        for each in following(new.pop()):
            if each not in found:
                found.add(each)
                new.append(each)
    return found


def _imported(data: bytes) -> Iterator[tuple[str, int, set[bytes]]]:
    """Yields the modules that a file imports, and the names from each; b"" for the module."""
    for found in _FROM.finditer(data):
        name = found[1].decode("utf-8", "ignore")
        words = {
            _WORD.findall(part)[0] if _WORD.search(part) else part.strip()
            for part in found[2].strip(b"()").split(b",")
        }
        yield name.lstrip("."), len(name) - len(name.lstrip(".")), words - {b""}
    for found in _IMPORT.finditer(data):
        for part in found[1].split(b","):
            name = part.strip().partition(b" ")[0].decode("utf-8", "ignore")
            if name:
                yield name, 0, {b""}


def _leading(module: Module) -> set[bytes] | None:
    """Returns the names of a module's top level that lead to its maps, None if its import does."""
    references = [ref for ref in module.facts.references.values() if ref.by != "import"]
    nodes = [ref.node for ref in references if ref.name in _MAPPING]
    names: dict[ast.stmt, set[str]] = {}
    for statement in module.source.tree.body:
        parts = ast.walk(statement)
        names[statement] = {part.id for part in parts if isinstance(part, ast.Name)}
    leading: set[str] = set()
    for node in nodes:
        bound = _bound(module.top_statement(node))
        if not bound:
            return None
        leading |= bound
    grows = True
    while grows:
        grows = False
        for statement, used in names.items():
            bound = _bound(statement)
            if used & leading and not bound <= leading:
                leading |= bound
                grows = True
    return {name.encode() for name in leading}


def _bound(statement: ast.stmt) -> set[str]:
    """Returns the names that a statement of the top level defines."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return set()
    return {
        part.id
        for part in ast.walk(statement)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }
