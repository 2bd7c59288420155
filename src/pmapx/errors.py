"""Every error and warning that pmapx raises, and ``explain``, which returns the page of a code."""

from pmapx._src.errors import *  # noqa: F403
from pmapx._src.errors.base import explain as explain
