"""Which dimensions of a program's arguments grow with the number of devices, from its jaxpr.

A batch grows with the mesh, parameters that are sharded over it (FSDP, ZeRO) do not. Each dimension
has an exponent of the number of devices n: 0 if its size stays, 1 if it grows like n, -1 if it
shrinks like 1/n. Operations relate them: elementwise operations need equal dimensions,
``all_gather`` adds 1, ``psum_scatter`` subtracts 1, and a ``shard_map`` passes a sharded dimension
with 1 less to its body. What these relations do not decide is state or batch by its use.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn

from pmapx._src.mesh.partition_specs import entry_axes
from pmapx._src.replication import jaxprs, shard_map_body

Dimension = tuple[int, int]
"""A node and an offset: the exponent of the node, plus the offset."""
Dimensions = list[Dimension]
_CONSTANT = 0


class Exponents:
    """Dimensions whose exponents are equal up to an offset, as a union-find structure.

    >>> exponents = Exponents()
    >>> w, x = exponents.unknown(), exponents.unknown()
    >>> exponents.equate((w[0], 1), x)
    >>> exponents.equate(x, exponents.known(0))
    >>> exponents.value(w)
    -1
    """

    def __init__(self) -> None:
        self._parents: list[Dimension] = [(_CONSTANT, 0)]
        self.conflicts = 0

    def unknown(self) -> Dimension:
        self._parents.append((len(self._parents), 0))
        return len(self._parents) - 1, 0

    @staticmethod
    def known(exponent: int) -> Dimension:
        return _CONSTANT, exponent

    def find(self, dimension: Dimension) -> Dimension:
        node, offset = dimension
        while self._parents[node][0] != node:
            node, more = self._parents[node]
            offset += more
        return node, offset

    def value(self, dimension: Dimension) -> int | None:
        root, offset = self.find(dimension)
        return offset if root == _CONSTANT else None

    def equate(self, one: Dimension, other: Dimension) -> None:
        """Notes that two exponents are equal; what is known already is kept, as a conflict."""
        (first, a), (second, b) = self.find(one), self.find(other)
        if first == second:
            self.conflicts += a != b
            return
        if first == _CONSTANT:
            first, a, second, b = second, b, first, a
        self._parents[first] = (second, b - a)


class Walk:
    """A walk through a jaxpr that relates the dimensions of its values; a mesh axis grows."""

    def __init__(self, axis: Any) -> None:
        self.axis = axis
        self.exponents = Exponents()

    def jaxpr(self, jaxpr: Jaxpr, inputs: Sequence[Dimensions]) -> list[Dimensions]:
        return jaxprs.interpret(jaxpr, inputs, self._kept, self._results)

    def equate(self, one: Dimensions, other: Dimensions) -> None:
        if len(one) == len(other):
            for a, b in zip(one, other, strict=True):
                self.exponents.equate(a, b)

    def _kept(self, atom: Any) -> Dimensions:
        return [self.exponents.known(0)] * len(_shape(atom))

    def _fresh(self, count: int) -> Dimensions:
        return [self.exponents.unknown() for _ in range(count)]

    def _results(self, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
        callee = shard_map_body.callee(eqn)
        if callee is not None:
            return self.jaxpr(jaxprs.opened(callee), operands)
        rule = _RULES.get(eqn.primitive.name)
        if rule is None and eqn.primitive.name.startswith(("reduce_", "arg")):
            rule = _reduced
        results = None
        if rule is not None:
            # Parameters of a primitive may have other names in another release.
            with contextlib.suppress(KeyError, IndexError, TypeError, ValueError):
                results = rule(self, eqn, operands)
        shapes = [_shape(var) for var in eqn.outvars]
        if results is not None and list(map(len, results)) == list(map(len, shapes)):
            return results
        return self._elementwise(eqn, operands)

    def _elementwise(self, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
        """Relates what has one shape; anything else is unknown."""
        results = []
        has_body = any(True for _ in jaxprs.subjaxprs(eqn.params))
        for index, var in enumerate(eqn.outvars):
            shape = _shape(var)
            same = [
                dimensions
                for atom, dimensions in zip(eqn.invars, operands, strict=True)
                if shape and _shape(atom) == shape and not has_body
            ]
            if len(eqn.outvars) == len(operands) > 1:  # Such as psum of a tree.
                same = [operands[index]] if _shape(eqn.invars[index]) == shape else []
            for other in same[1:]:
                self.equate(same[0], other)
            results.append(same[0] if same else self._fresh(len(shape)))
        return results


Rule = Callable[[Walk, JaxprEqn, list[Dimensions]], list[Dimensions]]


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(getattr(atom.aval, "shape", ()))


def _more(dimension: Dimension, offset: int) -> Dimension:
    return dimension[0], dimension[1] + offset


def _is_along(walk: Walk, eqn: JaxprEqn) -> bool:
    axes = eqn.params.get("axis_name", eqn.params.get("axes", ()))
    return walk.axis in (axes if isinstance(axes, tuple | list) else (axes,))


def _shard_map(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    body = jaxprs.opened(eqn.params["jaxpr"])
    if walk.axis not in jaxprs.manual_axes(eqn) or "in_specs" not in eqn.params:
        return walk.jaxpr(body, operands)

    def across(dimensions: Dimensions, spec: Any, offset: int) -> Dimensions:
        entries = [*spec, *[None] * len(dimensions)]
        return [
            _more(each, offset) if walk.axis in entry_axes(entry) else each
            for each, entry in zip(dimensions, entries, strict=False)
        ]

    inside = [across(*of, -1) for of in zip(operands, eqn.params["in_specs"], strict=True)]
    results = zip(walk.jaxpr(body, inside), eqn.params["out_specs"], strict=True)
    return [across(*of, 1) for of in results]


def _all_gather(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    at, grown = eqn.params["all_gather_dimension"], int(_is_along(walk, eqn))
    (operand,) = operands
    if not eqn.params["tiled"]:
        return [[*operand[:at], walk.exponents.known(grown), *operand[at:]]]
    return [[*operand[:at], _more(operand[at], grown), *operand[at + 1 :]]]


def _reduce_scatter(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    at, grown = eqn.params["scatter_dimension"], int(_is_along(walk, eqn))
    (operand,) = operands
    if not eqn.params["tiled"]:
        walk.exponents.equate(operand[at], walk.exponents.known(grown))
        return [[*operand[:at], *operand[at + 1 :]]]
    return [[*operand[:at], _more(operand[at], -grown), *operand[at + 1 :]]]


def _all_to_all(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    split, joined = eqn.params["split_axis"], eqn.params["concat_axis"]
    grown, result = int(_is_along(walk, eqn)), list(operands[0])
    if eqn.params.get("tiled", False):
        result[split] = _more(result[split], -grown)
        result[joined] = _more(result[joined], grown)
        return [result]
    walk.exponents.equate(result.pop(split), walk.exponents.known(grown))
    result.insert(joined, walk.exponents.known(grown))
    return [result]


def _dot_general(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    (contracted, batched), (left, right) = eqn.params["dimension_numbers"], operands
    for pairs in (contracted, batched):
        for a, b in zip(*pairs, strict=True):
            walk.exponents.equate(left[a], right[b])
    free = [
        dimensions[k]
        for side, dimensions in enumerate(operands)
        for k in range(len(dimensions))
        if k not in contracted[side] and k not in batched[side]
    ]
    return [[*(left[k] for k in batched[0]), *free]]


def _convolution(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    numbers, (images, kernel) = eqn.params["dimension_numbers"], operands
    result = walk._fresh(len(images))
    result[numbers.out_spec[0]] = images[numbers.lhs_spec[0]]
    result[numbers.out_spec[1]] = kernel[numbers.rhs_spec[0]]
    if eqn.params["feature_group_count"] == 1 == eqn.params["batch_group_count"]:
        walk.exponents.equate(images[numbers.lhs_spec[1]], kernel[numbers.rhs_spec[1]])
    return [result]


def _broadcast(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    result = walk._fresh(len(eqn.params["shape"]))
    sizes = _shape(eqn.invars[0])
    for k, (at, size) in enumerate(zip(eqn.params["broadcast_dimensions"], sizes, strict=True)):
        if size == eqn.params["shape"][at]:
            result[at] = operands[0][k]
    return [result]


def _reshape(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    (old,), new = map(_shape, eqn.invars[:1]), _shape(eqn.outvars[0])
    result = walk._fresh(len(new))
    for before, after in _groups(old, new):
        known = [(k, walk.exponents.value(operands[0][k])) for k in before]
        open_ones = [k for k, exponent in known if exponent is None]
        # The exponent of a product is the sum; one unknown summand can be related.
        if len(open_ones) <= 1 and len(after) == 1:
            total = sum(exponent for _, exponent in known if exponent is not None)
            one = operands[0][open_ones[0]] if open_ones else walk.exponents.known(0)
            result[after[0]] = _more(one, total)
        elif len(before) == 1 and known[0][1] == 0:
            for k in after:
                result[k] = walk.exponents.known(0)
    return [result]


def _groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yields the dimensions that become which ones; those of size 1 are left out.

    >>> list(_groups((8, 4, 6), (32, 2, 3)))
    [([0, 1], [0]), ([2], [1, 2])]
    """
    left = [k for k, size in enumerate(old) if size != 1]
    right = [k for k, size in enumerate(new) if size != 1]
    while left and right:
        before, after = [left.pop(0)], [right.pop(0)]
        while True:
            a, b = math.prod(old[k] for k in before), math.prod(new[k] for k in after)
            if a == b or not (left if a < b else right):
                break
            (before if a < b else after).append((left if a < b else right).pop(0))
        yield before, after


def _transpose(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    return [[operands[0][k] for k in eqn.params["permutation"]]]


def _squeeze(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    gone = eqn.params["dimensions"]
    for k in gone:  # Its size is 1 on any number of devices.
        walk.exponents.equate(operands[0][k], walk.exponents.known(0))
    return [[each for k, each in enumerate(operands[0]) if k not in gone]]


def _reduced(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    gone = eqn.params.get("axes", eqn.params.get("dimensions", ()))
    kept = [[each for k, each in enumerate(operand) if k not in gone] for operand in operands]
    return kept[: len(eqn.outvars)]


def _same_sizes(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    """Slices and padding: a dimension that keeps its size is the same one."""
    old, new = _shape(eqn.invars[0]), _shape(eqn.outvars[0])
    result = walk._fresh(len(new))
    pairs = enumerate(zip(old, new, strict=True))
    return [[operands[0][k] if a == b else result[k] for k, (a, b) in pairs]]


def _concatenate(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    at, result = eqn.params["dimension"], list(operands[0])
    for k, other in itertools.product(range(len(result)), operands[1:]):
        if k != at:
            walk.exponents.equate(result[k], other[k])
    result[at] = walk.exponents.unknown()
    return [result]


def _gather(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    (operand, indices), taken = operands, _shape(eqn.invars[0])
    batching = getattr(numbers, "operand_batching_dims", ())
    gone = {*numbers.collapsed_slice_dims, *batching}
    windows = [k for k in range(len(operand)) if k not in gone]
    result = walk._fresh(len(_shape(eqn.outvars[0])))
    for at, k in zip(numbers.offset_dims, windows, strict=True):
        if sizes[k] == taken[k]:
            result[at] = operand[k]
    rest = [at for at in range(len(result)) if at not in numbers.offset_dims]
    for at, dimension in zip(rest, indices[:-1], strict=False):
        result[at] = dimension
    return [result]


def _first(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    return [operands[0]]


def _scan(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    body = jaxprs.opened(eqn.params["jaxpr"])
    # None raises a TypeError: nothing is known of the results.
    consts, carry = jaxprs.scan_counts(eqn)  # type: ignore[misc]
    before, scanned = operands[: consts + carry], operands[consts + carry :]
    results = walk.jaxpr(body, [*before, *(each[1:] for each in scanned)])
    for one, other in zip(before[consts:], results[:carry], strict=True):
        walk.equate(one, other)
    length = scanned[0][0] if scanned else walk.exponents.known(0)
    for each in scanned[1:]:
        walk.exponents.equate(length, each[0])
    return [*before[consts:], *([length, *each] for each in results[carry:])]


def _while(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    in_condition, in_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    carried = operands[in_condition + in_body :]
    results = walk.jaxpr(jaxprs.opened(eqn.params["body_jaxpr"]), operands[in_condition:])
    for one, other in zip(carried, results, strict=True):
        walk.equate(one, other)
    return carried


def _cond(walk: Walk, eqn: JaxprEqn, operands: list[Dimensions]) -> list[Dimensions]:
    first, *others = (
        walk.jaxpr(jaxprs.opened(branch), operands[1:]) for branch in eqn.params["branches"]
    )
    for other in others:
        for one, same in zip(first, other, strict=True):
            walk.equate(one, same)
    return first


_RULES: dict[str, Rule] = {
    "shard_map": _shard_map,
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), _all_gather),
    **dict.fromkeys(("reduce_scatter", "psum_scatter"), _reduce_scatter),
    "all_to_all": _all_to_all,
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    **dict.fromkeys(("slice", "dynamic_slice", "pad"), _same_sizes),
    "concatenate": _concatenate,
    "gather": _gather,
    **dict.fromkeys(("dynamic_update_slice", "scatter", "scatter-add", "scatter_add"), _first),
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
