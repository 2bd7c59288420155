"""The collectives of a compiled program: their bytes, and the mesh axes that they run over."""

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pmapx._src.audit.hlo import parser
from pmapx._src.audit.hlo.parser import Instruction, Module, replica_groups

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
    """One collective of a compiled program."""

    kind: str  # XLA's name for it, e.g. ``all-reduce``.
    # The mesh axes that it runs over; None if its groups match no set of axes.
    axes: tuple[str, ...] | None
    group_size: int  # The number of devices in a group.
    # The bytes of the value that is reduced, or that each device holds after a gather.
    payload: int
    sent: int  # The bytes that a device sends in one execution, by the ring algorithm.
    times: int | None  # How often it runs in one call; None if a loop's length is not known.
    place: str | None  # The line of the user's code that it comes from, as ``file.py:12``.
    operation: str | None  # JAX's name for it, e.g. ``jit(step)/psum``.
    name: str = ""  # The instruction's name in the program.
    dtypes: tuple[str, ...] = ()  # The element types of what it sends, as XLA names them.
    between: int = 0  # The bytes sent that leave its slice over DCN.
    slices: int = 1  # The number of slices that a group is in.

    @property
    def along(self) -> str:
        """Its axes as text, or the size of a group."""
        if self.axes:
            return ", ".join(self.axes)
        whom = "slices" if self.slices == self.group_size > 1 else "devices"
        return f"{self.group_size} {whom}"

    @property
    def times_at_least(self) -> int:
        """How often it runs in one call, a loop of unknown length counted once."""
        return 1 if self.times is None else self.times

    @property
    def sent_in_a_call(self) -> int:
        return self.sent * self.times_at_least

    @property
    def between_in_a_call(self) -> int:
        return self.between * self.times_at_least


def counts(found: Iterable[Collective]) -> dict[str, int]:
    """Returns how often collectives of each kind run in a call, at least."""
    by_kind: collections.Counter[str] = collections.Counter()
    for each in found:
        by_kind[each.kind] += each.times_at_least
    return dict(by_kind)


def collectives(
    text: str, axis_sizes: Mapping[str, int], slice_of: Sequence[int] = ()
) -> list[Collective]:
    """Finds the collectives in the text of a program, given the axes of its mesh, in order.

    ``slice_of`` has the slice of each device of the mesh; by default there is one.


    >>> found = collectives('''
    ... ENTRY %main (x: f32[4]) -> f32[4] {
    ...   %x = f32[4]{0} parameter(0)
    ...   ROOT %y = f32[4]{0} all-reduce(%x), replica_groups={{0,2},{1,3}}, to_apply=%add
    ... }''', {"data": 2, "model": 2})
    >>> found[0].kind, found[0].axes, found[0].payload, found[0].sent
    ('all-reduce', ('data',), 16, 16)
    """
    return list(collectives_of(parser.parse(text), axis_sizes, slice_of))


def collectives_of(
    module: Module, axis_sizes: Mapping[str, int], slice_of: Sequence[int] = ()
) -> Iterator[Collective]:
    """Yields the collectives of a parsed program."""
    device_count = math.prod(axis_sizes.values())
    for instruction, times in module.executed():
        kind = instruction.opcode.removesuffix("-start")
        transfer = _transfer_between_slices(instruction)
        if transfer is not None:
            kind, groups = transfer[0], _same_position(transfer[1], slice_of)
        elif kind in KINDS:
            groups = _groups(instruction, device_count)
        else:
            continue
        size = max(map(len, groups))
        if size <= 1:
            continue  # It sends nothing.
        payload = _payload(kind, instruction, module, size)
        sent = _sent(kind, payload, size)
        slices = size if transfer is not None else _slices_in(groups, slice_of)
        yield Collective(
            kind=kind,
            axes=axes_of(groups, axis_sizes),
            group_size=size,
            payload=payload,
            sent=sent,
            times=times,
            place=module.place(instruction),
            operation=module.operation(instruction),
            name=instruction.name,
            dtypes=tuple(
                dict.fromkeys(array.dtype for array in module.operand_arrays(instruction))
            ),
            between=sent if transfer is not None else _between(kind, payload, size, slices),
            slices=slices,
        )


_TRANSFERS = {
    "ALL_REDUCE": "all-reduce",
    "ALL_GATHER": "all-gather",
    "REDUCE_SCATTER": "reduce-scatter",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": "collective-permute",
}


def _transfer_between_slices(instruction: Instruction) -> tuple[str, int | None] | None:
    """Returns the kind and group size of a transfer over DCN.

    XLA compiles a program over several TPU slices for one of them: the part within a slice is a
    collective, and the part between slices is a ``send`` to the host with these attributes.
    """
    attributes = instruction.attributes.get("frontend_attributes", "")
    transfer = re.search(r'_xla_megascale_transfer_type="(\w+)"', attributes)
    if instruction.opcode != "send" or transfer is None:
        return None
    target = re.search(r'_xla_megascale_target="\{([\d,:]+)\}', attributes)
    count = None if target is None else sum(map(_length, target[1].split(",")))
    return _TRANSFERS.get(transfer[1], transfer[1].lower().replace("_", "-")), count


def _length(numbers: str) -> int:
    first, _, last = numbers.partition(":")
    return int(last or first) - int(first) + 1


def _same_position(count: int | None, slice_of: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Returns groups of the devices at the same position of each slice."""
    members: dict[int, list[int]] = {}
    for device, at in enumerate(slice_of):
        members.setdefault(at, []).append(device)
    if count is not None and count != len(members):
        return (tuple(range(-count, 0)),)  # It is not known which slices.
    return tuple(zip(*members.values(), strict=False)) or ((-2, -1),)


def _slices_in(groups: tuple[tuple[int, ...], ...], slice_of: Sequence[int]) -> int:
    """Returns the number of slices that a group is in, at most."""
    if len(set(slice_of)) <= 1:
        return 1
    known = range(len(slice_of))
    return max(len({slice_of[d] for d in group if d in known}) or 1 for group in groups)


def _groups(instruction: Instruction, device_count: int) -> tuple[tuple[int, ...], ...]:
    pairs = instruction.attributes.get("source_target_pairs")
    if pairs is None:
        return replica_groups(instruction.attributes.get("replica_groups", ""), device_count)
    return _connected([parser.numbers(pair) for pair in re.findall(r"\{([\d,]+)\}", pairs)])


def _connected(pairs: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Returns the devices that pairs connect, as groups."""
    groups: list[set[int]] = []
    for pair in pairs:
        touched = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if group not in touched]
        groups.append(set(pair).union(*touched))
    return tuple(tuple(sorted(group)) for group in groups) or ((0,),)


def axes_of(
    groups: tuple[tuple[int, ...], ...], axis_sizes: Mapping[str, int]
) -> tuple[str, ...] | None:
    """Returns the mesh axes that groups of devices run along.

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
    """Returns the bytes that a device sends, by the ring algorithm."""
    share = payload * (size - 1) // size
    if kind == "all-reduce":
        return 2 * share  # A reduce-scatter, then an all-gather.
    if kind in ("collective-permute", "collective-broadcast"):
        return payload
    return share


def _between(kind: str, payload: int, size: int, slices: int) -> int:
    """Returns the bytes of ``_sent`` that leave a slice, with a hierarchical algorithm.

    An all-reduce over two slices of four devices is a reduce-scatter in each slice, an all-reduce
    of a quarter between the slices, and an all-gather in each slice.

    >>> _between("all-reduce", 800, 8, 2), _between("all-gather", 800, 8, 2)
    (200, 100)
    """
    if slices <= 1:
        return 0
    if kind in ("collective-permute", "collective-broadcast"):
        return payload
    if kind.endswith("all-to-all"):
        return payload * (slices - 1) // slices
    share = payload * (slices - 1) // size
    return 2 * share if kind == "all-reduce" else share
