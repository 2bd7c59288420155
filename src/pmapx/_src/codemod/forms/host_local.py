"""``host_local_shard_map``: one function that converts host-local arrays for many maps.

For maps of a multi-process program that are given arrays alone, in the place of what their calls
would convert (``process_calls``), where a module has that function (``write/common_functions``).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from pmapx._src.codemod.decide import fields
from pmapx._src.codemod.decide.map_calls import map_calls
from pmapx._src.codemod.forms import process_calls, shard_body
from pmapx._src.codemod.forms.given_numbers import is_always_number, is_number_unknown
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.editor import Editor, fitting

NAME = "host_local_shard_map"
# The same for a mesh that is not made at import, for numbers, and for results that are host-local.
LATER = "host_local_map"
# With fewer maps, each converts by itself; with fewer meshes, each place makes its own.
FEWEST = 3
# Of maps that need the longer function, where a decorator counts for two.
FEWEST_LATER = 5


def sharing(uses: Sequence[Use]) -> list[Use]:
    """Returns the uses that one function can convert for, none of which it converts for yet."""
    for use in uses:
        use.conversion = ""
    return [use for use in uses if _can_share(use)]


def weight(use: Use) -> int:
    """Returns for how many maps it counts: a decorator is long, and longer if it finds numbers."""
    return 1 + (use.site.kind == "decorator") * (1 + _may_be_given_numbers(use))


def needs_later(use: Use) -> bool:
    """Returns whether only the second function can convert for it."""
    return use.is_lazy or _is_local(use) or _may_be_given_numbers(use)


def _may_be_given_numbers(use: Use) -> bool:
    positions = range(len(use.names or ()))
    given = [at for at in positions if process_calls.spec_of(use, at) is not None]
    return any(is_number_unknown(use, at) for at in given)


def _is_local(use: Use) -> bool:
    """Returns whether its replicated results are host-local, as no call takes them again."""
    axes = use.known_layout.out_axes
    has_replicated = None in (axes if isinstance(axes, tuple) else (axes,))
    return has_replicated and not process_calls.keeps_state(use)


def _can_share(use: Use) -> bool:
    """Returns whether it is called by position, with a mesh that can be named, and converted."""
    if not process_calls.is_converted(use) or use.is_made_again or use.is_called_by_keyword:
        return False
    is_decorator = use.site.kind == "decorator"
    if use.site.kind not in ("call", "wrapper") and not (is_decorator and _is_partial(use)):
        return False
    # A variable, or the cached function of a module that files share.
    is_named = len(use.mesh) == 1 and use.mesh[0].removesuffix("()").isidentifier()
    is_of_all = use.is_axis_constant and not use.is_sized and not use.known_layout.devices
    if not (is_of_all if use.is_lazy else is_named):
        return False
    if fields.of_arguments(use.known_layout.in_axes):  # Its specs are made when it is traced.
        return False
    # Calls in other files convert, unless all are converted here.
    others = (module for module, _ in map_calls(use.module, use.site) if module is not use.module)
    return bool(_specs(use)) and (not any(others) or process_calls.is_at_site(use))


def _is_partial(use: Use) -> bool:
    """Returns whether a decorator has options, and a function below it that can be edited."""
    is_plain = shard_body.is_edited(use) or not shard_body.converts(use)
    return isinstance(use.expression, ast.Call) and is_plain and not use.is_method


def _specs(use: Use) -> str:
    """Returns the specs of the arguments, empty if some of them are not converted."""
    layout = use.known_layout
    if use.names is None or layout.is_leading:
        return f"jax.P({use.axis})" if layout.is_leading else ""
    specs = []
    for position in range(len(use.names)):
        spec = process_calls.spec_of(use, position)
        # One that is always a number is not converted where it is called.
        if position in layout.static or (spec is None and is_always_number(use, position)):
            return ""
        # Arrays that are global already are left as they are.
        specs.append(spec or "jax.P()")
    if not specs:
        return ""
    return specs[0] if len(set(specs)) == 1 else f"({', '.join(specs)})"


def options(use: Use, editor: Editor, indent: str) -> list[str]:
    """Returns the mesh and specs that the function which converts for it is given."""
    inputs, outputs = _specs(use), use.known_layout.out_specs(use.axis)
    mesh = f"mesh={use.near_mesh}" if use.near_mesh else use.mesh_text(editor, indent)
    if use.is_lazy:
        mesh = mesh.replace("mesh=", "mesh=lambda: ", 1)
    given = [
        mesh,
        f"in_specs={fitting(inputs, editor, len(indent) + 9)}",
        f"out_specs={fitting(outputs, editor, len(indent) + 10)}",
    ]
    return [*given, "keep_global=False"] if _is_local(use) else given
