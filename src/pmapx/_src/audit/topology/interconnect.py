"""Estimates of the time of a collective, from the published bandwidth of the links.

The model is the usual one: a ring through the devices of a group, both of its directions in use,
and no other traffic. It ignores congestion, overlap with computation, and how XLA maps a mesh axis
to the physical topology, and the report states that.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Link:
    """The interconnect of devices of one kind.

    Attributes:
      pattern: a pattern of JAX's name for the kind.
      name: the name of the link.
      bytes_a_second: the bandwidth of a device along one ring, both directions together.
      reach: how many devices it connects; None if there is no limit.
      hop_seconds: the latency of a hop, if it is published.
      figure: the published figure that this comes from.
      source: where it is published.
      dcn_bytes_a_second: a device's share of its host's bandwidth on the data center network (DCN),
        which connects slices; None if that is not published.
      memory: the bytes of memory (HBM) of a device.
      wraps: the axes of a slice that have wraparound links: those of a length that this divides;
        if ``wraps_together``, only in a slice of cubes of this length.
    """

    pattern: str
    name: str
    bytes_a_second: float
    reach: int | None
    hop_seconds: float
    figure: str
    source: str
    dcn_bytes_a_second: float | None = None
    memory: int | None = None
    wraps: int | None = None
    wraps_together: bool = False

    def has_wraparound(self, length: int, torus: Sequence[int]) -> bool:
        """Tells whether an axis of a slice is a ring.

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
_CACM = "https://doi.org/10.1145/3360307"
_HOP = 1e-6  # "about 1us per hop": https://jax-ml.github.io/scaling-book/sharding/

_GIB = 2**30

LINKS = (
    Link(r"TPU v2", "ICI", 2 * 62e9, None, _HOP, "496 Gbit/s a link and direction", _CACM,
         memory=8 * _GIB, wraps=16),
    Link(r"TPU v3", "ICI", 2 * 82e9, None, _HOP, "656 Gbit/s a link and direction", _CACM,
         memory=16 * _GIB, wraps=32),
    Link(r"TPU v4", "ICI", 2 * 50e9, None, _HOP, "2400 Gbit/s a chip, 6 links", f"{_TPU}/v4",
         memory=32 * _GIB, wraps=4, wraps_together=True),
    Link(r"TPU v5( ?lite|e)", "ICI", 2 * 50e9, None, _HOP,
         "400 GB/s a chip, both directions, 4 links", f"{_TPU}/v5e", 25e9 / 8,
         memory=16 * _GIB, wraps=16),
    Link(r"TPU v5p?$", "ICI", 2 * 100e9, None, _HOP, "4800 Gbit/s a chip, 6 links",
         f"{_TPU}/v5p", 50e9 / 8, memory=95 * _GIB, wraps=4, wraps_together=True),
    Link(r"TPU v6( ?lite|e)", "ICI", 2 * 100e9, None, _HOP,
         "800 GB/s a chip, both directions, 4 links", f"{_TPU}/v6e", 100e9 / 8,
         memory=32 * _GIB, wraps=16),
    Link(r"TPU ?v?7x?", "ICI", 2 * 100e9, None, _HOP,
         "1200 GB/s a chip, both directions, 6 links", f"{_TPU}/tpu7x",
         memory=96 * _GIB, wraps=4, wraps_together=True),
    Link(r"V100-SXM", "NVLink 2", 150e9, 8, 0.0, "300 GB/s a GPU, both directions",
         "https://www.nvidia.com/en-us/data-center/v100/"),
    Link(r"A100-SXM", "NVLink 3", 300e9, 8, 0.0, "600 GB/s a GPU, both directions",
         "https://www.nvidia.com/en-us/data-center/a100/"),
    Link(r"H100(?!.*PCIe)", "NVLink 4", 450e9, 8, 0.0, "900 GB/s a GPU, both directions",
         "https://www.nvidia.com/en-us/data-center/h100/"),
    Link(r"H200(?!.*NVL)", "NVLink 4", 450e9, 8, 0.0, "900 GB/s a GPU, both directions",
         "https://www.nvidia.com/en-us/data-center/h200/"),
    Link(r"B200", "NVLink 5", 900e9, 8, 0.0, "1800 GB/s a GPU, both directions",
         "https://www.nvidia.com/en-us/data-center/dgx-b200/"),
)  # fmt: skip
"""On a TPU a ring uses two of a chip's links, one for each direction of travel; through an NVSwitch
a GPU sends to any other with all it has. The memory of a GPU is asked of the GPU itself."""

DCN_SECONDS = 50e-6
"""The latency of a message over DCN, twice for an all-reduce: the tail latency of short messages in
Google's data centers (https://doi.org/10.1145/3387514.3406591)."""


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
    """The devices of a mesh and their interconnect.

    Attributes:
      kind: JAX's name for the kind of device.
      count: the number of devices.
      torus: the shape of a slice; () if that is not known.
      slice_of: for each device the index of its slice; slices are connected by DCN.
    """

    kind: str
    count: int
    torus: tuple[int, ...] = ()
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

        Args:
          kind: XLA's name for it.
          sent: the bytes that a device sends.
          group_size: the number of devices in a group.
          between: the bytes among ``sent`` that leave a slice.
          slices: the number of slices that a group is in.

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
        if link.dcn_bytes_a_second is None:
            return None
        rounds = 2 if kind == "all-reduce" else 1
        return max(within, between / link.dcn_bytes_a_second + rounds * DCN_SECONDS)

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
        """Tells whether a group of that many devices is a ring: an axis with wraparound links."""
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
                else "no published figures of its interconnect are known here."
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
        if link.dcn_bytes_a_second is None:
            return [f"The {self.slices} slices are connected by DCN, of unknown rate: no estimate."]
        rate = f"{link.dcn_bytes_a_second / 1e9:.3g} GB/s"
        return [
            f"The {self.slices} slices are connected by DCN, {rate} per device (its share of its "
            f"host's network cards: {link.source}), {DCN_SECONDS * 1e6:.0f} us a message.",
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
