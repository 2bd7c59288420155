"""``host_local_shard_map``: one function that converts host-local arrays for many maps.

For maps of a multi-process program that are given arrays alone, in the place of what their calls
would convert (``process_calls``), where a module has that function (``write/common_functions``).
"""

from __future__ import annotations

from collections.abc import Sequence

from pmapx._src.codemod.decide import fields
from pmapx._src.codemod.decide.map_calls import map_calls
from pmapx._src.codemod.forms import process_calls
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.editor import Editor

NAME = "host_local_shard_map"
# With fewer maps, each converts by itself; with fewer meshes, each place makes its own.
FEWEST = 3


def sharing(uses: Sequence[Use]) -> list[Use]:
    """Returns the uses that one function can convert for, none of which it converts for yet."""
    for use in uses:
        use.conversion = ""
    return [use for use in uses if _can_share(use)]


def _can_share(use: Use) -> bool:
    """Returns whether its arguments are all arrays and its replicated results stay global."""
    if use.site.kind not in ("call", "wrapper") or not process_calls.is_converted(use):
        return False
    # A variable, or the cached function of a module that files share.
    is_named = len(use.mesh) == 1 and use.mesh[0].removesuffix("()").isidentifier()
    if not is_named or use.is_lazy or use.is_made_again or use.is_called_by_keyword:
        return False
    if fields.of_arguments(use.known_layout.in_axes):  # Its specs are made when it is traced.
        return False
    # Calls in other files convert, unless all are converted here.
    others = (module for module, _ in map_calls(use.module, use.site) if module is not use.module)
    if any(others) and not process_calls.is_at_site(use):
        return False
    axes = use.known_layout.out_axes
    has_replicated = None in (axes if isinstance(axes, tuple) else (axes,))
    return bool(_specs(use)) and (process_calls.keeps_state(use) or not has_replicated)


def _specs(use: Use) -> str:
    """Returns the specs of the arguments, empty if some of them are not converted."""
    layout = use.known_layout
    if use.names is None or layout.is_leading:
        return f"jax.P({use.axis})" if layout.is_leading else ""
    specs = []
    for position in range(len(use.names)):
        spec = process_calls.spec_of(use, position)
        is_number = spec is None and process_calls.may_be_number(use, position)
        if position in layout.static or is_number:
            return ""
        # Arrays that are global already are left as they are.
        specs.append(spec or "jax.P()")
    if not specs:
        return ""
    return specs[0] if len(set(specs)) == 1 else f"({', '.join(specs)})"


def options(use: Use, editor: Editor, indent: str) -> list[str]:
    """Returns the mesh and specs that the function which converts for it is given."""
    inputs, outputs = _specs(use), use.known_layout.out_specs(use.axis)
    return [
        f"mesh={use.near_mesh or use.mesh[0]}",
        f"in_specs={process_calls.fitting(inputs, editor, len(indent) + 9)}",
        f"out_specs={process_calls.fitting(outputs, editor, len(indent) + 10)}",
    ]
