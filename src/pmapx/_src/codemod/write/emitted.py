"""The functions that a migrated module is given, each once and only where something uses it.

They are plain JAX: a reader of the migrated program has all that it does before him. Some have
another text where a map is met inside another, or where several processes may run the program
(``Manner``); their names and their use are the same there.
"""

from __future__ import annotations

import ast
import builtins
import enum

from pmapx._src.codemod.write import emitted_texts as texts


class Manner(enum.Enum):
    """What a module's maps meet besides rows and devices.

    ``SIMPLE`` is for a module whose maps all map the first axis of everything, as most do.
    """

    SIMPLE = "simple"
    PLAIN = "plain"
    NESTED = "nested"
    PROCESSES = "processes"


TEXTS = {
    "device_put_sharded": texts.DEVICE_PUT_SHARDED,
    "device_put_replicated": texts.DEVICE_PUT_REPLICATED,
    "replicate_rows": texts.REPLICATE_ROWS,
    "first_row": texts.FIRST_ROW,
    "each_leaf": texts.EACH_LEAF,
    "on_one_row": texts.ON_ONE_ROW,
    "on_one_row_along": texts.ON_ONE_ROW_ALONG,
    "map_own_rows": texts.MAP_OWN_ROWS,
    "InnerAxisMet": texts.INNER_AXIS_MET,
    "over_one_mesh": texts.OVER_ONE_MESH,
    "one_row_each": texts.ONE_ROW_EACH,
    "remembered_rows": texts.REMEMBERED_ROWS,
    "kept_one_row_each": texts.KEPT_ROWS,
    "map_rows": texts.MAP_ROWS,
}
OTHER_TEXTS = {
    Manner.SIMPLE: {"one_row_each": texts.SIMPLE_ROWS},
    Manner.NESTED: {"one_row_each": texts.NESTED_ROWS},
    Manner.PROCESSES: {"map_rows": texts.MAP_ROWS_OF_PROCESSES},
}
NEEDS = {
    "on_one_row_along": ("each_leaf",),
    "one_row_each": ("each_leaf",),
    "remembered_rows": ("one_row_each",),
    "kept_one_row_each": ("remembered_rows",),
    "map_rows": ("kept_one_row_each",),
    "over_one_mesh": ("InnerAxisMet",),
    "device_put_replicated": ("device_put_sharded",),
}
# Modules that the functions name besides jax.
IMPORTS = {
    "on_one_row": ("import functools",),
    "on_one_row_along": ("import functools",),
    "map_own_rows": ("from jax.experimental import multihost_utils",),
    "remembered_rows": ("import functools",),
    "over_one_mesh": ("import numpy",),
}
PROCESS_IMPORTS = {"map_rows": ("from jax.experimental import multihost_utils",)}


def with_needs(wanted: set[str], manner: Manner = Manner.PLAIN) -> list[str]:
    """Returns the functions to write, those that others use before them.

    >>> with_needs({"kept_one_row_each"})
    ['each_leaf', 'one_row_each', 'remembered_rows', 'kept_one_row_each']
    """
    whole, new = set(wanted), set(wanted)
    while new:
        if manner is Manner.SIMPLE:
            new.discard("one_row_each")
        new = {needed for name in new for needed in NEEDS.get(name, ())}
        if manner is Manner.NESTED and "one_row_each" in new | whole:
            new.add("over_one_mesh")
        new -= whole
        whole |= new
    return [name for name in TEXTS if name in whole]


def source(name: str, manner: Manner = Manner.PLAIN) -> str:
    """Returns a function's text, as it is in such a module."""
    return OTHER_TEXTS.get(manner, {}).get(name) or TEXTS[name]


def imports(names: list[str], manner: Manner = Manner.PLAIN) -> list[str]:
    """Returns the imports that these functions need besides that of jax.

    >>> imports(["remembered_rows", "map_rows"], Manner.PROCESSES)
    ['import functools', 'from jax.experimental import multihost_utils']
    """
    found = [line for name in names for line in IMPORTS.get(name, ())]
    if manner is Manner.PROCESSES:
        found += [line for name in names for line in PROCESS_IMPORTS.get(name, ())]
    return list(dict.fromkeys(found))


def words(names: list[str], manner: Manner = Manner.PLAIN) -> set[str]:
    """Returns the names of Python's own, and of modules, that these functions use.

    >>> sorted(words(["device_put_replicated"]))
    ['len']
    """
    trees = [ast.parse(source(name, manner)) for name in names]
    used = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    lines = [line.split() for line in imports(names, manner)]
    return (used & set(dir(builtins))) | {line[1] for line in lines if line[0] == "import"}


def text(name: str, indent: str, manner: Manner = Manner.PLAIN) -> str:
    """Returns a function's text in the file's own indentation."""
    lines = []
    for line in source(name, manner).splitlines(keepends=True):
        depth = (len(line) - len(line.lstrip(" "))) // 4
        lines.append(indent * depth + line.lstrip(" "))
    return "".join(lines)
