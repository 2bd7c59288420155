"""What each process of a program has for itself: its index, its devices, its clock and chance."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from pmapx._src.analysis.definitions import Step
from pmapx._src.analysis.module import Module
from pmapx._src.codemod.decide.copies import names_called

# Clocks that only measure are read where nothing is replicated.
_OWN = frozenset(
    {
        "jax.process_index", "jax.host_id", "os.getpid", "os.urandom", "platform.node",
        "socket.gethostname", "uuid.uuid1", "uuid.uuid4", "time.time", "time.time_ns",
    }
)  # fmt: skip
_GENERATORS = frozenset({"numpy.random.default_rng", "numpy.random.RandomState", "random.Random"})
_SEEDS = frozenset({"numpy.random.seed", "random.seed"})
_VARIABLES = frozenset({"os.getenv", "os.environ.get"})
_RANK = re.compile(r"RANK|PROC(?:ESS)?_?ID|(?:NODE|TASK|WORKER|HOST)_?(?:ID|INDEX|NAME)", re.I)
_OF_DEVICE = frozenset({"id", "process_index", "local_hardware_id"})


def is_own(
    module: Module, node: ast.expr, path: Sequence[Step] | None, is_seeded: Callable[[], bool]
) -> bool:
    """Returns whether an expression itself is something that each process has its own of.

    That is a part of it, by the path to it; with None, any part is meant.
    """
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
        return bool(_RANK.search(ast.unparse(node.slice)))
    called = names_called(module, node)
    if "jax.local_devices" in called:
        return path is None or not _OF_DEVICE.isdisjoint(path)
    if called & _VARIABLES:
        return any(bool(_RANK.search(ast.unparse(arg))) for arg in node.args)  # type: ignore[attr-defined]
    if called & _GENERATORS:
        return not node.args and not node.keywords  # type: ignore[attr-defined]
    if any(re.match(r"(?:numpy\.)?random\.[a-z]", name) for name in called - _SEEDS):
        return not is_seeded()
    is_index = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "process_index"
    return bool(called & _OWN) or is_index


def seeds(modules: Iterable[Module]) -> Iterator[tuple[Module, ast.expr]]:
    """Gives the seeds of the generators that all modules share."""
    for module in modules:
        for call in module.facts.calls.values():
            if call.names & _SEEDS and isinstance(call.node, ast.Call) and call.node.args:
                yield module, call.node.args[0]
