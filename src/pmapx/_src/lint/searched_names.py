"""The names that the rules look for: a file that has none of them is not parsed."""

import functools

from pmapx._src.source.name_search import NameSearch

# The packages whose names rules look for; most files of most projects have neither word.
PACKAGES = (b"jax", b"flax")


def has_uses(data: bytes) -> bool:
    r"""Returns whether a file's bytes may lead to a finding.

    >>> has_uses(b"import jax; jax.pmap(f)"), has_uses(b"import jax\njax.jit(f)")
    (True, False)
    """
    if not any(package in data for package in PACKAGES):
        return False
    # The rules are imported when the first file asks for them.
    from pmapx._src.analysis.known_names import has_followed

    return has_followed(data) or _search().is_in(data)


@functools.cache
def relevant() -> frozenset[str]:
    """Returns all names without which a function has no finding."""
    from pmapx._src.analysis import known_names

    # What makes a program one of several processes, and a mesh.
    others = known_names.PROCESSES | {"mesh"}
    return _names() | known_names.RETURNING | others


@functools.cache
def _search() -> NameSearch:
    from pmapx._src.analysis.known_names import FOLLOWED

    return NameSearch(_names() - FOLLOWED)


@functools.cache
def _names() -> frozenset[str]:
    from pmapx._src.lint.rules import all_rules

    return frozenset(name for rule in all_rules().values() for name in rule.names)
