"""Mesh axes that represent pmap axes, whose names may be any hashable object."""

from __future__ import annotations

from collections.abc import Hashable


class AxisToken(str):
    """A mesh axis name that answers to an object of the user's.

    Meshes take strings only, while pmap's axis names may be any hashable object. JAX looks names
    up by equality, so a string that equals (and hashes as) the user's object binds that object.
    ``str`` of it is ``str`` of the object, which newer releases write into the program; its own
    text is ASCII without the characters that XLA cannot read back from the program.
    """

    name: Hashable

    def __new__(cls, name: Hashable) -> AxisToken:
        token = super().__new__(cls, _readable_by_xla(str(name)) or '""')
        token.name = name
        return token

    def __str__(self) -> str:
        return str(self.name)

    def __eq__(self, other: object) -> bool:
        """Equals the user's object and any token of it, never a plain string of that text."""
        return self.name == (other.name if isinstance(other, AxisToken) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.name)


class SpecToken(AxisToken):
    """An axis token for partition specs: equal to the mesh's token, not to the user's object.

    JAX caches specs by equality, and a spec over an axis named ``("a", "b")`` must not be taken
    for one over the two axes "a" and "b".
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AxisToken) and self.name == other.name

    __hash__ = AxisToken.__hash__


def _readable_by_xla(text: str) -> str:
    """Returns ``text`` with the characters that XLA cannot read back as their code points.

    It writes names between single quotes, and ends the process at an escape that it does not know.
    """
    return "".join(c if c.isascii() and c not in "'\\" else f"<U+{ord(c):04X}>" for c in text)


def mesh_axis_name(axis_name: Hashable | None, depth: int = 0) -> str:
    """Returns the mesh axis for a pmap axis; ``depth`` distinguishes unnamed nested axes."""
    if axis_name is None:
        return f"pmapx_axis_{depth}"
    if type(axis_name) is str and axis_name and _readable_by_xla(axis_name) == axis_name:
        return axis_name
    return AxisToken(axis_name)


def in_spec(mesh_axis: str) -> str:
    """Returns a mesh axis as partition specs name it."""
    return SpecToken(mesh_axis.name) if isinstance(mesh_axis, AxisToken) else mesh_axis
