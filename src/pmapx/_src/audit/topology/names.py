"""The names of target topologies; JAX is not needed for them."""

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence

from pmapx._src import errors


@dataclasses.dataclass(frozen=True)
class Family:
    """A kind of TPU: the shapes of its slices in chips, smallest first, and options of libtpu."""

    shapes: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()

    @property
    def rank(self) -> int:
        return self.shapes[0].count("x") + 1

    @property
    def largest(self) -> int:
        return _chips(self.shapes[-1])


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = (
    *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16"),
    *("8x16x16", "16x16x16"),
)
FAMILIES = {
    # Each chip of a v4 is one device to JAX, of two cores.
    "v4": Family(_CUBES, options=(("chip_config_name", "megacore"),)),
    "v5e": Family(_FLAT),
    "v5p": Family((*_CUBES, "16x16x24")),
    "v6e": Family(_FLAT),
    "tpu7x": Family(_CUBES),
}
"""The TPUs that pmapx knows by name; ``libtpu`` may know others."""

EXAMPLES = ("v5e:16x16", "v6e:8x8", "v4:4x4x4", "v5p:8x8x16", "4x v5e:16x16", "cpu:64")

_NAME = re.compile(r"(?:(\d+)\s*x\s+)?([a-z][a-z0-9]*):(\d+(?:x\d+)*)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Topology:
    """A topology by its parts."""

    name: str  # Its canonical name.
    family: str  # A kind of TPU, ``cpu`` or ``gpu``.
    shape: tuple[int, ...]  # The shape of a slice in chips, or the machines and the GPUs of each.
    slices: int = 1  # The number of slices, which are connected by DCN.


def parse(name: str) -> Topology:
    """Parses a topology's name.

    >>> parse("4x v5e:16x16")
    Topology(name='4x v5e:16x16', family='v5e', shape=(16, 16), slices=4)
    >>> parse("cpu:64").shape
    (64,)
    """
    found = _NAME.fullmatch(name.strip()) if isinstance(name, str) else None
    if found is None:
        problem = "a topology is written as family:shape, several slices as 4x family:shape"
        raise errors.UnknownTopology(name, problem, EXAMPLES)
    slices, family, shape = int(found[1] or 1), found[2].lower(), found[3]
    sizes = tuple(map(int, shape.split("x")))
    written = f"{family}:{shape}" if slices == 1 else f"{slices}x {family}:{shape}"
    topology = Topology(written, family, sizes, slices)
    wrong = _problem(topology)
    if wrong is not None:
        raise errors.UnknownTopology(name, wrong, names_of(family) or EXAMPLES)
    return topology


def names_of(family: str) -> list[str]:
    """Returns the names of the slices of a family that is known."""
    return [f"{family}:{shape}" for shape in FAMILIES[family].shapes] if family in FAMILIES else []


def _problem(topology: Topology) -> str | None:
    """Returns what is wrong with a topology, as far as that is known without a compiler."""
    shape, slices = topology.shape, topology.slices
    if 0 in (*shape, slices):
        return "it has no devices"
    if topology.family == "cpu":
        return None if len(shape) == 1 and slices == 1 else "CPU devices have no shape: write cpu:8"
    if topology.family == "gpu":
        is_known = len(shape) <= 2 and slices == 1
        return None if is_known else "GPUs are hosts x GPUs per host, as gpu:2x8"
    family = FAMILIES.get(topology.family)
    if family is None:
        return f"{topology.family} is not a known device family ({', '.join(FAMILIES)}, cpu, gpu)"
    if len(shape) != family.rank:
        return f"a slice of {topology.family} has {family.rank} dimensions"
    if math.prod(shape) > family.largest:
        return (
            f"a slice of {topology.family} has at most {family.largest} chips; "
            f"several slices are written as 4x {topology.family}:{family.shapes[-1]}"
        )
    return None


def topology_of(device_count: int, family: str = "v5p") -> str:
    """Returns the name of a topology with that many devices, in several slices if needed.

    >>> topology_of(256, "v5e"), topology_of(1024, "v5e"), topology_of(1024), topology_of(8, "cpu")
    ('v5e:16x16', '4x v5e:16x16', 'v5p:8x8x16', 'cpu:8')
    """
    if family in ("cpu", "gpu"):
        return f"{family}:{device_count}"
    if family not in FAMILIES:
        problem = f"it is not a known device family ({', '.join(FAMILIES)}, cpu, gpu)"
        raise errors.UnknownTopology(family, problem, EXAMPLES)
    known = FAMILIES[family]
    per_chip = 2 if family == "tpu7x" else 1
    for shape in known.shapes:
        if _chips(shape) * per_chip == device_count:
            return f"{family}:{shape}"
    slices, rest = divmod(device_count, known.largest * per_chip)
    if rest or not slices:
        problem = f"no slice of {family} has {device_count} devices"
        valid = [f"{family}:{shape} ({_chips(shape) * per_chip})" for shape in known.shapes]
        raise errors.UnknownTopology(f"{family} of {device_count}", problem, valid)
    return f"{slices}x {family}:{known.shapes[-1]}"


def several(names: str | Sequence[str]) -> list[str]:
    """Parses the topologies of a scaling table, each a name or a number of devices.

    >>> several("v5e:8, 64, 256, 4x v5e:16x16")
    ['v5e:2x4', 'v5e:8x8', 'v5e:16x16', '4x v5e:16x16']
    >>> several(["cpu:8", "cpu:16"])
    ['cpu:8', 'cpu:16']
    """
    found: list[str] = []
    family = ""
    for name in names.split(",") if isinstance(names, str) else names:
        name = name.strip()
        if not name:
            continue
        if name.isdecimal() and family:
            name = f"{family}:{name}"
        kind, _, shape = name.partition(":")
        if shape.isdecimal() and kind in FAMILIES:
            name = topology_of(int(shape), kind)
        topology = parse(name)
        family = topology.family
        found.append(topology.name)
    return list(dict.fromkeys(found))


def _chips(shape: str) -> int:
    return math.prod(map(int, shape.split("x")))


def completions(text: str) -> list[str]:
    """Returns the names that start with a text, for shells; of a list, its last one is completed.

    >>> completions("v6e:8"), completions("v5e:8,v6e:1x")
    (['v6e:8x8', 'v6e:8x16'], ['v5e:8,v6e:1x1'])
    """
    before, comma, last = text.rpartition(",")
    known = [*itertools.chain(*map(names_of, FAMILIES)), "cpu:8", "cpu:64", "gpu:8", "gpu:2x8"]
    return [f"{before}{comma}{name}" for name in known if name.startswith(last.strip().lower())]
