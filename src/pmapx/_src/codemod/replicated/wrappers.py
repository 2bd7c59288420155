"""A user's own function around pmap: what its users can hand through it to the pmap.

``def my_pmap(f, **kw): return jax.pmap(f, axis_name="batch", **kw)`` hands on every option. One
that takes no options gets parameters for those that its users need.
"""

from __future__ import annotations

import ast
import dataclasses

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import is_decorator
from pmapx._src.analysis.syntax import defaults, positional

OPTIONS = "it is mapped through a wrapper that does not forward its options unchanged"
GIVES = "it is mapped through a wrapper that sets {} itself"
BY_POSITION = "{} is passed by position to the wrapper that maps it"
# What stands for an option that a user of the wrapper does not give.
DEFAULTS = {"in_axes": "0", "out_axes": "0", "axis_size": "None"}


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
