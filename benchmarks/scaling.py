"""A training step of a small transformer, compiled ahead of time for 8 to 4,096 chips.

original   pmap over a state with a leading device axis, as in pmap codebases; reading it takes x[0]
           of each leaf, which is a program of its own (indexed).
migrated   shard_map over a replicated state, P(), as `pmapx migrate --style replicated` writes it.
fsdp       shard_map over a state that is sharded over all chips: each layer is all-gathered where
           it is used, and its gradient reduce-scattered.

Nothing runs: each program is compiled for the topology and analyzed. Bytes are per chip.
"""

import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from turns import markdown, parser_of

import pmapx
from pmapx._src.audit.report.scaling_table import Point, growth_of
from pmapx._src.audit.topology.compile_for import compile_for, point_of
from pmapx._src.audit.topology.names import topology_of
from pmapx._src.pages.formatting import in_bytes

COUNTS = (8, 64, 256, 1024, 4096)
LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 4, 256, 4, 4096, 128, 8


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="numbers of chips")
    parser.add_argument("--family", default="v5p", help="kind of chips (default: v5p)")
    parser.add_argument("--json", type=Path, help="also write them here, and a table beside it")
    parser.add_argument("--styles", nargs="+", choices=STYLES, help="the others are read back")
    options = parser.parse_args()
    points: dict[str, list[Point]] = {style: [] for style in STYLES}
    if options.styles:
        known = json.loads(options.json.read_text())["points"]
        points |= {s: [Point(**p) for p in known[s]] for s in STYLES if s not in options.styles}
    for count in sorted(options.counts):
        topology = topology_of(count, options.family)
        for style, build in STYLES.items():
            if options.styles and style not in options.styles:
                continue
            print(f"compiling {style} for {topology}", file=sys.stderr, flush=True)
            points[style].append(point_of(compile_for(None, (), topology, build=build), topology))
        if options.json:  # After each: the largest take long.
            write(points, options.json)
    print("\n".join(table(points)))
    return 0


def write(points: dict[str, list[Point]], path: Path) -> None:
    figures = {
        "machine": described_compiler(),
        "date": f"{datetime.date.today()}",
        "points": {style: [vars(point) for point in found] for style, found in points.items()},
    }
    path.write_text(json.dumps(figures, indent=1) + "\n")
    path.with_suffix(".md").write_text("\n".join(table(points)) + "\n")


def table(points: dict[str, list[Point]]) -> list[str]:
    columns = (
        *(">chips", "topology", "style", ">collectives", ">sent", ">memory"),
        *(">to read the weights: sent", ">memory there", ">compile s"),
    )
    rows = []
    for first, second, third, read in zip(*points.values(), strict=False):
        reading = in_bytes(read.sent), in_bytes(read.outputs + read.temporaries)
        for style, point, to_read in (
            ("original", first, reading),
            ("migrated", second, ("0 B", "0 B")),
            ("fsdp", third, ("-", "-")),
        ):
            rows.append(
                (f"{point.devices:,}", point.topology, style, str(point.collectives),
                 in_bytes(point.sent), in_bytes(point.memory), *to_read,
                 f"{point.compile_seconds:.1f}")
            )  # fmt: skip
    lines = [*markdown(columns, rows), ""]
    for style, found in points.items():
        growing = "; ".join(map(str, growth_of(found))) or "nothing"
        lines.append(f"- *{style}*: grows with the number of chips: {growing}.")
    return [*lines, "", described()]


def described() -> str:
    return (
        f"{described_compiler()}, {datetime.date.today():%d %B %Y}; {parameter_count():,} "
        f"parameters in float32 with Adam, {BATCH} sequences of {LENGTH} tokens per chip."
    )


def described_compiler() -> str:
    from importlib.metadata import packages_distributions, version

    compiler = f", libtpu {version('libtpu')}" if "libtpu" in packages_distributions() else ""
    return f"pmapx {pmapx.__version__}, JAX {jax.__version__}{compiler}"


def weights() -> Any:
    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    return {
        "embedding": array(VOCABULARY, WIDTH),
        "layers": {
            "qkv": array(LAYERS, WIDTH, 3 * WIDTH),
            "out": array(LAYERS, WIDTH, WIDTH),
            "up": array(LAYERS, WIDTH, 4 * WIDTH),
            "down": array(LAYERS, 4 * WIDTH, WIDTH),
        },
    }


def parameter_count() -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(weights()))


def state() -> Any:
    count = jax.ShapeDtypeStruct((), jnp.int32)
    return {"weights": weights(), "mean": weights(), "square": weights(), "count": count}


def loss_of(weights: Any, tokens: jax.Array) -> jax.Array:
    def layer(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        x = x + attention(layer, normalized(x))
        return x + jax.nn.relu(normalized(x) @ layer["up"]) @ layer["down"], None

    x, _ = lax.scan(layer, weights["embedding"][tokens], weights["layers"])
    scores = jax.nn.log_softmax(normalized(x) @ weights["embedding"].T)[:, :-1]
    return -jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()


def normalized(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def attention(layer: Any, x: jax.Array) -> jax.Array:
    parts = (x @ layer["qkv"]).reshape(*x.shape[:2], 3, HEADS, WIDTH // HEADS)
    queries, keys, values = jnp.moveaxis(parts, 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / np.sqrt(WIDTH // HEADS)
    scores = jnp.where(np.tri(LENGTH, dtype=bool), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), values)
    return mixed.reshape(x.shape) @ layer["out"]


def step(state: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
    loss, gradients = jax.value_and_grad(loss_of)(state["weights"], tokens)
    gradients, loss = lax.pmean((gradients, loss), "batch")
    return adam(state, gradients), loss


def adam(state: Any, gradients: Any) -> Any:
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
    square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["square"], gradients)
    weights = jax.tree.map(
        lambda w, m, v: w - 1e-3 * m / (jnp.sqrt(v) + 1e-8), state["weights"], mean, square
    )
    return {"weights": weights, "mean": mean, "square": square, "count": state["count"] + 1}


def stacked(tree: Any, n: int) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((n, *x.shape), x.dtype), tree)


def original(devices: Any) -> tuple[Any, Any]:
    tokens = jax.ShapeDtypeStruct((len(devices), BATCH, LENGTH), jnp.int32)
    mapped = pmapx.pmap(step, "batch", devices=devices, donate_argnums=0)
    return mapped, (stacked(state(), len(devices)), tokens)


def migrated(devices: Any) -> tuple[Any, Any]:
    mesh = Mesh(np.array(devices), ("batch",))
    replicated, sharded = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P(), check_vma=False
    )
    placed = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated), state()
    )
    shape = (len(devices) * BATCH, LENGTH)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharded)
    return jax.jit(mapped, donate_argnums=0), (placed, tokens)


def gathered(layer: Any, shapes: Any) -> Any:
    """Gathers the parameters of a layer, which are flat and sharded."""
    return jax.tree.map(
        lambda shard, like: lax.all_gather(shard, "batch", tiled=True).reshape(like.shape),
        layer,
        shapes,
    )


def fsdp_step(state: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
    shapes = weights()
    one_layer = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), shapes["layers"])

    def loss_of_shards(shards: Any) -> jax.Array:
        @jax.checkpoint
        def layer(x: jax.Array, shards: Any) -> tuple[jax.Array, None]:
            layer = gathered(shards, one_layer)
            x = x + attention(layer, normalized(x))
            return x + jax.nn.relu(normalized(x) @ layer["up"]) @ layer["down"], None

        embedding = gathered(shards["embedding"], shapes["embedding"])
        x, _ = lax.scan(layer, embedding[tokens], shards["layers"])
        scores = jax.nn.log_softmax(normalized(x) @ embedding.T)[:, :-1]
        return -jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()

    loss, gradients = jax.value_and_grad(loss_of_shards)(state["weights"])
    gradients = jax.tree.map(lambda g: g / lax.axis_size("batch"), gradients)
    return adam(state, gradients), lax.pmean(loss, "batch")


def fsdp(devices: Any) -> tuple[Any, Any]:
    mesh = Mesh(np.array(devices), ("batch",))

    def spec(path: Any, x: Any) -> P:
        names = [getattr(key, "key", None) for key in path]
        return P() if not x.shape else P(None, "batch") if "layers" in names else P("batch")

    def flat(path: Any, x: Any) -> jax.ShapeDtypeStruct:
        size = int(np.prod(x.shape[1:]))
        in_layers = "layers" in [getattr(key, "key", None) for key in path]
        shape = (x.shape[0], size) if in_layers else (x.shape[0] * size,) if x.shape else ()
        sharding = NamedSharding(mesh, spec(path, x))
        return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)

    specs = jax.tree_util.tree_map_with_path(spec, state())
    mapped = jax.shard_map(
        fsdp_step,
        mesh=mesh,
        in_specs=(specs, P("batch")),
        out_specs=(specs, P()),
        check_vma=False,
    )
    placed = jax.tree_util.tree_map_with_path(flat, state())
    sharded = NamedSharding(mesh, P("batch"))
    tokens = jax.ShapeDtypeStruct((len(devices) * BATCH, LENGTH), jnp.int32, sharding=sharded)
    return jax.jit(mapped, donate_argnums=0), (placed, tokens)


def indexed(devices: Any) -> tuple[Any, Any]:
    """The program of `jax.tree.map(lambda x: x[0], state)` with a stacked state in today's JAX."""
    mesh = Mesh(np.array(devices), ("batch",))
    sharded = NamedSharding(mesh, P("batch"))
    placed = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharded),
        stacked(state()["weights"], len(devices)),
    )
    return jax.jit(lambda tree: jax.tree.map(lambda x: x[0], tree)), (placed,)


STYLES = {"original": original, "migrated": migrated, "fsdp": fsdp, "indexed": indexed}


if __name__ == "__main__":
    sys.exit(main())
