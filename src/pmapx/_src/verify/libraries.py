"""Libraries that a migrated program uses and that still need what JAX removed."""

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
    """Returns the name that JAX removed and a library asked for, from what a failed run printed.

    Empty if there is none, or if a file below ``root`` asked for it: that is the program's own.

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
