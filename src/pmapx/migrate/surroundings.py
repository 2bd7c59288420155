"""How a program is run, as far as the words of its files tell."""

from __future__ import annotations

import dataclasses
import re

from pmapx.migrate import emitted

_JAX = b"jax"
_OF_PROCESSES = re.compile(
    rb"\bjax\.distributed\b|\b(?:process|host)_(?:index|count|id)\(|\bmultihost_utils\b"
)
# What programs cut their rows by.
_OF_DEVICES = re.compile(
    rb"\b(?:local_)?device_count\b|\blocal_devices\b|\bjax\.devices\b|\bdevice_put_replicated\b"
    rb"|\bjax_utils\b|\bcommon_utils\b|\bbcast_local_devices\b"
)
# Settings of JAX's backend inside a function or a condition, which come after imports.
_LATE_SETTING = re.compile(
    rb"^[ \t]+[^#\r\n]*(?:\bjax\.distributed\b|\bjax_(?:platform|num_cpu_devices)|\bXLA_FLAGS\b"
    rb"|\bJAX_(?:PLATFORM|NUM_CPU_DEVICES)|\b(?:CUDA|HIP|TPU)_VISIBLE_)",
    re.MULTILINE,
)
# What an earlier run wrote tells nothing of the program.
_EMITTED = re.compile(
    rf"^def (?:{'|'.join(emitted.TEXTS)})\(.*?\n(?=[^\s)]|\Z)".encode(), re.DOTALL | re.MULTILINE
)


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known of the program that a file is part of.

    ``in_processes`` if several processes may run it, each with rows of its own; ``by_devices`` if
    it counts its devices, and so has a row for each; ``is_set_late`` if it chooses them when its
    modules are imported already, so that none of these may ask for devices.
    """

    in_processes: bool = False
    by_devices: bool = False
    is_set_late: bool = False

    @classmethod
    def of(cls, data: bytes) -> Surroundings:
        """Returns what one file tells.

        >>> Surroundings.of(b"import jax; n = jax.local_device_count()")
        Surroundings(in_processes=False, by_devices=True, is_set_late=False)
        """
        if _JAX not in data and b"XLA" not in data:
            return cls()
        data = _EMITTED.sub(b"", data)
        return cls(
            _JAX in data and _OF_PROCESSES.search(data) is not None,
            _OF_DEVICES.search(data) is not None,
            _LATE_SETTING.search(data) is not None,
        )

    def __or__(self, other: Surroundings) -> Surroundings:
        """Returns what two files tell together."""
        return Surroundings(
            self.in_processes or other.in_processes,
            self.by_devices or other.by_devices,
            self.is_set_late or other.is_set_late,
        )


# One process, and nothing known of its devices.
ORDINARY = Surroundings()
