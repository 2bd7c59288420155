"""Functions around a pmap: a user's own, and Flax's ``pad_shard_unpad``.

``def my_pmap(f, **kw): return jax.pmap(f, axis_name="batch", **kw)`` hands on every option. One
that takes no options gets parameters for those that its users need. What ``pad_shard_unpad(g)``
returns hands its static arguments, the first by default, to ``g`` as they are.
"""

from __future__ import annotations

import ast
import dataclasses
from typing import TYPE_CHECKING

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import is_decorator
from pmapx._src.analysis.syntax import defaults, positional
from pmapx._src.analysis.values import Mapped, Result, integers
from pmapx._src.codemod.replicated.groups import OTHER, Position

if TYPE_CHECKING:
    from pmapx._src.codemod.replicated.stacked_calls import StackedCalls

OPTIONS = "it is mapped through a wrapper that does not forward its options unchanged"
GIVES = "it is mapped through a wrapper that sets {} itself"
BY_POSITION = "{} is passed by position to the wrapper that maps it"
# What stands for an option that a user of the wrapper does not give.
DEFAULTS = {"in_axes": "0", "out_axes": "0", "axis_size": "None"}
_PADDING = "flax.jax_utils.pad_shard_unpad"
_PADDED = "pad_shard_unpad takes the shards of it"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Wrapper:
    """A function that maps its own argument; ``call`` is the pmap in it."""

    module: Module
    definition: ast.FunctionDef | ast.Lambda
    call: ast.Call

    def obstacle(self, use: ast.Call) -> str:
        """Returns why a use of it cannot be given options, if it cannot."""
        unpacked = [keyword for keyword in self.call.keywords if keyword.arg is None]
        if unpacked and not self._hands_on():
            return OPTIONS
        if self.definition.args.kwarg is not None and not unpacked:
            return OPTIONS
        names = positional(self.definition.args)
        for name in DEFAULTS:
            given = next((k.value for k in self.call.keywords if k.arg == name), None)
            if given is not None and not (
                isinstance(given, ast.Name) and given.id == name and name in self._parameters()
            ):
                return GIVES.format(name)
            if given is None and name in self._parameters():
                return OPTIONS
            if name in names[: len(use.args)]:
                return BY_POSITION.format(name)
        return ""

    def lacks(self, name: str) -> bool:
        """Returns whether an option needs a parameter of its own."""
        return not self._hands_on() and name not in self._parameters()

    def _parameters(self) -> set[str]:
        return set(defaults(self.definition.args))

    def _hands_on(self) -> bool:
        """Returns whether its ``**options`` go to pmap, and nowhere else."""
        options = self.definition.args.kwarg
        unpacked = [k.value for k in self.call.keywords if k.arg is None]
        if options is None or len(unpacked) != 1:
            return False
        named = [
            part
            for part in ast.walk(self.definition)
            if isinstance(part, ast.Name) and part.id == options.arg
        ]
        return named == unpacked


def wrapper(module: Module, call: ast.AST) -> Wrapper | None:
    """Returns the function that maps its own argument by this pmap, if that is so."""
    if not isinstance(call, ast.Call) or not call.args or not isinstance(call.args[0], ast.Name):
        return None
    definition = mapped_parameter_of(module, call, call.args[0].id)
    if isinstance(definition, (ast.FunctionDef, ast.Lambda)):
        return Wrapper(module, definition, call)
    return None


def mapped_parameter_of(module: Module, node: ast.AST, name: str) -> ast.AST | None:
    """Returns the function around a node whose parameter a name is."""
    if is_decorator(module.parent(node), node):
        return None
    for function in module.functions_around(node):
        arguments = getattr(function, "args", None)
        if arguments is not None and any(
            isinstance(part, ast.arg) and part.arg == name for part in ast.walk(arguments)
        ):
            return function
    return None


def is_padding(module: Module, call: ast.AST) -> bool:
    """Tells whether a call is ``pad_shard_unpad(g, ...)``."""
    made = module.facts.calls.get(call)
    return made is not None and made.names == {_PADDING}


def is_padded_call(flow: StackedCalls, module: Module, node: ast.Call) -> bool:
    """Reads ``pad_shard_unpad(g)(params, batch)``; tells whether it is such a call.

    Its static arguments are those of ``g``; of the others and of the results, ``g`` has shards.
    """
    if module.facts.callees.get(node) != frozenset({Result(_PADDING)}):
        return False
    found = flow.definitions_of(module, node.func) if isinstance(node.func, ast.Name) else ()
    made = [each.source for each in found if not each.steps] or [node.func]
    padding = module.facts.calls.get(made[0]) if len(made) == 1 else None  # type: ignore[arg-type]
    others = [keyword for keyword in node.keywords if keyword.arg != "min_device_batch"]
    is_plain = not others and not any(isinstance(arg, ast.Starred) for arg in node.args)
    if padding is None or len(padding.args) != 1 or not is_plain:
        return False
    given = padding.keywords
    static = integers(given["static_argnums"]) if "static_argnums" in given else (0,)
    sites = [flow.maps.get(fact) for fact in padding.args[0] if isinstance(fact, Mapped)]
    if not static or not sites or len(sites) < len(padding.args[0]) or "static_argnames" in given:
        return False
    flow.resolved.add(node.func)
    held = [flow.value(module, arg) for arg in node.args]
    for arg, each in zip(node.args, held, strict=True):
        if node.args.index(arg) not in static:
            flow.escape(each, module, arg, _PADDED)
    for site in sites:
        if site is None:
            return False
        site.counts.add(len(node.args))
        for index, arg in enumerate(node.args):
            flow.argument(module, site, index, held[index] if index in static else OTHER, arg)
        for index in range(-1, max(site.arity or 0, 0)):
            position = Position.of(site.made_at, index, is_output=True)
            element = flow.graph.element(position, position)
            element.reasons.setdefault(module.place(node), _PADDED)
    return True
