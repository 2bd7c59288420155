"""Whether a file can refer to one of many names of JAX, by a look at its bytes.

A name is found where it is written in full (``jax.tree_map``), in a ``from ... import``, or after
what an import calls its module (``jnp.DeviceArray``). Flags are names without a dot, and are
written in capitals in the environment.
"""

import functools
import re
from collections.abc import Collection

_LIST = rb"(\([^)]*\)|[^\n#;\\]*(?:\\\r?\n[^\n#;\\]*)*)"
_FROM_IMPORT = re.compile(rb"from[ \t]+(jax[\w.]*)[ \t]+import[ \t]*" + _LIST)
_IMPORT_AS = re.compile(rb"(jax[\w.]*)[ \t]+as[ \t]+(\w+)")
_ITEM = re.compile(rb"(\w+|\*)(?:\s+as\s+(\w+))?")
_COMMENT = re.compile(rb"#[^\n]*")


class NameSearch:
    r"""Looks for some names, and what is below them.

    >>> search = NameSearch(["jax.tree_map", "jax.numpy.DeviceArray"])
    >>> search.is_in(b"from jax import jit, tree_map")
    True
    >>> search.is_in(b"import jax.numpy as np\nx: np.ndarray")
    False
    """

    def __init__(self, names: Collection[str]) -> None:
        """Makes the patterns for names, each in full."""
        self._names = frozenset(name.encode() for name in names if "." in name)
        flags = sorted(name for name in names if "." not in name)
        self._flags = [word.encode() for flag in flags for word in (flag, flag.upper())]
        self._modules = {
            name[:end] for name in self._names for end in _ends(name) if end < len(name)
        }
        self._in_full = _below(b"jax", self._names)
        # Most files call ``jax.numpy`` ``jnp``.
        self._behind = functools.cache(functools.partial(_behind, self._names))

    def is_in(self, data: bytes) -> bool:
        """Returns whether a file's bytes have one of the names."""
        if self._in_full.search(data) or any(flag in data for flag in self._flags):
            return True
        aliases = {(found[2], found[1]) for found in _IMPORT_AS.finditer(data)}
        for found in _FROM_IMPORT.finditer(data):
            for item in _ITEM.finditer(_COMMENT.sub(b"", found[2])):
                name = b"%b.%b" % (found[1], item[1])
                if item[1] == b"*" or any(name[:end] in self._names for end in _ends(name)):
                    return True
                aliases.add((item[2] or item[1], name))
        return any(
            self._behind(alias, module).search(data) is not None
            for alias, module in aliases
            if module in self._modules
        )


def _ends(name: bytes) -> list[int]:
    """Returns where a part of a dotted name may end."""
    return [*(found.start() for found in re.finditer(rb"\.", name)), len(name)]


def _behind(names: Collection[bytes], alias: bytes, module: bytes) -> re.Pattern[bytes]:
    below = [b"jax" + name[len(module) :] for name in names if name.startswith(module + b".")]
    return _below(alias, below)


def _below(root: bytes, names: Collection[bytes]) -> re.Pattern[bytes]:
    """Returns the pattern of dotted names of JAX, with another word instead of ``jax``."""
    paths = sorted(re.escape(name.partition(b".")[2]) for name in names)
    return re.compile(rb"%b\.(?:%b)\b" % (re.escape(root), b"|".join(paths)))
