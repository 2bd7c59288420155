"""Assertions for tests of programs on several devices; ``pytest --pmapx`` needs no import."""

from pmapx._src.testing.asserts import assert_compiles_once, assert_no_gather, assert_replicated
from pmapx._src.testing.budget import BudgetExceeded

__all__ = ["BudgetExceeded", "assert_compiles_once", "assert_no_gather", "assert_replicated"]
