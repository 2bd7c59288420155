"""Libraries of a migrated program that still need names that JAX removed."""

from __future__ import annotations

import os
import re
from pathlib import Path

_FILE = re.compile(r'File "([^"]+)", line \d+')
_REMOVED = re.compile(
    r"(?:AttributeError|ImportError): .*?\b"
    r"(device_put_replicated|device_put_sharded|PmapSharding|jax_pmap_\w+)\b"
)


def removed_name(output: str, root: Path) -> str:
    """Returns the removed name of JAX that a library used, from the output of a failed run.

    Empty if there is none, or if a file below ``root``, which is the program's own, used it.

    >>> asked = 'File "/env/lib/site-packages/kfac/p.py", line 7, in f\\nAttributeError: jax.%s'
    >>> removed_name(asked % "device_put_replicated is deprecated", Path("/home/me/lab"))
    'device_put_replicated'
    >>> removed_name(asked % "device_put_replicated is deprecated", Path("/env"))
    ''
    """
    found = next(reversed(list(_REMOVED.finditer(output))), None)
    if found is None:
        return ""
    files = [file for file in _FILE.findall(output, 0, found.start()) if "/jax/" not in file]
    if not files or os.path.realpath(files[-1]).startswith(os.path.realpath(root) + os.sep):
        return ""
    return found[1]
