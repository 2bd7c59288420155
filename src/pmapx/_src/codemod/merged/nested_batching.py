"""Pipelines that batch twice: by the examples of a device, and by the devices.

``for size in reversed(batch_dims): data = data.batch(size, drop_remainder=True)`` gives batches of
``(n, b, ...)`` for ``batch_dims = [n, b]``, and of ``(n * b, ...)`` for ``[n * b]``.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from pmapx._src.analysis.module import Module
from pmapx._src.codemod.decide.copies import names_called
from pmapx._src.codemod.replicated.groups import Change
from pmapx._src.source.rewriting.edits import between, ends, starts

if TYPE_CHECKING:
    from pmapx._src.codemod.merged.batch_flow import BatchFlow

# What takes the sizes as the keyword batch_dims, and batches by each.
_CREATE = frozenset({"clu.deterministic_data.create_dataset"})
_PRODUCTS = frozenset({"numpy.prod", "jax.numpy.prod", "math.prod"})
_PLAIN = (ast.Name, ast.Attribute, ast.Call, ast.Constant)
MOST_STEPS = 6
Sizes = list[tuple[Module, ast.List | ast.Tuple]]


def sizes(flow: BatchFlow, module: Module, node: ast.Call) -> Sizes | None:
    """Returns where the sizes are written by which a call batches for devices, if it does."""
    called = names_called(module, node)
    if called and called <= _CREATE:
        given = next((k.value for k in node.keywords if k.arg == "batch_dims"), None)
        return None if given is None else _written(flow, module, given, 0)
    loop = batching_loop(module, node)
    if loop is None:
        return None
    assert isinstance(loop.iter, ast.Call)
    return _written(flow, module, loop.iter.args[0], 0)


def batching_loop(module: Module, node: ast.Call) -> ast.For | None:
    """Returns the loop that a call of ``batch`` is all of."""
    assigned = module.parent(node)
    loop = module.parent(assigned)
    if not isinstance(loop, ast.For) or loop.body != [assigned] or loop.orelse:
        return None
    sizes = loop.iter
    is_call = isinstance(sizes, ast.Call) and getattr(sizes.func, "id", "") == "reversed"
    is_reversed = is_call and len(sizes.args) == 1  # type: ignore[attr-defined]
    function, target = node.func, loop.target
    if not is_reversed or not isinstance(function, ast.Attribute) or function.attr != "batch":
        return None
    size = node.args[0] if len(node.args) == 1 else None
    names = (getattr(each, "id", "") for each in (target, size))
    options = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
    is_same = len(set(names)) == 1 and isinstance(size, ast.Name)
    drops_remainder = options.get("drop_remainder") is True
    targets = assigned.targets if isinstance(assigned, ast.Assign) else []
    is_again = len(targets) == 1 and ast.unparse(targets[0]) == ast.unparse(function.value)
    return loop if is_same and drops_remainder and is_again else None


def change(module: Module, node: ast.List | ast.Tuple) -> Change:
    """Merges the first two sizes into one."""
    count, each = node.elts[:2]
    texts = [module.text(part) for part in (count, each)]
    text = f"{texts[0]} * {texts[1] if isinstance(each, _PLAIN) else f'({texts[1]})'}"
    last = ends(module.place(each))
    behind = module.source.line(last[0])[last[1] :].lstrip()
    if isinstance(node, ast.Tuple) and len(node.elts) == 2 and not behind.startswith(","):
        text += ","
    edit = between(starts(module.place(count)), last, text)
    return Change(module, "merge", node, node, edits=(edit,))


def _written(flow: BatchFlow, module: Module, node: ast.expr, steps: int) -> Sizes | None:
    if isinstance(node, (ast.List, ast.Tuple)):
        is_starred = any(isinstance(part, ast.Starred) for part in node.elts)
        is_split = len(node.elts) > 1 and flow.is_count(module, node.elts[0]) and not is_starred
        return [(module, node)] if is_split else None
    if not isinstance(node, ast.Name) or steps > MOST_STEPS:
        return None
    found: Sizes = []
    for each in flow.definitions_of(module, node):
        sources: list[tuple[Module, ast.expr]] = []
        if isinstance(each.node, ast.arg):
            function = each.module.parent(each.module.parent(each.node))
            sources = flow.passed.get((function, each.node.arg), [])
        elif each.source is not None and not each.steps:
            sources = [(each.module, each.source)]
        several = [_written(flow, home, source, steps + 1) for home, source in sources]
        if not several or None in several or not _is_only_for_batching(flow, each.module, node.id):
            return None
        found += [pair for part in several for pair in part or ()]
    return found or None


def _is_only_for_batching(flow: BatchFlow, module: Module, name: str) -> bool:
    """Returns whether all that a file does with sizes gives the same for their product."""
    passed = {arg for sent in flow.passed.values() for _, arg in sent}
    for part in module.nodes:
        if not isinstance(part, ast.Name) or part.id != name or not isinstance(part.ctx, ast.Load):
            continue
        parent = module.parent(part)
        is_option = isinstance(parent, ast.keyword) and parent.arg == "batch_dims"
        call = module.parent(parent) if is_option else parent
        called = names_called(module, call)
        is_reversed = isinstance(call, ast.Call) and getattr(call.func, "id", "") == "reversed"
        is_taken = bool(called) and called <= _PRODUCTS | (_CREATE if is_option else frozenset())
        if part not in passed and not is_reversed and not is_taken:
            return False
    return True
