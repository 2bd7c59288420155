"""``host_local_shard_map``: one function that converts host-local arrays for many maps.

For maps of a multi-process program whose arguments and results are all converted, as by the calls
of ``process_calls``, where a module has that function (``write/common_functions``).
"""

from __future__ import annotations

from pmapx._src.codemod.decide.map_calls import map_calls
from pmapx._src.codemod.forms import process_calls
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.editor import Editor


def can_share(use: Use) -> bool:
    """Returns whether all its arguments and results are converted, with a mesh of a name there."""
    use.conversion = ""
    if use.site.kind not in ("call", "wrapper") or not process_calls.is_converted(use):
        return False
    is_named = len(use.mesh) == 1 and use.mesh[0].isidentifier()
    if not is_named or use.is_lazy or use.is_made_again or use.is_called_by_keyword:
        return False
    # Calls in other files convert, unless all are converted here.
    others = (module for module, _ in map_calls(use.module, use.site) if module is not use.module)
    if any(others) and not process_calls.is_at_site(use):
        return False
    return process_calls.results_are_local(use) and bool(_specs(use))


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
    return specs[0] if len(set(specs)) == 1 else f"({', '.join(specs)})"


def options(use: Use, editor: Editor, indent: str) -> list[str]:
    """Returns the mesh and specs that the function which converts for it is given."""
    inputs, outputs = _specs(use), use.known_layout.out_specs(use.axis)
    return [
        f"mesh={use.near_mesh or use.mesh[0]}",
        f"in_specs={process_calls.fitting(inputs, editor, len(indent) + 9)}",
        f"out_specs={process_calls.fitting(outputs, editor, len(indent) + 10)}",
    ]
