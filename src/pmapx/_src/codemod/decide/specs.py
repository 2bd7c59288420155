"""The mesh and the specs of a map whose options can be read at its site."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import Site
from pmapx._src.analysis.values import constant
from pmapx._src.codemod.decide import fields
from pmapx._src.codemod.decide.axis_names import UNNAMED
from pmapx._src.codemod.decide.map_calls import map_calls
from pmapx._src.codemod.text.name_uses import name_uses

_OPTIONS = frozenset(
    {
        "axis_name", "in_axes", "out_axes", "devices", "backend", "axis_size", "donate_argnums",
        "static_broadcasted_argnums",
    }
)  # fmt: skip
# Arguments of another length would be an error of pmap, so that these add nothing.
_ALL_DEVICES = re.compile(r"(jax\.)?(local_)?device_count\(\)|len\((jax\.)?(local_)?devices\(\)\)")
# In one process, those are all.
LOCAL = "jax.local_devices()"
_EVERY_DEVICE = re.compile(r"jax\.devices\(\)")
_DEVICES = re.compile(r"(jax\.(local_)?devices\([^()]*\)|[\w.]+)(\[[^\[\]]*\])?")


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How a map's arguments and results are sharded.

    ``axis`` is the text of the mesh axis's name as the user wrote it, empty without one;
    ``devices`` the text of the mesh's devices, empty for all. ``merged`` and ``merged_results``
    are the positions whose arrays are global: a shard is what the mapped body takes or gives.
    An axis is a number, or the names of the mesh axes that the leading ones are sharded along.
    """

    axis: str
    devices: str
    in_axes: object
    out_axes: object
    static: tuple[int, ...] = ()
    merged: frozenset[int] = frozenset()
    merged_results: frozenset[int] = frozenset()

    def in_axis(self, position: int) -> object:
        """Returns the axis that the mapped body has not; None also for what is merged."""
        if position in self.merged:
            return None
        return self.in_axes[position] if isinstance(self.in_axes, tuple) else self.in_axes

    def in_axes_of(self, position: int) -> object:
        """Returns the axis that an argument is sharded along, ``...`` if there is no such one."""
        if not isinstance(self.in_axes, tuple):
            return self.in_axes
        return self.in_axes[position] if position < len(self.in_axes) else ...

    @property
    def is_single_result_merged(self) -> bool:
        """Whether the result, which is not a tuple, is merged."""
        return -1 in self.merged_results

    @property
    def is_leading(self) -> bool:
        """Whether all arguments have a leading device axis, whatever their number."""
        return self.in_axes == 0 and not self.merged and not self.static

    @property
    def is_replicated(self) -> bool:
        """Whether all arguments and results are the same on all devices."""
        return not any(
            isinstance(axis, (int, str, set)) for axis in _leaves((self.in_axes, self.out_axes))
        )

    def with_keywords(self, before: int, count: int) -> Layout:
        """Returns the same with the axis of the keywords that every call gives, 0."""
        if not isinstance(self.in_axes, tuple) or before != len(self.in_axes):
            return self
        return dataclasses.replace(self, in_axes=(*self.in_axes, *[0] * count))

    def in_one_process(self) -> Layout:
        """Returns the same where the local devices are all that there are."""
        return dataclasses.replace(self, devices="") if self.devices == LOCAL else self

    def in_processes(self, may_be_local: bool) -> Layout:
        """Returns the same where each process has its own shards.

        Without the name of an axis nothing is reduced over it: each can map its own.
        """
        is_stacked = self.in_axes == 0 and self.out_axes == 0 and not self.merged
        is_alone = is_stacked and not self.axis and not self.devices and may_be_local
        return dataclasses.replace(self, devices=LOCAL) if is_alone else self

    def in_specs(self, name: str, count: int | None) -> str:
        """Returns the text of ``in_specs`` for this number of arguments, static ones among them."""
        if isinstance(self.in_axes, tuple):
            axes = self.in_axes
        elif count is not None and self.merged and self.in_axes != 0:
            axes = (self.in_axes,) * count
        else:
            return _spec(self.in_axes, name)
        kept = [
            0 if position in self.merged else axis
            for position, axis in enumerate(axes)
            if position not in self.static
        ]
        return _spec(kept[0] if _is_one(kept) else tuple(kept), name)

    def out_specs(self, name: str) -> str:
        """Returns the text of ``out_specs``."""
        if isinstance(self.out_axes, tuple):
            axes = [0 if i in self.merged_results else a for i, a in enumerate(self.out_axes)]
            return _spec(axes[0] if _is_one(axes) else tuple(axes), name)
        return _spec(self.out_axes, name)


def _is_one(axes: list[object]) -> bool:
    return bool(axes) and all(type(a) in (int, str, type(None)) and a == axes[0] for a in axes)


def layout(module: Module, site: Site) -> Layout | str:
    """Returns how a map shards its arguments, or why that is not known."""
    options = {name: " ".join(text.split()) for name, text in site.options}
    if not _OPTIONS.issuperset(options):
        return "it has options that jax.shard_map does not have"
    for name, text in options.items():
        options[name] = _held(module, site, name, text) if text.isidentifier() else text
    axis, devices = _axis_name(module, site), _devices(options)
    in_axes, out_axes = (_axes(options.get(key, "0")) for key in ("in_axes", "out_axes"))
    static = argnums(options.get("static_broadcasted_argnums", "()"))
    if axis is None or devices is None or static is None or in_axes is ... or out_axes is ...:
        return "its axes, their name or its devices are not written at the site"
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    if isinstance(in_axes, dict) or (static and max(static) >= 100):
        return "its in_axes is not a tuple"
    if isinstance(in_axes, tuple):
        # pmap does not look at the axes of static arguments, so that the last may have none.
        for position in range(len(in_axes), max(static, default=-1) + 1):
            in_axes = (*in_axes, None) if position in static else in_axes
    return Layout(axis, devices, in_axes, out_axes, static)


def has_size(site: Site) -> bool:
    """Returns whether a map has a size of its own, which may not be that of all devices."""
    size = site.option("axis_size")
    return size is not None and not _ALL_DEVICES.fullmatch(size)


def axis_value(module: Module, site: Site) -> str | None:
    """Returns the name of a map's axis, None if it has none or it is not known."""
    text = site.option("axis_name") or "None"
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        held = _held_names(module, site)
        found = held.pop() if len(held) == 1 else None
    return found if isinstance(found, str) else None


def _axis_name(module: Module, site: Site) -> str | None:
    """Returns the text of the axis's name, empty without one, None if it may be no string."""
    text = site.option("axis_name") or "None"
    if text == "None" or re.fullmatch(r"'[^'\\]*'|\"[^\"\\]*\"", text):
        return "" if text == "None" else text
    held = _held_names(module, site)
    is_string = len(held) == 1 and all(isinstance(each, str) for each in held)
    if re.fullmatch(r"[\w.]+", text) is None:
        return None
    if {type(each) for each in held} == {str, type(None)}:
        # Without the name of an axis there are no collectives over it, so that any name will do.
        return f'{text} or "{UNNAMED}"'
    return text if is_string else None


def _held_names(module: Module, site: Site) -> set[object]:
    """Returns what the name of a map's axis may be, ``...`` if that is not known."""
    held = [
        making.options.get("axis_name", frozenset())
        for making in module.facts.makings.values()
        if making.site in site.places
    ]
    return {constant(frozenset({fact})) for each in held for fact in each} or {...}


def _devices(options: dict[str, str]) -> str | None:
    """Returns the text of the mesh's devices, empty for all, None if they are not known."""
    devices, backend = (options.get(key, "None") for key in ("devices", "backend"))
    if devices != "None":
        # pmap does not read ``backend`` beside ``devices``.
        if not _DEVICES.fullmatch(devices):
            return None
        return "" if _EVERY_DEVICE.fullmatch(devices) else devices
    if backend == "None":
        return ""
    is_string = re.fullmatch(r"'\w+'|\"\w+\"", backend) is not None
    return f"jax.devices({backend})" if is_string else None


def _held(module: Module, site: Site, option: str, name: str) -> str:
    """Returns the axes that a name holds, or all devices or those of the process, else the name."""
    if option not in ("devices", "in_axes", "out_axes"):
        return name
    uses = name_uses(module)
    here = [node for node in uses.names.get(name, ()) if module.place(node).is_inside(site.place)]
    around = [None, *module.functions_around(here[0])] if here else []
    bound = [
        module.parent(node)
        for node in uses.bound.get(name, ())
        if next(iter(module.functions_around(node)), None) in around
    ]
    held = {ast.unparse(each.value) if isinstance(each, ast.Assign) else name for each in bound}
    value = held.pop() if len(held) == 1 else name
    is_known = value in (LOCAL, "jax.devices()") if option == "devices" else _axes(value) is not ...
    return value if is_known else name


def literal(text: str) -> object:
    """Returns the value of a literal, or of tuples that are added and repeated; else ``...``.

    >>> literal("(0,) * 3 + (None,)"), literal("list(range(2))"), literal("axes")
    ((0, 0, 0, None), [0, 1], Ellipsis)
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ...


def _value(node: ast.expr) -> Any:
    match node:
        case ast.BinOp(left=ast.Tuple() | ast.BinOp() as left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=ast.Tuple() as left, op=ast.Mult(), right=ast.Constant(value=count)):
            return _value(left) * min(count, 100)  # type: ignore[type-var, operator]
        case ast.Call(func=ast.Name(id="tuple" | "list" as name), args=[inner], keywords=[]):
            return (tuple if name == "tuple" else list)(_value(inner))
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(count))]):
            return tuple(range(min(count, 100)))
    return ast.literal_eval(node)


def argnums(text: str) -> tuple[int, ...] | None:
    """Returns positions of arguments, None if they are not written out or count from the end."""
    found = literal(text)
    several = (found,) if isinstance(found, int) else found
    if not isinstance(several, (tuple, list)) or not all(type(i) is int for i in several):
        return None
    return tuple(sorted(several)) if all(i >= 0 for i in several) else None


def _axes(text: str) -> object:
    """Returns axes that are written as such, ``...`` if they are not or count from the end."""
    axes = literal(text)
    return axes if all(_is_axis(axis) for axis in _leaves(axes)) else ...


def _leaves(axes: object) -> Iterator[object]:
    if isinstance(axes, (tuple, list)):
        for part in axes:
            yield from _leaves(part)
    elif isinstance(axes, dict) and all(_is_plain_key(key) for key in axes):
        for part in axes.values():
            yield from _leaves(part)
    else:
        yield axes


def _is_plain_key(key: object) -> bool:
    return isinstance(key, int) or (
        isinstance(key, str) and re.fullmatch(r"[\w./ -]*", key) is not None
    )


def _is_axis(axis: object) -> bool:
    return isinstance(axis, set) or axis is None or (type(axis) is int and axis >= 0)


def _spec(axes: object, name: str) -> str:
    """Returns the text of a spec for each axis.

    >>> print(_spec((0, None, {"x": 1}), '"i"'))
    (jax.P("i"), jax.P(), {"x": jax.P(None, "i")})
    """
    if isinstance(axes, tuple):
        parts = [_spec(part, name) for part in axes]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if isinstance(axes, list):
        return f"[{', '.join(_spec(part, name) for part in axes)}]"
    if isinstance(axes, dict):
        parts = [f"{key_text(key, name)}: {_spec(part, name)}" for key, part in axes.items()]
        return f"{{{', '.join(parts)}}}"
    if axes is None:
        return "jax.P()"
    if isinstance(axes, str):
        return f"jax.P({axes})"
    if isinstance(axes, set):
        return fields.read(axes).text(name)
    assert isinstance(axes, int)
    return f"jax.P({', '.join([*['None'] * axes, name])})"


def first_mapped(text: str, axes: object, quoted: str) -> tuple[str, int] | None:
    """Returns the first part of a tree that is mapped, and along which axis."""
    if isinstance(axes, int):
        return text, axes
    pairs = axes.items() if isinstance(axes, dict) else enumerate(axes or ())  # type: ignore[arg-type, var-annotated]
    for key, part in pairs:
        found = first_mapped(f"{text}[{key_text(key, quoted)}]", part, quoted)
        if found is not None:
            return found
    return None


def key_text(key: object, name: str) -> str:
    """Returns a key of a dict in the quotes that the name of the axis has."""
    return repr(key) if "'" in name else repr(key).replace("'", '"')


def has_keyword_calls(module: Module, site: Site) -> bool:
    """Returns whether something calls the map with keywords, which jax.shard_map does not take."""
    return any(call.keywords for _, call in map_calls(module, site))
