"""How a program is run, as far as the words of its files show."""

from __future__ import annotations

import dataclasses
import re

from pmapx._src.emitted import functions

_JAX = b"jax"
# What is logged, or done by one process alone, makes no arrays.
_OF_PROCESSES = re.compile(
    rb"\bjax\.distributed\b|\bmultihost_utils\b|\bget_read_instruction_for_host\b"
    rb"|^(?![^\n]*(?:\blog|print\(|f['\"]))[^#\n]*\b(?:(?:process|host)_count\(\)"
    rb"|(?<!not jax\.)(?:process_index|host_id)\(\)(?!\s*(?:==|!=|>)\s*0)"
    # Of a device: they are grouped by it.
    rb"|(?!jax\b)\w+\.process_index\b(?!\())",
    re.MULTILINE,
)
# What programs derive the size of the leading device axis from.
_OF_DEVICES = re.compile(
    rb"\b(?:local_)?device_count\b|\blocal_devices\b|\bjax\.devices\b|\bdevice_put_replicated\b"
    rb"|\bjax_utils\b|\bcommon_utils\b|\bbcast_local_devices\b"
)
# Not all of them may be used.
_OF_SOME_DEVICES = re.compile(rb"\b\w*dev(?:ice)?s\w*(?:\([^()\n]*\))?\)?\[[^\]\n]*:|\bmax_devices")
# Settings of JAX's backend inside a function or a condition, which come after imports.
_LATE_SETTING = re.compile(
    rb"^[ \t]+[^#\r\n]*(?:\bjax\.distributed\b|\bjax_(?:platform|num_cpu_devices)|\bXLA_FLAGS\b"
    rb"|\bJAX_(?:PLATFORM|NUM_CPU_DEVICES)|\b(?:CUDA|HIP|TPU)_VISIBLE_)",
    re.MULTILINE,
)
# What an earlier run wrote is no evidence.
_EMITTED = re.compile(
    rf"^def (?:{'|'.join(functions.names())})\(.*?\n(?=[^\s)]|\Z)".encode(),
    re.DOTALL | re.MULTILINE,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known of the program that a file is part of.

    ``in_processes`` if it may be multi-process, each process with host-local shards;
    ``counts_devices`` if it asks how many there are; ``takes_some`` if it may use only some;
    ``is_set_late`` if it chooses them after its modules are imported, so that none of these may
    start the backend.
    """

    in_processes: bool = False
    counts_devices: bool = False
    takes_some: bool = False
    is_set_late: bool = False

    @property
    def maps_all_devices(self) -> bool:
        """Whether its maps have a shard for each device, as far as its words show."""
        return self.counts_devices and not self.takes_some

    @classmethod
    def of(cls, data: bytes) -> Surroundings:
        """Returns what one file shows.

        >>> Surroundings.of(b"import jax; n = jax.local_device_count()")
        Surroundings(in_processes=False, counts_devices=True, takes_some=False, is_set_late=False)
        """
        if _JAX not in data and b"XLA" not in data:
            return cls()
        data = _EMITTED.sub(b"", data)
        return cls(
            _JAX in data and _OF_PROCESSES.search(data) is not None,
            _OF_DEVICES.search(data) is not None,
            _OF_SOME_DEVICES.search(data) is not None,
            _LATE_SETTING.search(data) is not None,
        )

    def __or__(self, other: Surroundings) -> Surroundings:
        return Surroundings(
            self.in_processes or other.in_processes,
            self.counts_devices or other.counts_devices,
            self.takes_some or other.takes_some,
            self.is_set_late or other.is_set_late,
        )


# One process, and nothing known of its devices.
ORDINARY = Surroundings()
