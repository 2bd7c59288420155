"""The HLO text of a compiled program: instructions, their source lines, how often they run.

The language grows from release to release. Only its outline is parsed here: ``name = type
opcode(operands), attribute=value, ...`` inside of computations. What does not fit is skipped, so
that unknown instructions do no harm.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

BITS = {
    "pred": 8, "token": 0, "opaque": 0, "s2": 2, "s4": 4, "s8": 8, "s16": 16, "s32": 32, "s64": 64,
    "u2": 2, "u4": 4, "u8": 8, "u16": 16, "u32": 32, "u64": 64, "f4e2m1fn": 4, "f16": 16,
    "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
}  # fmt: skip
"""Bits of an element; further types of 8 bits have names such as f8e4m3fn."""

_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=?]*)\]")
_ASSIGNMENT = re.compile(r"^\s*(ROOT\s+)?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*(\(.*)?\{\s*$")
_FRAME_TABLE = re.compile(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\s*$")
_OPEN, _CLOSE = "([{", ")]}"


@dataclasses.dataclass(frozen=True)
class Array:
    """The type of one array: its elements and its shape.

    >>> Array("f32", (8, 4)).size_in_bytes
    128
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_in_bytes(self) -> int:
        bits = BITS.get(self.dtype, 8 if self.dtype.startswith("f8") else 0)
        return math.ceil(math.prod(self.shape) * bits / 8)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation; ``arrays`` are its results, ``literal`` an integer constant."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: Mapping[str, str]
    literal: int | None = None
    is_root: bool = False

    @property
    def size_in_bytes(self) -> int:
        return sum(array.size_in_bytes for array in self.arrays)

    @property
    def called(self) -> tuple[str, ...]:
        """The computations that its attributes name."""
        names = []
        for key in ("calls", "to_apply", "body", "condition", "branch_computations",
                    "true_computation", "false_computation", "called_computations"):  # fmt: skip
            names += re.findall(r"%?([\w.\-]+)", self.attributes.get(key, ""))
        return tuple(names)


@dataclasses.dataclass(frozen=True)
class Module:
    """A program: its computations by name, and the entry."""

    computations: Mapping[str, tuple[Instruction, ...]]
    entry: str
    places: Mapping[int, str]

    def place(self, instruction: Instruction) -> str | None:
        """Returns the line of the user's code that an instruction comes from, as ``file.py:12``."""
        metadata = instruction.attributes.get("metadata", "")
        if frame := re.search(r"stack_frame_id=(\d+)", metadata):
            return self.places.get(int(frame[1]))
        file = re.search(r'source_file="([^"]*)"', metadata)
        line = re.search(r"source_line=(\d+)", metadata)
        return f"{file[1]}:{line[1] if line else '?'}" if file else None

    def inside(self, instruction: Instruction) -> list[Instruction]:
        """Returns the instructions of the computations that it calls."""
        return [i for name in instruction.called for i in self.computations.get(name, ())]

    def operation(self, instruction: Instruction) -> str | None:
        """Returns JAX's name for an instruction, as ``jit(f)/psum``."""
        name = re.search(r'op_name="([^"]*)"', instruction.attributes.get("metadata", ""))
        return name[1] if name else None

    @functools.cached_property
    def executions(self) -> Mapping[str, int | None]:
        """How often each computation runs in one call; None if a loop's length is not known.

        A branch of a conditional counts as taken.
        """
        callers: dict[str, list[tuple[str, Instruction]]] = {}
        for name, instructions in self.computations.items():
            for instruction in instructions:
                for called in instruction.called:
                    callers.setdefault(called, []).append((name, instruction))
        counts: dict[str, int | None] = {self.entry: 1}

        def count(name: str) -> int | None:
            if name not in counts:
                counts[name] = 0  # Ends a recursion, which no program has.
                times = [
                    self._times(caller, count(where)) for where, caller in callers.get(name, ())
                ]
                counts[name] = None if None in times else sum(filter(None, times))
            return counts[name]

        return {name: times for name in self.computations if (times := count(name)) != 0}

    def executed(self) -> Iterator[tuple[Instruction, int | None]]:
        """Yields each instruction that runs, and how often."""
        for name, times in self.executions.items():
            for instruction in self.computations.get(name, ()):
                yield instruction, times

    def _times(self, caller: Instruction, times: int | None) -> int | None:
        if not times or caller.opcode != "while":
            return times
        trips = self.trip_count(caller)
        return None if trips is None else times * trips

    def trip_count(self, loop: Instruction) -> int | None:
        """Returns how often the body of a loop runs, if XLA or the program shows that."""
        found = re.search(
            r'"known_trip_count":\{"n":"(\d+)"', loop.attributes.get("backend_config", "")
        )
        if found:
            return int(found[1])
        condition, body = (self._root(loop.attributes.get(k, "")) for k in ("condition", "body"))
        if condition is None or condition.attributes.get("direction") != "LT":
            return None
        counter, limit = map(self._by_name.get, condition.operands)
        if counter is None or limit is None or limit.literal is None:
            return None
        index = int(counter.attributes.get("index", -1))
        start, step = self._element(loop.operands[0], index), self._element(body, index)
        if start is None or start.literal is None or step is None or step.opcode != "add":
            return None
        by = [added.literal for name in step.operands if (added := self._by_name.get(name))]
        return max(0, limit.literal - start.literal) if 1 in by else None

    def _root(self, computation: str) -> Instruction | None:
        instructions = self.computations.get(computation.lstrip("%"), ())
        return next((i for i in instructions if i.is_root), None)

    def _element(self, of: str | Instruction | None, index: int) -> Instruction | None:
        value = self._by_name.get(of) if isinstance(of, str) else of
        if value is None or value.opcode != "tuple" or not 0 <= index < len(value.operands):
            return None
        part = self._by_name.get(value.operands[index])
        while part is not None and part.opcode in ("copy", "bitcast") and part.operands:
            part = self._by_name.get(part.operands[0])
        return part

    def operand_arrays(self, instruction: Instruction) -> tuple[Array, ...]:
        known = (self._by_name.get(name) for name in instruction.operands)
        return tuple(array for operand in known if operand for array in operand.arrays)

    @functools.cached_property
    def _by_name(self) -> Mapping[str, Instruction]:
        every = (i for instructions in self.computations.values() for i in instructions)
        return {instruction.name: instruction for instruction in every}


def parse(text: str) -> Module:
    """Parses the text of a program, as ``compiled.as_text()`` returns it.

    >>> module = parse('''
    ... HloModule jit_f
    ... ENTRY %main (x: f32[8]) -> f32[8] {
    ...   %x = f32[8]{0} parameter(0)
    ...   ROOT %y = f32[8]{0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%add
    ... }''')
    >>> [instruction.opcode for instruction, _ in module.executed()]
    ['parameter', 'all-reduce']
    """
    computations: dict[str, tuple[Instruction, ...]] = {}
    tables: dict[str, dict[int, str]] = {}
    entry, current, table = "", None, None
    instructions: list[Instruction] = []
    for line in text.splitlines():
        if current is None:
            if section := _FRAME_TABLE.match(line):
                table = tables.setdefault(section[1], {})
            elif table is not None and (entry_of := re.match(r"^(\d+) (.*)$", line)):
                table[int(entry_of[1])] = entry_of[2]
            elif header := _COMPUTATION.match(line):
                table, current, instructions = None, header[2], []
                entry = current if header[1] or not entry else entry
        elif line.startswith("}"):
            computations[current] = tuple(instructions)
            current = None
        elif (instruction := _instruction(line)) is not None:
            instructions.append(instruction)
    return Module(computations, entry, _places(tables))


def _instruction(line: str) -> Instruction | None:
    head = _ASSIGNMENT.match(line)
    if head is None:
        return None
    text = line[head.end() :]
    end_of_type = _balanced_until(text, 0, " ")
    opens = text.find("(", end_of_type)
    if opens < 0:
        return None
    closes = _balanced_until(text, opens, "")
    inside = text[opens + 1 : closes - 1]
    return Instruction(
        name=head[2],
        opcode=text[end_of_type:opens].strip(),
        arrays=_arrays(text[:end_of_type]),
        operands=tuple(re.findall(r"%([\w.\-]+)", inside)) or tuple(_bare_names(inside)),
        attributes=dict(_attributes(text[closes:])),
        literal=int(inside) if re.fullmatch(r"-?\d+", inside) else None,
        is_root=head[1] is not None,
    )


def _arrays(text: str) -> tuple[Array, ...]:
    return tuple(
        Array(dtype, tuple(int(size.lstrip("<=?") or 0) for size in sizes.split(",") if size))
        for dtype, sizes in _ARRAY.findall(text)
        if dtype in BITS or dtype.startswith("f8")
    )


def _bare_names(text: str) -> Iterator[str]:
    for operand in _split(text):
        words = operand.split()
        if words and re.fullmatch(r"[A-Za-z_][\w.\-]*", words[-1]):
            yield words[-1]


def _attributes(text: str) -> Iterator[tuple[str, str]]:
    for part in _split(text):
        key, equals, value = part.partition("=")
        if equals:
            yield key.strip(), value.strip()


def _split(text: str) -> Iterator[str]:
    """Splits at commas outside of brackets and quotes."""
    start = 0
    while start < len(text):
        end = _balanced_until(text, start, ",")
        if part := text[start:end].strip():
            yield part
        start = end + 1


def _balanced_until(text: str, start: int, stop: str) -> int:
    """Returns where ``stop`` is outside of brackets; without one, where the first bracket ends."""
    depth, quoted = 0, False
    for index in range(start, len(text)):
        character = text[index]
        if character == '"' and text[index - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth -= 1
            if not stop and depth == 0:
                return index + 1
        elif depth <= 0 and character == stop:
            return index
    return len(text)


def _places(tables: Mapping[str, Mapping[int, str]]) -> dict[int, str]:
    """Returns the file and line of each stack frame, innermost."""

    def number(text: str, key: str) -> int:
        found = re.search(rf"{key}=(\d+)", text)
        return int(found[1]) if found else -1

    files = tables.get("FileNames", {})
    locations = tables.get("FileLocations", {})
    places = {}
    for frame, text in tables.get("StackFrames", {}).items():
        location = locations.get(number(text, "file_location_id"), "")
        file = files.get(number(location, "file_name_id"), "").strip('"')
        if file:
            places[frame] = f"{file}:{number(location, 'line')}"
    return places


def replica_groups(text: str, device_count: int) -> tuple[tuple[int, ...], ...]:
    """Parses the groups of devices of a collective, in any of the forms that XLA writes.

    >>> replica_groups("{{0,1},{2,3}}", 4)
    ((0, 1), (2, 3))
    >>> replica_groups("[2,2]<=[2,2]T(1,0)", 4)
    ((0, 2), (1, 3))
    >>> replica_groups("mesh['a'=2,'b'=2] {'a'}", 4)
    ((0, 2), (1, 3))
    >>> replica_groups("{}", 3)
    ((0, 1, 2),)
    """
    if found := re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        order = numbers(found[3]) if found[3] else None
        return _groups(numbers(found[2]), order, math.prod(numbers(found[1])[1:]))
    if found := re.match(r"@?mesh\[(.*?)\]\s*(?:device_ids=\S+\s*)?\{(.*?)\}", text):
        sizes = dict(re.findall(r"'?([^',=]+)'?=(\d+)", found[1]))
        names = list(sizes)
        used = [name for name in re.findall(r"'?([^',\s]+)'?", found[2]) if name in sizes]
        order = tuple(names.index(name) for name in [n for n in names if n not in used] + used)
        dims = tuple(map(int, sizes.values()))
        return _groups(dims, order, math.prod(int(sizes[name]) for name in used))
    groups = tuple(numbers(group) for group in re.findall(r"\{([\d,]+)\}", text))
    return groups or (tuple(range(device_count)),)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _groups(
    dims: Sequence[int], order: Sequence[int] | None, size: int
) -> tuple[tuple[int, ...], ...]:
    """Returns groups of a size, of the devices of an array of some dimensions in another order."""
    import numpy as np  # A report can be read without it.

    devices = np.arange(math.prod(dims)).reshape(dims).transpose(order)
    return tuple(map(tuple, devices.reshape(-1, size).tolist()))
