"""Estimates of the time of a collective, from the published bandwidth of the links.

The model is the usual one: a ring through the devices of a group, both of its directions in use,
and no other traffic. It ignores congestion, overlap with computation, and how XLA maps a mesh axis
to the physical topology, and the report states that.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Link:
    """What is published of devices of one kind: interconnect and memory."""

    pattern: str  # Matches JAX's name for the kind.
    name: str  # The name of the link.
    bytes_a_second: float  # The bandwidth of a chip along one ring, both directions together.
    figure: str  # The published figure that this comes from.
    source: str  # Where it is published.
    memory: int | None = None  # The bytes of memory (HBM) of a device; None: the device reports it.
    # An axis of a slice has wraparound links if this divides its length; None: it has.
    wraps: int | None = None
    # Whether it has them only in a slice of full cubes of this length.
    wraps_together: bool = False
    # A device's share of the data center network (DCN), which connects slices; None if that is not
    # published.
    dcn_bits_a_second: float | None = None
    reach: int | None = None  # How many devices the link connects; None if there is no limit.

    @property
    def hop_seconds(self) -> float:
        """The latency of a hop; 0 if none is published."""
        return ICI_HOP_SECONDS if self.name == "ICI" else 0.0

    def has_wraparound(self, length: int, torus: Sequence[int]) -> bool:
        """Returns whether an axis of a slice is a ring.

        >>> v5e, v5p = link_of("TPU v5 lite"), link_of("TPU v5")
        >>> v5e.has_wraparound(8, (8, 16)), v5e.has_wraparound(16, (8, 16))
        (False, True)
        >>> v5p.has_wraparound(4, (2, 4, 4)), v5p.has_wraparound(4, (4, 4, 8))
        (False, True)
        """
        if self.wraps is None:
            return True
        if self.wraps_together and len(torus) < 3:
            return False
        others = torus if self.wraps_together else ()
        return all(each % self.wraps == 0 for each in (length, *others))


_TPU = "https://cloud.google.com/tpu/docs"
_BOOK = "https://jax-ml.github.io/scaling-book"
_CACM = "https://doi.org/10.1145/3360307"
_NVIDIA = "https://www.nvidia.com/en-us/data-center"
_GIB = 2**30

# An ICI ring uses two links of a chip, one each way. A device of JAX is a chip, but half of one on
# v2, v3 and tpu7x: memory and DCN are those of a half.
# Wraparound: a slice of full 4x4x4 cubes, or an axis of 16 on a v5e and v6e (_BOOK/tpus); a v2 and
# v3 only along the full length of a pod, 16x16 and 32x32 chips.
# DCN per pod of 256 chips: 6.4 Tbit/s for v5e, 25.6 for v6e; per chip: 50 Gbit/s for v5p, 100 for
# tpu7x (the pages in the table); 25 GB/s for a host of 4 v4 chips (_BOOK/tpus).
# A v5p has 96 GiB, of which libtpu reserves one (_TPU/v5p).
LINKS = (
    Link(r"TPU v2", "ICI", 2 * 62e9, "496 Gbit/s per link and direction", _CACM, 8 * _GIB, 16),
    Link(r"TPU v3", "ICI", 2 * 82e9, "656 Gbit/s per link and direction", _CACM, 16 * _GIB, 32),
    Link(r"TPU v4", "ICI", 2 * 50e9, "50 GB/s per link and direction, 6 links",
         "https://arxiv.org/abs/2304.01433", 32 * _GIB, 4, True, 50e9),
    Link(r"TPU v5( ?lite|e)", "ICI", 2 * 50e9, "400 GB/s per chip, both directions, 4 links",
         f"{_TPU}/v5e", 16 * _GIB, 16, dcn_bits_a_second=25e9),
    Link(r"TPU v5p?$", "ICI", 2 * 100e9, "1200 GB/s per chip, both directions, 6 links",
         f"{_TPU}/v5p", 95 * _GIB, 4, True, 50e9),
    Link(r"TPU v6( ?lite|e)", "ICI", 2 * 100e9, "800 GB/s per chip, both directions, 4 links",
         f"{_TPU}/v6e", 32 * _GIB, 16, dcn_bits_a_second=100e9),
    Link(r"TPU ?v?7x?", "ICI", 2 * 100e9, "1200 GB/s per chip, both directions, 6 links",
         f"{_TPU}/tpu7x", 96 * _GIB, 4, True, 50e9),
    Link(r"V100-SXM", "NVLink 2", 150e9, "300 GB/s per GPU, both directions", f"{_NVIDIA}/v100/",
         reach=8),
    Link(r"A100-SXM", "NVLink 3", 300e9, "600 GB/s per GPU, both directions", f"{_NVIDIA}/a100/",
         reach=8),
    Link(r"H100(?!.*PCIe)", "NVLink 4", 450e9, "900 GB/s per GPU, both directions",
         f"{_NVIDIA}/h100/", reach=8),
    Link(r"H200(?!.*NVL)", "NVLink 4", 450e9, "900 GB/s per GPU, both directions",
         f"{_NVIDIA}/h200/", reach=8),
    Link(r"GB200", "NVLink 5", 900e9, "1800 GB/s per GPU, both directions",
         f"{_NVIDIA}/gb200-nvl72/", reach=72),
    Link(r"B200", "NVLink 5", 900e9, "1800 GB/s per GPU, both directions", f"{_NVIDIA}/dgx-b200/",
         reach=8),
)  # fmt: skip
"""Through an NVSwitch a GPU sends to any other with all of its links."""

ICI_HOP_SECONDS = 1e-6  # "typically around 1us": _BOOK/sharding
# The tail latency of a short message in Google's data centers at full load, under 50 us and three
# times the least (https://research.google/pubs/pub49448/). An all-reduce sends two.
DCN_SECONDS = 50e-6


def link_of(device_kind: str) -> Link | None:
    """Returns the interconnect of devices of a kind, if its figures are published.

    >>> link_of("TPU v5 lite").name
    'ICI'
    >>> link_of("cpu") is None
    True
    """
    return next((link for link in LINKS if re.search(link.pattern, device_kind, re.I)), None)


@dataclasses.dataclass(frozen=True)
class Fabric:
    """The devices of a mesh and their interconnect."""

    kind: str  # JAX's name for the kind of device.
    count: int  # The number of devices.
    torus: tuple[int, ...] = ()  # The shape of a slice; () if that is not known.
    # For each device the index of its slice; slices are connected by DCN.
    slice_of: tuple[int, ...] = ()

    @property
    def slices(self) -> int:
        return max(1, len(set(self.slice_of)))

    @property
    def link(self) -> Link | None:
        return link_of(self.kind)

    def seconds(
        self, kind: str, sent: int, group_size: int, between: int = 0, slices: int = 1
    ) -> float | None:
        """Estimates the time of one collective; None if no estimate can be made.

        A device sends so many bytes, of which those ``between`` leave its slice.


        >>> fabric = Fabric("TPU v5 lite", 256, torus=(16, 16))
        >>> round(1e6 * fabric.seconds("all-reduce", 200_000_000, 256))
        1032
        >>> round(1e6 * fabric.seconds("all-reduce", 200_000_000, 16))
        2016
        """
        link = self.link
        if link is None or (link.reach is not None and group_size > link.reach):
            return None
        within = self._seconds_within(link, kind, sent - between, group_size // slices)
        if slices == 1:
            return within
        if link.dcn_bits_a_second is None:
            return None
        rounds = 2 if kind == "all-reduce" else 1
        return max(within, 8 * between / link.dcn_bits_a_second + rounds * DCN_SECONDS)

    def _seconds_within(self, link: Link, kind: str, sent: int, members: int) -> float:
        if members <= 1:
            return 0.0
        is_full_slice = members == self.count // self.slices
        axes = self.torus if is_full_slice and self.torus else (members,)
        rings = [self._is_ring(link, length) for length in axes]
        # To the farthest device, either way around a ring.
        hops = sum(n // 2 if ring else n - 1 for n, ring in zip(axes, rings, strict=True))
        if kind == "all-reduce":
            hops *= 2
        # Without wraparound links, an axis sends at half the rate: it has one way to each device.
        rate = sum(link.bytes_a_second * (1.0 if ring else 0.5) for ring in rings)
        if kind in ("collective-permute", "collective-broadcast"):
            hops, rate = 1, link.bytes_a_second
        if kind.endswith("all-to-all") and link.reach is None:
            sent = max(sent, sent * max(axes) // 4)  # Each device forwards the parts of others.
        return sent / rate + hops * link.hop_seconds

    def _is_ring(self, link: Link, members: int) -> bool:
        """Returns whether a group of that many devices is a ring: an axis with wraparound links."""
        if link.reach is not None:
            return True
        if not self.torus:
            return link.wraps is None
        return members in self.torus and link.has_wraparound(members, self.torus)

    def assumptions(self) -> list[str]:
        """Returns the assumptions of the estimates.

        >>> Fabric("cpu", 8).assumptions()
        ['cpu: no time is estimated; virtual devices of one machine have no interconnect.']
        """
        link = self.link
        if link is None:
            why = (
                "virtual devices of one machine have no interconnect."
                if self.kind.lower() == "cpu"
                else "no figures for its interconnect are published."
            )
            return [f"{self.kind}: no time is estimated; {why}"]
        rate = f"{link.bytes_a_second / 1e9:.0f} GB/s"
        assumed = [
            f"{self.kind}: {link.name} sends {rate} per device along a ring, both directions in "
            f"use ({link.figure}: {link.source})."
        ]
        if link.hop_seconds:
            assumed.append(f"{link.hop_seconds * 1e6:.0f} us for each hop of a ring.")
        else:
            assumed.append("No latency is added; small messages take longer than their estimate.")
        if link.reach is not None:
            assumed.append(
                f"Groups of more than {link.reach} devices need several hosts: no estimate."
            )
        else:
            shape = " x ".join(map(str, self.torus)) or "unknown shape"
            rings = [str(n) for n in self.torus if link.has_wraparound(n, self.torus)]
            has = f"axes of {' and '.join(rings)} have" if rings else "no axis has"
            assumed.append(
                f"A collective over all {self.count // self.slices} devices of a slice ({shape}) "
                f"uses all its axes; over fewer devices, one. Here {has} wraparound links; without "
                "them an axis sends at half the rate."
            )
        if self.slices > 1:
            assumed += self._assumptions_between(link)
        assumed.append("Collectives run in sequence, without overlap with computation.")
        return assumed

    def _assumptions_between(self, link: Link) -> list[str]:
        if link.dcn_bits_a_second is None:
            return [f"The {self.slices} slices are connected by DCN, of unknown rate: no estimate."]
        rate = f"{link.dcn_bits_a_second / 8e9:.3g} GB/s"
        return [
            f"The {self.slices} slices are connected by DCN, {rate} per device (its share of its "
            f"host's network cards: {link.source}), {DCN_SECONDS * 1e6:.0f} us per message.",
            "In TPU programs, the part of a collective within a slice and the part over DCN run in "
            "sequence; a collective that XLA did not split runs on both at once, and takes as long "
            "as the slower.",
        ]


def fabric_of(devices: Sequence[Any]) -> Fabric:
    """Returns how devices are connected, from their coordinates and slices."""
    first = devices[0]
    slice_of = tuple(int(getattr(device, "slice_index", 0) or 0) for device in devices)
    within = [device for device, at in zip(devices, slice_of, strict=True) if at == slice_of[0]]
    places = {tuple(getattr(device, "coords", None) or ()) for device in within}
    torus: tuple[int, ...] = ()
    if () not in places and link_of(str(first.device_kind)):
        spans = [max(axis) - min(axis) + 1 for axis in zip(*places, strict=True)]
        is_full = len(places) == math.prod(spans)
        torus = tuple(span for span in spans if span > 1) if is_full else ()
    return Fabric(str(first.device_kind), len(devices), torus, slice_of)
