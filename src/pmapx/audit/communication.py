"""What a compiled program sends between devices: each collective, its bytes, and its axis."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping

from pmapx.audit import hlo
from pmapx.audit.hlo import Instruction, Module, replica_groups

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a compiled program.

    Attributes:
      kind: XLA's name for it, e.g. ``all-reduce``.
      axes: the mesh axes along which devices talk; None when no set of axes gives its groups.
      group_size: how many devices talk to each other.
      payload: the bytes of the whole value that a device takes part with: what is reduced, or what
        all devices of a group hold together after a gather.
      sent: the bytes that a device sends for it, once, by the ring algorithm.
      times: how often it runs in one call; None where a loop's length is not known.
      place: where in the user's code it comes from, as ``file.py:12``.
      operation: JAX's name for what became it, e.g. ``jit(step)/psum``.
      name: the instruction's name in the program.
      dtypes: the types of what it sends, as XLA names them.
    """

    kind: str
    axes: tuple[str, ...] | None
    group_size: int
    payload: int
    sent: int
    times: int | None
    place: str | None
    operation: str | None
    name: str = ""
    dtypes: tuple[str, ...] = ()

    @property
    def sent_in_a_call(self) -> int:
        """The bytes that a device sends for it in one call, a loop of unknown length once."""
        return self.sent * (1 if self.times is None else self.times)


def collectives(text: str, axis_sizes: Mapping[str, int]) -> list[Collective]:
    """Finds the collectives in a program's text.

    Args:
      text: the program, as ``compiled.as_text()`` gives it.
      axis_sizes: the axes of the mesh that it runs on, in order.

    >>> found = collectives('''
    ... ENTRY %main (x: f32[4]) -> f32[4] {
    ...   %x = f32[4]{0} parameter(0)
    ...   ROOT %y = f32[4]{0} all-reduce(%x), replica_groups={{0,2},{1,3}}, to_apply=%add
    ... }''', {"data": 2, "model": 2})
    >>> found[0].kind, found[0].axes, found[0].payload, found[0].sent
    ('all-reduce', ('data',), 16, 16)
    """
    return list(collectives_of(hlo.parse(text), axis_sizes))


def collectives_of(module: Module, axis_sizes: Mapping[str, int]) -> Iterator[Collective]:
    """Yields the collectives of a program that was read."""
    device_count = math.prod(axis_sizes.values())
    for instruction, times in module.executed():
        kind = instruction.opcode.removesuffix("-start")
        if kind not in KINDS:
            continue
        groups = _groups(instruction, device_count)
        size = max(map(len, groups))
        if size <= 1:
            continue  # Nobody to talk to.
        payload = _payload(kind, instruction, module, size)
        yield Collective(
            kind=kind,
            axes=axes_of(groups, axis_sizes),
            group_size=size,
            payload=payload,
            sent=_sent(kind, payload, size),
            times=times,
            place=module.place(instruction),
            operation=module.operation(instruction),
            name=instruction.name,
            dtypes=tuple(
                dict.fromkeys(array.dtype for array in module.operand_arrays(instruction))
            ),
        )


def _groups(instruction: Instruction, device_count: int) -> tuple[tuple[int, ...], ...]:
    pairs = instruction.attributes.get("source_target_pairs")
    if pairs is None:
        return replica_groups(instruction.attributes.get("replica_groups", ""), device_count)
    return _connected([hlo.numbers(pair) for pair in re.findall(r"\{([\d,]+)\}", pairs)])


def _connected(pairs: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Returns the devices that chains of pairs connect, as groups."""
    groups: list[set[int]] = []
    for pair in pairs:
        touched = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if group not in touched]
        groups.append(set(pair).union(*touched))
    return tuple(tuple(sorted(group)) for group in groups) or ((0,),)


def axes_of(
    groups: tuple[tuple[int, ...], ...], axis_sizes: Mapping[str, int]
) -> tuple[str, ...] | None:
    """Returns the mesh axes along which groups of devices lie.

    >>> axes_of(((0, 1), (2, 3)), {"data": 2, "model": 2})
    ('model',)
    """
    found = {frozenset(group) for group in groups if len(group) > 1}
    for count in range(1, len(axis_sizes) + 1):
        for names in itertools.combinations(axis_sizes, count):
            if found <= _groups_along(names, axis_sizes):
                return names
    return None


def _groups_along(names: tuple[str, ...], axis_sizes: Mapping[str, int]) -> set[frozenset[int]]:
    groups: dict[tuple[int, ...], set[int]] = {}
    places = itertools.product(*(range(size) for size in axis_sizes.values()))
    for device, place in enumerate(places):
        at = dict(zip(axis_sizes, place, strict=True))
        fixed = tuple(at[name] for name in axis_sizes if name not in names)
        groups.setdefault(fixed, set()).add(device)
    return {frozenset(group) for group in groups.values()}


def _payload(kind: str, instruction: Instruction, module: Module, size: int) -> int:
    taken = sum(array.size_in_bytes for array in module.operand_arrays(instruction))
    if kind == "all-gather":
        return taken * size
    return taken or instruction.size_in_bytes


def _sent(kind: str, payload: int, size: int) -> int:
    """Returns what a device sends, at least, by the algorithms that all networks use."""
    share = payload * (size - 1) // size
    if kind == "all-reduce":
        return 2 * share  # A reduce-scatter, then an all-gather.
    if kind in ("collective-permute", "collective-broadcast"):
        return payload
    return share
