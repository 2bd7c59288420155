"""How long a collective takes, by the published figures of what connects the devices.

The model is the one that is usual on paper: a ring through the devices of a group, both of its
directions in use, and nothing else on the wires. It leaves out what it cannot know (congestion,
overlap with computation, how XLA lays a mesh axis on the wires) and says so.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Link:
    """What connects devices of one kind.

    Attributes:
      pattern: what the kind's name, as JAX has it, looks like.
      name: what the link is called.
      bytes_a_second: what a device can send along one ring in one second, both directions of the
        ring together.
      reach: how many devices it connects; None where any number.
      hop_seconds: the time from one device to the next, where it is published.
      figure: the published figure that this comes from.
      source: where it is published.
      network_bytes_a_second: a device's share of what its host sends into the data center's
        network, which connects slices; None where that is not published.
    """

    pattern: str
    name: str
    bytes_a_second: float
    reach: int | None
    hop_seconds: float
    figure: str
    source: str
    network_bytes_a_second: float | None = None


_TPU = "https://cloud.google.com/tpu/docs"
_CACM = "https://doi.org/10.1145/3360307"
_HOP = 1e-6  # "about 1us per hop": https://jax-ml.github.io/scaling-book/sharding/

LINKS = (
    Link(r"TPU v2", "ICI", 2 * 62e9, None, _HOP, "496 Gbit/s a link and direction", _CACM),
    Link(r"TPU v3", "ICI", 2 * 82e9, None, _HOP, "656 Gbit/s a link and direction", _CACM),
    Link(r"TPU v4", "ICI", 2 * 50e9, None, _HOP, "2400 Gbit/s a chip, 6 links", f"{_TPU}/v4"),
    Link(r"TPU v5( ?lite|e)", "ICI", 2 * 50e9, None, _HOP,
         "400 GB/s a chip, both directions, 4 links", f"{_TPU}/v5e", 25e9 / 8),
    Link(r"TPU v5p?$", "ICI", 2 * 100e9, None, _HOP, "4800 Gbit/s a chip, 6 links",
         f"{_TPU}/v5p", 50e9 / 8),
    Link(r"TPU v6( ?lite|e)", "ICI", 2 * 100e9, None, _HOP,
         "800 GB/s a chip, both directions, 4 links", f"{_TPU}/v6e", 100e9 / 8),
    Link(r"TPU ?v?7x?", "ICI", 2 * 100e9, None, _HOP,
         "1200 GB/s a chip, both directions, 6 links", f"{_TPU}/tpu7x"),
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
a GPU sends to any other with all it has."""


def link_of(device_kind: str) -> Link | None:
    """Returns what connects devices of a kind, if its figures are published.

    >>> link_of("TPU v5 lite").name
    'ICI'
    >>> link_of("cpu") is None
    True
    """
    return next((link for link in LINKS if re.search(link.pattern, device_kind, re.I)), None)


@dataclasses.dataclass(frozen=True)
class Fabric:
    """The devices of a mesh and what connects them.

    Attributes:
      kind: what the devices are, as JAX names it.
      count: how many there are.
      torus: the lengths of the rings along which all of a slice lie; () where that is not known.
      slice_of: for each device the slice that it lies in; only a network connects slices.
    """

    kind: str
    count: int
    torus: tuple[int, ...] = ()
    slice_of: tuple[int, ...] = ()

    @property
    def slices(self) -> int:
        """How many slices there are."""
        return max(1, len(set(self.slice_of)))

    @property
    def link(self) -> Link | None:
        """What connects them, if its figures are published."""
        return link_of(self.kind)

    def seconds(
        self, kind: str, sent: int, group_size: int, between: int = 0, slices: int = 1
    ) -> float | None:
        """Estimates the time of one collective; None where no estimate can be made.

        Args:
          kind: XLA's name for it.
          sent: the bytes that a device sends.
          group_size: how many devices talk to each other.
          between: the bytes among ``sent`` that leave a slice.
          slices: how many slices those devices lie in.

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
        if link.network_bytes_a_second is None:
            return None
        return max(within, between / link.network_bytes_a_second)

    def _seconds_within(self, link: Link, kind: str, sent: int, members: int) -> float:
        if members <= 1:
            return 0.0
        is_whole = members == self.count // self.slices
        rings = self.torus if is_whole and self.torus else (members,)
        hops = sum(length // 2 for length in rings)  # To the farthest device, either way around.
        if kind == "all-reduce":
            hops *= 2
        rate = link.bytes_a_second * len(rings)
        if kind in ("collective-permute", "collective-broadcast"):
            hops, rate = 1, link.bytes_a_second
        if kind.endswith("all-to-all") and link.reach is None:
            sent = max(sent, sent * max(rings) // 4)  # Others' parts pass through each device.
        return sent / rate + hops * link.hop_seconds

    def assumptions(self) -> list[str]:
        """Says what the estimates rest on.

        >>> Fabric("cpu", 8).assumptions()
        ['cpu: no time is estimated; virtual devices of one machine have no interconnect.']
        """
        link = self.link
        if link is None:
            why = (
                "virtual devices of one machine have no interconnect."
                if self.kind.lower() == "cpu"
                else "no published figures of its links are known here."
            )
            return [f"{self.kind}: no time is estimated; {why}"]
        rate = f"{link.bytes_a_second / 1e9:.0f} GB/s"
        said = [
            f"{self.kind}: {link.name} sends {rate} a device along a ring, both directions in use "
            f"({link.figure}: {link.source})."
        ]
        if link.hop_seconds:
            said.append(f"{link.hop_seconds * 1e6:.0f} us for each hop of a ring.")
        else:
            said.append("No latency is added; small messages take longer than their estimate.")
        if link.reach is not None:
            said.append(f"Groups of more than {link.reach} devices leave a box: no estimate.")
        elif len(self.torus) > 1:
            shape = " x ".join(map(str, self.torus))
            members = self.count // self.slices
            said.append(
                f"A collective of all {members} devices of a slice uses the rings of all its "
                f"dimensions ({shape}); one of a part of them uses one ring. All rings are closed."
            )
        else:
            said.append("One ring goes through all devices of a group, and is closed.")
        if self.slices > 1:
            said += self._assumptions_between(link)
        said.append("Collectives run one after the other, and nothing is computed meanwhile.")
        return said

    def _assumptions_between(self, link: Link) -> list[str]:
        if link.network_bytes_a_second is None:
            return [
                f"Between the {self.slices} slices is a network of which no figure is known here: "
                "no estimate."
            ]
        rate = f"{link.network_bytes_a_second / 1e9:.3g} GB/s"
        return [
            f"Between the {self.slices} slices is the data center's network, {rate} a device (its "
            f"share of its host's cards: {link.source}), without latency.",
            "TPU programs hold what stays in a slice and what leaves it apart, one after the "
            "other; where a collective over slices is whole, links and network work at once and "
            "the slower decides.",
        ]


def fabric_of(devices: Sequence[Any]) -> Fabric:
    """Reads off devices how they are connected."""
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
