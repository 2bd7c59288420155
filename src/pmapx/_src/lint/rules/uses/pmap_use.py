from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import Site, find_sites
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule

# Options of pmap that are options of jit.
_JIT = {"donate_argnums": "donate_argnums", "static_broadcasted_argnums": "static_argnums"}


class PmapUse(Rule):
    """``jax.pmap`` is used.

    **What.** Each use of ``jax.pmap``, under whatever name it was imported. The
    message shows what it becomes with ``shard_map``. A wrapper or a partial that is used all over
    a package is one finding: it is rewritten once, and the code that uses it does not change.

    **Why.** Since JAX 0.8 ``jax.pmap`` is itself ``jit`` of ``shard_map``, in maintenance, and
    differs from the original: it rejects inputs that are committed to other devices, does not
    nest, compiles again for an equivalent sharding under another name, and reading ``x[0]`` of its
    results is a collective. With ``shard_map``, the mesh and the specs are explicit, and yours to
    change.

    **Before**

    ```python
    import jax

    step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0,))
    ```

    **After**

    ```python
    import jax
    from jax.sharding import AxisType, PartitionSpec as P

    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))

    def one_device(state, batch):
        state, batch = jax.tree.map(lambda x: x[0], (state, batch))
        return jax.tree.map(lambda x: x[None], train_step(state, batch))

    step = jax.jit(
        jax.shard_map(
            one_device,
            mesh=mesh,
            in_specs=P("batch"),
            out_specs=P("batch"),
            check_vma=False,  # gradients are reduced by hand in the step
        ),
        donate_argnums=(0,),
    )
    ```

    **Safety.** The rewrite keeps shapes and values if the body drops the mapped axis and adds it
    again, which ``shard_map`` does not do by itself. Until then ``pmapx.pmap`` is a drop-in
    replacement with the original's behavior.

    **Guide.** "Rewriting ``pmap`` to ``jit(shard_map)``".
    """

    code = "PMX501"
    names = known_names.PMAP

    def check(self, module: Module) -> Iterator[Finding]:
        for site in find_sites(module):
            if site.kind != "value":  # Those are PMX505.
                yield self.finding(site.name, _message(site), hint=_becomes(site))


def _message(site: Site) -> str:
    what = f"`{_short(site.function)}`" if site.function else "a function"
    if site.kind == "wrapper":
        return (
            f"jax.pmap of {what}, which the caller of this function passes: "
            "rewrite this wrapper once; its callers do not change"
        )
    if site.kind == "partial":
        return "a partial of jax.pmap: rewrite it once; its uses do not change"
    if site.kind == "decorator":
        return f"{what} is mapped by the decorator jax.pmap"
    if site.is_called_at_once:
        return f"jax.pmap of {what} is created in each call, and has to look up its program again"
    return f"jax.pmap of {what}"


def _becomes(site: Site) -> str:
    if site.is_nested:
        return "pmapx migrate writes one shard_map over a mesh with two axes"
    axis = site.option("axis_name") or '"i"'
    in_specs = _specs(site.option("in_axes"), axis)
    out_specs = _specs(site.option("out_axes"), axis)
    jit = "".join(
        f", {new}={_short(argnums)}" for old, new in _JIT.items() if (argnums := site.option(old))
    )
    function = _short(site.function) if site.function else "f"
    devices = site.option("devices")
    mesh = f"a mesh over {_short(devices)}" if devices else "mesh"
    return (
        f"pmapx migrate writes jax.jit(jax.shard_map({function}, mesh={mesh}, in_specs={in_specs}, "
        f"out_specs={out_specs}, check_vma=False){jit}), with x[0] and x[None] in the function for "
        "values that keep their device axis"
    )


def _specs(axes: str | None, axis: str) -> str:
    """in_axes as the user wrote it, in terms of specs where it is a plain literal."""
    axis = _short(axis)
    if axes is None or axes == "0":
        return f"P({axis})"
    if axes == "None":
        return "P()"
    parts = axes.strip("()").split(",")
    if all(part.strip() in ("0", "None", "") for part in parts):
        words = [f"P({axis})" if part.strip() == "0" else "P()" for part in parts if part.strip()]
        return f"({', '.join(words)})"
    return f"<from {_short(axes)}>"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:37] + "..."
