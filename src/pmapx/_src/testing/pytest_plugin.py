"""The plugin for pytest: ``pytest --pmapx`` checks the budgets of tests.

It is imported in every run of pytest where pmapx is installed, so it needs no JAX until a test uses
it.
"""

import dataclasses
from collections.abc import Callable, Generator
from typing import Any

import pytest

_MARK = (
    "pmapx(compiles=, collectives=, bytes=, memory=, topology=, function=): what the functions "
    "that the test calls may cost; checked with --pmapx"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("pmapx").addoption(
        "--pmapx", action="store_true", help="check the budgets of tests marked with pmapx"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)
    if config.getoption("--pmapx"):
        from pmapx._src.testing import watched_calls

        # Before tests are imported: functions that they make at import are watched.
        watched_calls.listener()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    marks = list(pyfuncitem.iter_markers("pmapx"))
    if not marks or not pyfuncitem.config.getoption("--pmapx"):
        return (yield)
    from pmapx._src.testing import budget, watched_calls

    options: dict[str, Any] = {}
    for mark in reversed(marks):  # That of the test itself comes first, and counts.
        options.update(mark.kwargs)
    allowed = budget.Budget.of(options)
    with watched_calls.listener().watching(allowed.topology) as seen:
        result = yield
    known = [each for each in seen.functions if allowed.function in (None, each.name)]
    if not known:
        what = allowed.function or "no function of jax.jit or pmap"
        why = "\n".join([f"nothing to check: {what} was called in the test", *seen.skipped])
        raise budget.BudgetExceeded(why)
    if seen.skipped:
        raise budget.BudgetExceeded("\n".join(["not audited:", *seen.skipped]))
    budget.check(allowed, tuple(known))
    return result


@pytest.fixture
def pmapx_budget() -> Callable[..., Any]:
    """Checks what a function costs: ``pmapx_budget(f, *args, collectives={"all-reduce": 1})``."""

    def check(f: Callable[..., Any], *args: Any, **options: Any) -> Any:
        from pmapx._src.audit import examine
        from pmapx._src.testing import asserts, budget

        limits = [field.name for field in dataclasses.fields(budget.Budget)]
        allowed = budget.Budget.of({k: options.pop(k) for k in limits if k in options})
        report = examine.report_on(f, args, options, allowed.topology)
        # The audit compiles by itself; how often a loop does is found by running one.
        budget.check(dataclasses.replace(allowed, compiles=None), report.functions)
        if allowed.compiles is not None:
            asserts.assert_compiles_once(f, *args, **options)
        return report.functions[0]

    return check
