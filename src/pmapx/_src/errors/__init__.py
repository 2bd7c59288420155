"""Every error and warning that pmapx raises: its type, its code, its message and its fix.

``base`` has ``PmapxError``, ``PmapxWarning`` and the registry of codes. Every other module holds
the classes of one concern, in the order of a call: ``options``, ``arguments``, ``devices``,
``processes``, ``warnings``; then ``arrays``, and ``topology`` for audits.

To add an error, write its class in one of these modules; it is public as ``pmapx.errors.Name``.
Its docstring is the page that ``pmapx explain CODE`` prints. Its ``__init__`` takes facts and
composes the message, so that the code that detects a mistake contains no prose. Each class also
derives from what JAX raises for the same mistake, so that existing ``except`` clauses still work.
"""

from typing import TYPE_CHECKING

from pmapx._src.errors.arguments import *  # noqa: F403
from pmapx._src.errors.arrays import *  # noqa: F403
from pmapx._src.errors.base import CODES as CODES
from pmapx._src.errors.base import PmapxError as PmapxError
from pmapx._src.errors.base import PmapxWarning as PmapxWarning
from pmapx._src.errors.base import explain as explain
from pmapx._src.errors.base import warn as warn
from pmapx._src.errors.devices import *  # noqa: F403
from pmapx._src.errors.options import *  # noqa: F403
from pmapx._src.errors.processes import *  # noqa: F403
from pmapx._src.errors.topology import *  # noqa: F403
from pmapx._src.errors.warnings import *  # noqa: F403

if not TYPE_CHECKING:  # Type checkers read only literals; to them, the star imports are the list.
    __all__ = [each.__name__ for each in (PmapxError, PmapxWarning, explain, warn)]
    __all__ += ["CODES", *sorted(cls.__name__ for cls in CODES.values())]
