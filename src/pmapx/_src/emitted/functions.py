"""The functions that a migrated file is given, each once and only where something uses it.

They are plain JAX in real files, ``emitted/*.py``, from which their texts are taken. Some
have another version where pmaps are nested, or in a multi-process program (``Manner``); its
name and its use are the same.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import enum
import functools
import importlib.resources
from collections.abc import Iterable


class Manner(enum.StrEnum):
    """What a file's pmaps need; the value is the file with the versions for it."""

    PLAIN = "device_map"
    NESTED = "nested_map"
    PROCESSES = "process_map"
    LEADING = "leading_map"
    LEADING_PROCESSES = "leading_process_map"
    STATIC_PROCESSES = "static_process_map"


# In the order in which their functions are written into a file.
_FILES = ("placing", "shards", "host_local", "nested_map", "device_map", "process_map",
          "leading_map", "leading_process_map", "static_process_map")  # fmt: skip
# What the functions of a file use, before the plain ones.
_BELOW = {Manner.STATIC_PROCESSES: (Manner.LEADING_PROCESSES,)}
_OTHERS = ("placing", "shards", "host_local", Manner.PLAIN, Manner.NESTED, Manner.STATIC_PROCESSES)


@dataclasses.dataclass(frozen=True, slots=True)
class Emitted:
    """A function, and what it uses: others that are emitted, import lines, Python's own names."""

    text: str
    node: ast.stmt
    needs: frozenset[str]
    imports: tuple[str, ...]
    builtins: frozenset[str]


@functools.cache
def _files() -> dict[str, dict[str, Emitted]]:
    """Returns the functions of each file by name."""
    folder = importlib.resources.files("pmapx._src.emitted")
    texts = {file: (folder / f"{file}.py").read_text("utf-8") for file in _FILES}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    defined = {
        file: [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        for file, tree in trees.items()
    }
    known = {node.name for nodes in defined.values() for node in nodes}
    return {
        file: {node.name: _extracted(texts[file], trees[file], node, known) for node in nodes}
        for file, nodes in defined.items()
    }


def _extracted(
    text: str, tree: ast.Module, node: ast.FunctionDef | ast.ClassDef, known: set[str]
) -> Emitted:
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    lines = text.splitlines(keepends=True)[first - 1 : node.end_lineno]
    used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    imports = tuple(
        ast.unparse(each)
        for each in tree.body
        if isinstance(each, (ast.Import, ast.ImportFrom))
        and {alias.name for alias in each.names} & used - known - {"jax"}
    )
    needs = frozenset(used & known - {node.name})
    return Emitted("".join(lines), node, needs, imports, frozenset(used & set(dir(builtins))))


@functools.cache
def names() -> tuple[str, ...]:
    """Returns the names of all functions, in the order in which a file is given them."""
    return tuple(dict.fromkeys(name for functions in _files().values() for name in functions))


def find(name: str, manner: Manner = Manner.PLAIN) -> Emitted:
    """Returns a function in the version for such a file."""
    files = (manner, *_BELOW.get(manner, ()), *_OTHERS)
    return next(_files()[file][name] for file in files if name in _files()[file])


def with_needs(wanted: Iterable[str], manner: Manner = Manner.PLAIN) -> list[str]:
    """Returns the functions to write, those that others use before them.

    >>> with_needs({"mapped_once"})
    ['each_leaf', 'over_mesh', 'on_each_device', 'remembered_map', 'mapped_once']
    """
    found: set[str] = set()
    new = set(wanted)
    while new:
        found |= new
        new = {needed for name in new for needed in find(name, manner).needs} - found
    return [name for name in names() if name in found]


def imports(wanted: Iterable[str], manner: Manner = Manner.PLAIN) -> list[str]:
    """Returns the imports that these functions need besides that of jax.

    >>> imports(["remembered_map", "map_over_devices"], Manner.PROCESSES)
    ['import functools', 'from jax.experimental import multihost_utils']
    """
    return list(dict.fromkeys(line for name in wanted for line in find(name, manner).imports))


def words(wanted: Iterable[str], manner: Manner = Manner.PLAIN) -> set[str]:
    """Returns the names of built-ins and modules that these functions use.

    >>> sorted(words(["device_put_replicated"]))
    ['len']
    """
    found = [find(name, manner) for name in wanted]
    modules = [line.split() for each in found for line in each.imports]
    return {word for each in found for word in each.builtins} | {
        line[1] for line in modules if line[0] == "import"
    }


def text(name: str, indent: str, manner: Manner = Manner.PLAIN) -> str:
    """Returns a function's text in the file's own indentation."""
    lines = []
    for line in find(name, manner).text.splitlines(keepends=True):
        depth = (len(line) - len(line.lstrip(" "))) // 4
        lines.append(indent * depth + line.lstrip(" "))
    return "".join(lines)
