"""Expressions that split the leading axis over the devices, and expressions that merge it again."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.codemod.decide.copies import names_called
from pmapx._src.source.rewriting.edits import Edit, between, ends, keeping, starts

SHARD = known_names.SHARD - {"flax.training.common_utils.shard_prng_key"}
_NUMPY = ("jax.numpy.", "numpy.")
_STACK = frozenset(lib + name for lib in _NUMPY for name in ("stack", "array", "asarray"))
_SPLIT = frozenset(lib + name for lib in _NUMPY for name in ("split", "array_split"))
_RESHAPE = frozenset(lib + "reshape" for lib in _NUMPY)
_CONCATENATE = frozenset(lib + "concatenate" for lib in _NUMPY)
_REARRANGE = "einops.rearrange"
_SPLITS_AXIS = re.compile(r"\s*\(\s*(\w+)\s+(\w+)\s*\)(.*?)\s*->\s*\1\s+\2\b(.*)")
_MERGES_AXIS = re.compile(r"\s*(\w+)\s+(\w+)\b(.*?)\s*->\s*\(\s*\1\s+\2\s*\)(.*)")
_SIMPLE = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant, ast.Tuple, ast.List, ast.Dict,
    ast.ListComp, ast.DictComp,
)  # fmt: skip
IsCount = Callable[[Module, ast.expr], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class Reshaped:
    """An expression that splits or merges ``of``, and the edits that stop it from doing so.

    ``is_gone`` if nothing is left but ``of``; ``has_two_axes`` if it fails unless the value that it
    merges has an axis after that of the devices.
    """

    of: ast.expr
    edits: tuple[Edit, ...]
    is_gone: bool = False
    has_two_axes: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class _Rest:
    """Several dimensions of a shape, such as ``*x.shape[1:]``."""

    node: ast.expr


_Dimension = ast.expr | _Rest


def split(module: Module, node: ast.Call, is_count: IsCount) -> Reshaped | None:
    """Returns what a call splits over the devices, None if it does not."""
    called = names_called(module, node)
    if called and called <= SHARD:
        return _gone(module, node, node.args[0]) if _is_alone(node) else None
    if called == {_REARRANGE}:
        return _rearranged(module, node, _SPLITS_AXIS, is_count)
    parts = _parts_of(module, node, called)
    if parts is not None:
        inner = parts.args
        splits_first_axis = len(inner) == 2 and _is_first_axis(parts) and is_count(module, inner[1])
        return _gone(module, node, inner[0]) if splits_first_axis else None
    of, shape = _reshape(node, called)
    if of is None or shape is None:
        return None
    return _split_shape(module, node, of, shape, is_count)


def merge(module: Module, node: ast.Call) -> Reshaped | None:
    """Returns what a call merges the two leading axes of, None if it does not."""
    called = names_called(module, node)
    first = node.args[0] if node.args else None
    if first is None and not isinstance(node.func, ast.Attribute):
        return None
    if called == {_REARRANGE}:
        return _rearranged(module, node, _MERGES_AXIS, None)
    if called and called <= _CONCATENATE and len(node.args) == 1 and _is_first_axis(node):
        return _gone(module, node, node.args[0])
    if called == {"jax.lax.collapse"} and [_number(arg) for arg in node.args[1:]] == [0, 2]:
        return _gone(module, node, node.args[0]) if not node.keywords else None
    of, shape = _reshape(node, called)
    if of is None or shape is None:
        return None
    dims = list(_dimensions(shape))
    if len(dims) != 2 or not isinstance(dims[1], _Rest):
        return None
    lead = dims[0]
    unpacked = unpacked_shape(module, node)
    if unpacked is not None:
        place = module.place(unpacked)
        gone = _gone(module, node, of)
        without = between((place.line, 0), (place.end_line + 1, 0))
        return gone and dataclasses.replace(gone, edits=(*gone.edits, without))
    is_product = not isinstance(lead, _Rest) and _is_product_of_two(lead, of)
    is_rest = _is_shape(dims[1].node, of, "2:")
    if is_rest and (is_product or (not isinstance(lead, _Rest) and _number(lead) == -1)):
        gone = _gone(module, node, of)
        # (n,) has no axes from the third on, and would pass.
        return gone and dataclasses.replace(gone, has_two_axes=is_product)
    return None


def unpacked_shape(module: Module, node: ast.Call) -> ast.Assign | None:
    """Returns the ``n, b, *rest = x.shape`` whose only use is ``x.reshape((n * b,) + rest)``."""
    of, shape = _reshape(node, names_called(module, node))
    dims = list(_dimensions(shape))
    if of is None or len(dims) != 2 or not isinstance(dims[1], _Rest):
        return None
    lead, rest = dims[0], dims[1].node
    is_product = isinstance(lead, ast.BinOp) and isinstance(lead.op, ast.Mult)
    wanted = [lead.left, lead.right, rest] if is_product else []  # type: ignore[union-attr]
    names = [part.id for part in wanted if isinstance(part, ast.Name)]
    around = module.functions_around(node)
    if len(names) != 3 or len(set(names)) != 3 or not around:
        return None
    converted = of.args[0] if isinstance(of, ast.Call) and len(of.args) == 1 else of
    inside = set(ast.walk(node))
    parts = list(ast.walk(around[0]))
    reads = [part for part in parts if isinstance(part, ast.Name) and part.id in names]
    stores = [part for part in reads if not isinstance(part.ctx, ast.Load)]
    if len(stores) != 3 or not all(part in inside for part in reads if part not in stores):
        return None
    for part in parts:
        if isinstance(part, ast.Assign) and _is_unpacking(part, names, converted):
            body = getattr(module.parent(part), "body", [])
            line = module.source.line(part.lineno)[: part.col_offset]
            return part if part in body and not line.strip() and len(body) > 1 else None
    return None


def _is_unpacking(node: ast.Assign, names: list[str], of: ast.expr) -> bool:
    target, value = node.targets[0], node.value
    if len(node.targets) != 1 or not isinstance(target, (ast.Tuple, ast.List)):
        return False
    bound = [part.value if isinstance(part, ast.Starred) else part for part in target.elts]
    has_rest = bool(target.elts) and isinstance(target.elts[-1], ast.Starred)
    is_shape = isinstance(value, ast.Attribute) and value.attr == "shape"
    return (
        has_rest
        and [getattr(part, "id", "") for part in bound] == names
        and is_shape
        and ast.dump(value.value) == ast.dump(of)  # type: ignore[attr-defined]
    )


def keeps_order(node: ast.Call, called: frozenset[str]) -> bool:
    """Returns whether a reshape gives the same for ``(n, b, ...)`` and for ``(n * b, ...)``.

    It does if its shape does not depend on the shape of what is reshaped.
    """
    of, shape = _reshape(node, called)
    if of is None or shape is None:
        attribute = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return attribute in ("ravel", "flatten") and not node.args and not node.keywords
    wanted = ast.dump(of)
    parts = [part for dim in shape for part in ast.walk(dim)]
    return not any(isinstance(part, ast.expr) and ast.dump(part) == wanted for part in parts)


def _gone(module: Module, node: ast.Call, kept: ast.expr) -> Reshaped | None:
    called = names_called(module, node)
    is_host = bool(called) and all(name.startswith("numpy.") for name in called)
    is_view = called <= _RESHAPE
    if not is_host or _is_array(module, kept, is_view):
        return only(module, node, kept)
    if not isinstance(node.func, ast.Attribute):
        return None
    # NumPy accepts any array-like and returns an array on the host: a new one, except for reshape.
    numpy = module.text(node.func.value)
    name = "asarray" if is_view else "array"
    edits = keeping(module.place(node), module.place(kept), f"{numpy}.{name}(", ")")
    return Reshaped(kept, edits, is_gone=True)


def only(module: Module, node: ast.Call, kept: ast.expr) -> Reshaped:
    """Replaces a call by one of its arguments."""
    place = module.place(kept)
    # The brackets of a call hold its lines together.
    first = module.place(kept.func if isinstance(kept, ast.Call) else kept)
    is_simple = isinstance(kept, _SIMPLE) and first.line == first.end_line
    before, after = ("", "") if is_simple else ("(", ")")
    return Reshaped(kept, keeping(module.place(node), place, before, after), is_gone=True)


def _is_array(module: Module, node: ast.expr, is_view: bool) -> bool:
    """Returns whether an expression is known to be a host array, and a new one unless a view."""
    called = names_called(module, node)
    return bool(called) and all(
        name.startswith("numpy.") or (is_view and name == "jax.device_get") for name in called
    )


def _is_alone(node: ast.Call) -> bool:
    return len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Starred)


def _is_first_axis(node: ast.Call) -> bool:
    return all(k.arg == "axis" and _number(k.value) == 0 for k in node.keywords)


def _number(node: ast.expr) -> int | None:
    try:
        found = ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    return found if type(found) is int else None


def _parts_of(module: Module, node: ast.Call, called: frozenset[str]) -> ast.Call | None:
    """Returns the ``np.split(x, n)`` that a call stacks."""
    is_stack = bool(called) and called <= _STACK and _is_first_axis(node) and len(node.args) == 1
    is_put = called == {"jax.device_put_sharded"} and len(node.args) == 2
    inner = node.args[0] if is_stack or is_put else None
    if isinstance(inner, ast.Call) and names_called(module, inner) & _SPLIT:
        return inner
    return None


def _reshape(node: ast.Call, called: frozenset[str]) -> tuple[ast.expr | None, list[ast.expr]]:
    """Returns what is reshaped, and its shape as the arguments that give it."""
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    args = list(node.args)
    if called and called <= _RESHAPE:
        of = args.pop(0) if args else None
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "reshape" and not called:
        of = node.func.value
    else:
        return None, []
    shape = keywords.pop("shape", None) or keywords.pop("newshape", None)
    if keywords or isinstance(of, ast.Starred):
        return None, []
    return of, args if shape is None else [shape]


def _dimensions(shape: list[ast.expr]) -> Iterator[_Dimension]:
    """Yields the dimensions of a shape: of one argument that is a sequence, or of several."""
    if len(shape) == 1 and not isinstance(shape[0], ast.Starred):
        yield from _of_sequence(shape[0]) if not _is_number(shape[0]) else shape
    else:
        for part in shape:
            yield _Rest(part.value) if isinstance(part, ast.Starred) else part


def _named_dimensions(module: Module, dims: Iterator[_Dimension]) -> Iterator[_Dimension]:
    """Replaces the name by the dimensions of ``prefix = (n, b)``."""
    for dim in dims:
        reaching = module.facts.definitions.reaching
        bound = reaching.get(dim.node, frozenset()) if isinstance(dim, _Rest) else frozenset()
        sources = [each.source for each in bound if not each.steps]
        if len(bound) == 1 and len(sources) == 1 and isinstance(sources[0], ast.Tuple):
            yield from _of_sequence(sources[0])
        else:
            yield dim


def _is_number(node: ast.expr) -> bool:
    return _number(node) is not None


def _of_sequence(node: ast.expr) -> Iterator[_Dimension]:
    if isinstance(node, (ast.Tuple, ast.List)):
        for part in node.elts:
            yield _Rest(part.value) if isinstance(part, ast.Starred) else part
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _of_sequence(node.left)
        yield from _of_sequence(node.right)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
        is_same = node.func.id in ("tuple", "list")
        yield from _of_sequence(node.args[0]) if is_same else [_Rest(node)]
    else:
        yield _Rest(node)


def _split_shape(
    module: Module, node: ast.Call, of: ast.expr, shape: list[ast.expr], is_count: IsCount
) -> Reshaped | None:
    dims = list(_named_dimensions(module, _dimensions(shape)))
    if len(dims) < 2 or isinstance(dims[0], _Rest) or isinstance(dims[1], _Rest):
        return None
    count, each = dims[0], dims[1]
    if not is_count(module, count):
        return None
    rest = dims[2:]
    if len(rest) == 1 and isinstance(rest[0], _Rest) and _is_shape(rest[0].node, of, "1:"):
        return _gone(module, node, of)
    container = module.parent(count)
    if module.parent(each) is not container or not module.place(count).is_inside(
        module.place(node)
    ):
        return None
    is_open = any(
        _number(part) == -1 if not isinstance(part, _Rest) else not _is_of_shape(part.node)
        for part in rest
    )
    text = "-1"
    if is_open and _number(each) != -1:
        texts = [module.text(part) for part in (count, each)]
        is_plain = isinstance(each, (ast.Name, ast.Constant, ast.Attribute, ast.Call))
        text = f"{texts[0]} * {texts[1] if is_plain else f'({texts[1]})'}"
    if isinstance(container, ast.Tuple) and len(container.elts) == 2:
        text += ","
    first, second = module.place(count), module.place(each)
    last = ends(second)
    if text.endswith(","):
        # A comma may be there already.
        behind = module.source.line(second.end_line)[second.end_column :]
        text = text[:-1] if behind.lstrip().startswith(",") else text
    return Reshaped(of, (between(starts(first), last, text),))


def _is_of_shape(node: ast.expr) -> bool:
    """Returns whether dimensions are of an array's shape, so that none is -1."""
    inner = node.value if isinstance(node, ast.Subscript) else node
    return isinstance(inner, ast.Attribute) and inner.attr == "shape"


def _is_shape(node: ast.expr, of: ast.expr, part: str) -> bool:
    """Returns whether dimensions are ``of.shape[part]``."""
    if not isinstance(node, ast.Subscript) or ast.unparse(node.slice) != part:
        return False
    inner = node.value
    if isinstance(inner, ast.Call) and len(inner.args) == 1:
        is_shape = isinstance(inner.func, ast.Attribute) and inner.func.attr == "shape"
        return is_shape and ast.dump(inner.args[0]) == ast.dump(of)
    is_shape = isinstance(inner, ast.Attribute) and inner.attr == "shape"
    return is_shape and ast.dump(inner.value) == ast.dump(of)  # type: ignore[attr-defined]


def _is_product_of_two(node: ast.expr, of: ast.expr) -> bool:
    """Returns whether a dimension is ``of.shape[0] * of.shape[1]``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    return _is_shape(node.left, of, "0") and _is_shape(node.right, of, "1")


def _rearranged(
    module: Module, node: ast.Call, pattern: re.Pattern[str], is_count: IsCount | None
) -> Reshaped | None:
    """``einops.rearrange`` that splits the leading axis, or merges the first two."""
    text = node.args[1] if len(node.args) == 2 else None
    if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
        return None
    found = pattern.fullmatch(text.value)
    if found is None or found[3].split() != found[4].split():
        return None
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    if is_count is not None and (found[1] not in given or not is_count(module, given[found[1]])):
        return None
    return _gone(module, node, node.args[0])
