"""The mesh and the specs of a map whose options can be read at its site."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import Site
from pmapx._src.analysis.values import Mapped, constant

UNNAMED = '"rows"'
_OPTIONS = frozenset(
    {"axis_name", "in_axes", "out_axes", "devices", "backend", "axis_size", "donate_argnums"}
)
# Arguments of another length would be an error of pmap, so that these say nothing new.
_ALL_DEVICES = re.compile(r"(jax\.)?(local_)?device_count\(\)|len\((jax\.)?(local_)?devices\(\)\)")
_DEVICES = re.compile(r"jax\.(local_)?devices\([^()]*\)(\[[^\[\]]*\])?")


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """The texts of a map's mesh and specs; ``axes`` are its options where one is not leading."""

    mesh: str
    in_specs: str
    out_specs: str
    axes: tuple[str, ...] = ()

    @property
    def body(self) -> str:
        """The emitted function that takes the mapped axes off a device's shard."""
        return "on_one_row_along" if self.axes else "on_one_row"

    def specs(self) -> list[str]:
        """Returns the arguments of ``jax.shard_map``."""
        return [f"mesh={self.mesh}", f"in_specs={self.in_specs}", f"out_specs={self.out_specs}"]


def layout(module: Module, site: Site) -> Layout | str:
    """Returns the mesh and specs of a map, or why they are not known."""
    options = dict(site.options)
    if not _OPTIONS.issuperset(options) or any("\n" in text for text in options.values()):
        return "it has options that jax.shard_map has not"
    name, devices = _axis_name(module, site), _devices(options)
    in_axes, out_axes = (_axes(options.get(key, "0")) for key in ("in_axes", "out_axes"))
    if name is None or devices is None or in_axes is ... or out_axes is ...:
        return "its axes, their name or its devices are not written at the site"
    if _has_keyword_calls(module, site):
        return "it is called with keywords, which jax.shard_map does not take"
    if "axis_size" in options and not _ALL_DEVICES.fullmatch(options["axis_size"]):
        return "its size may be another than the number of devices"
    axes = _axis_options(options, in_axes, out_axes)
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    mesh = f"jax.sharding.Mesh({devices}, ({name},))"
    return Layout(mesh, _spec(in_axes, name), _spec(out_axes, name), axes)


def _axis_name(module: Module, site: Site) -> str | None:
    """Returns the text of the axis's name, if it is sure to be a string there."""
    text = site.option("axis_name") or "None"
    if text == "None" or re.fullmatch(r"'[^'\\]*'|\"[^\"\\]*\"", text):
        return UNNAMED if text == "None" else text
    held = [
        constant(making.options.get("axis_name", frozenset()))
        for making in module.facts.makings.values()
        if making.site in site.places
    ]
    is_string = bool(held) and all(isinstance(each, str) for each in held)
    return text if is_string and re.fullmatch(r"[\w.]+", text) else None


def _devices(options: dict[str, str]) -> str | None:
    """Returns the text of the mesh's devices, if they are sure to be there."""
    devices, backend = (options.get(key, "None") for key in ("devices", "backend"))
    if devices != "None":
        return devices if backend == "None" and _DEVICES.fullmatch(devices) else None
    if backend == "None":
        return "jax.devices()"
    is_string = re.fullmatch(r"'\w+'|\"\w+\"", backend) is not None
    return f"jax.devices({backend})" if is_string else None


def _axes(text: str) -> object:
    """Returns axes that are written as such, ``...`` if they are not or count from the end."""
    try:
        axes = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ...
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
    return axis is None or (type(axis) is int and axis >= 0)


def _axis_options(options: dict[str, str], in_axes: object, out_axes: object) -> tuple[str, ...]:
    given = {"in_axes": in_axes, "out_axes": out_axes}
    return tuple(
        f"{key}={tuple(axes)!r}" if isinstance(axes, list) else f"{key}={options[key]}"
        for key, axes in given.items()
        if axes != 0
    )


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
        # Keys in the quotes that the name of the axis has.
        keys = [repr(key) if "'" in name else repr(key).replace("'", '"') for key in axes]
        parts = [
            f"{key}: {_spec(part, name)}" for key, part in zip(keys, axes.values(), strict=True)
        ]
        return f"{{{', '.join(parts)}}}"
    if axes is None:
        return "jax.P()"
    assert isinstance(axes, int)
    return f"jax.P({', '.join([*['None'] * axes, name])})"


def _has_keyword_calls(module: Module, site: Site) -> bool:
    """Returns whether something calls the map with keywords, which jax.shard_map does not take."""
    return any(
        isinstance(call, ast.Call)
        and call.keywords
        and any(isinstance(fact, Mapped) and fact.site in site.places for fact in callee)
        for other in module.project.modules.values()
        if other is not None
        for call, callee in other.facts.callees.items()
    )
