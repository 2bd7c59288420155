"""The dataflow of a compiled program: from arguments to collectives, and between these."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pmapx._src.audit.hlo.parser import Instruction, Module


class Origin(NamedTuple):
    """The line that an instruction comes from, and JAX's name for it."""

    place: str | None
    operation: str | None


NOWHERE = Origin(None, None)


def origin(module: Module, name: str) -> Origin:
    """Returns the origin of a collective; if XLA added it, that of the value that it sends."""
    instructions = next(
        (each for each in module.computations.values() if any(i.name == name for i in each)), ()
    )
    by_name = {instruction.name: instruction for instruction in instructions}
    near = [name]
    for _ in range(_STEPS_BACK):
        for at in filter(None, map(by_name.get, near)):
            inside = module.inside(at) if at.opcode == "fusion" else []
            for instruction in [at, *reversed(inside)]:
                if operation := module.operation(instruction):
                    return Origin(module.place(instruction), operation)
        near = [operand for at in filter(None, map(by_name.get, near)) for operand in at.operands]
    return NOWHERE


def order(module: Module) -> dict[str, int]:
    """Numbers instructions in the order of execution, with the bodies of loops and branches.

    >>> from pmapx._src.audit.hlo.parser import parse
    >>> list(order(parse('''
    ... %inner (a: f32[]) -> f32[] {
    ...   ROOT %b = f32[] negate(%a)
    ... }
    ... ENTRY %main (x: f32[]) -> f32[] {
    ...   %x = f32[] parameter(0)
    ...   %y = f32[] call(%x), to_apply=%inner
    ...   ROOT %z = f32[] add(%x, %y)
    ... }''')))
    ['x', 'y', 'b', 'z']
    """
    numbers: dict[str, int] = {}
    left = list(reversed(module.computations.get(module.entry, ())))
    while left:
        instruction = left.pop()
        if instruction.name not in numbers:
            numbers[instruction.name] = len(numbers)
            left += reversed(module.inside(instruction))
    return numbers


_STEPS_BACK = 4
_UNCHANGED = ("bitcast", "copy", "reshape", "transpose", "convert", "broadcast", "opt-barrier")


def gathered_arguments(module: Module) -> dict[str, str]:
    """Returns the all-gathers of the entry that take an argument unchanged, and which.

    >>> from pmapx._src.audit.hlo.parser import parse
    >>> gathered_arguments(parse('''
    ... ENTRY %main (p: f32[4]) -> f32[32] {
    ...   %p = f32[4]{0} parameter(0), metadata={op_name="params[\\\\'w\\\\']"}
    ...   %c = f32[4]{0} copy(%p)
    ...   ROOT %y = f32[32]{0} all-gather(%c), dimensions={0}
    ... }'''))
    {'y': "params['w']"}
    """
    entry = module.computations.get(module.entry, ())
    by_name = {instruction.name: instruction for instruction in entry}
    found = {}
    for instruction in entry:
        if instruction.opcode.removesuffix("-start") != "all-gather":
            continue
        at: Instruction | None = instruction
        while at is not None and at.opcode != "parameter":
            is_plain = at is instruction or at.opcode in _UNCHANGED or _only_reshapes(module, at)
            at = by_name.get(at.operands[0]) if is_plain and len(at.operands) == 1 else None
        name = None if at is None else module.operation(at)
        if name:
            found[instruction.name] = name.replace("\\'", "'")
    return found


def _only_reshapes(module: Module, fusion: Instruction) -> bool:
    inside = module.inside(fusion)
    known = (*_UNCHANGED, "parameter")
    return fusion.opcode == "fusion" and bool(inside) and all(i.opcode in known for i in inside)


def mergeable(module: Module) -> dict[str, int]:
    """Numbers the all-reduces; those with the same number could be combined.

    They are in one computation, have the same groups and operation, and none depends on another.
    """
    numbers: dict[str, int] = {}
    for name in module.executions:
        instructions = module.computations.get(name, ())
        needs = _needs(instructions)
        sets: list[tuple[tuple[str, ...], int, list[str]]] = []
        for instruction in instructions:
            if instruction.opcode.removesuffix("-start") != "all-reduce":
                continue
            kind = _kind(module, instruction)
            for other, number, members in sets:
                if other == kind and not needs[instruction.name] & set(members):
                    members.append(instruction.name)
                    numbers[instruction.name] = number
                    break
            else:
                number = len(numbers)
                sets.append((kind, number, [instruction.name]))
                numbers[instruction.name] = number
    return numbers


def _kind(module: Module, instruction: Instruction) -> tuple[str, ...]:
    """Returns what all-reduces must share to be combined: the groups, and the operation."""
    groups = instruction.attributes.get("replica_groups", "")
    applied = instruction.attributes.get("to_apply", "").lstrip("%")
    roots = [i.opcode for i in module.computations.get(applied, ()) if i.is_root]
    return (re.sub(r"\s", "", groups), *roots)


def _needs(instructions: Sequence[Instruction]) -> Mapping[str, frozenset[str]]:
    """Returns, for each instruction, the all-reduces that it depends on."""
    reduces = {i.name for i in instructions if i.opcode.startswith("all-reduce")}
    needs: dict[str, frozenset[str]] = {}
    for instruction in instructions:  # Operands come before their users.
        taken = (needs.get(name, frozenset()) | ({name} & reduces) for name in instruction.operands)
        needs[instruction.name] = frozenset().union(*taken)
    return needs
