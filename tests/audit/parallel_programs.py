"""Programs in the styles of large-scale training, each with what an audit must find, by hand.

Everything is reasoned from the text of the program, for 8 devices, never copied from a run. A
program returns a mapped function and its arguments; values are such that no two shards of a batch
are equal by chance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmapx

N, WIDTH, HIDDEN, BATCH = 8, 64, 128, 4
FLOAT = 4


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, and what is expected of it.

    Attributes:
      make: returns the function and its arguments.
      sent: by kind of collective, the payload of a device in bytes (times its executions).
      grows: the shapes of the arguments that are larger on 16 devices, by path.
      equal: the outputs that are equal on all devices, by path; all others vary.
      codes: the findings that must be there.
      absent: findings that must not be there.
    """

    make: Callable[[], tuple[Any, tuple[Any, ...]]]
    sent: dict[str, int]
    grows: dict[str, tuple[int, ...]]
    equal: frozenset[str] = frozenset()
    codes: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()


def mesh(*sizes: int, names: tuple[str, ...] = ("data",)) -> Mesh:
    return Mesh(np.array(jax.devices()[:N]).reshape(sizes or (N,)), names)


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def placed(x: Any, spec: P, over: Mesh | None = None) -> jax.Array:
    return jax.device_put(x, NamedSharding(over or mesh(), spec))


def mapped(body: Any, in_specs: Any, out_specs: Any, over: Mesh | None = None, **jit: Any) -> Any:
    return jax.jit(
        jax.shard_map(
            body, mesh=over or mesh(), in_specs=in_specs, out_specs=out_specs, check_vma=False
        ),
        **jit,
    )


def loss_of(weights: Any, x: jax.Array) -> jax.Array:
    return ((jax.nn.relu(x @ weights["up"]) @ weights["down"] - x) ** 2).mean()


def weights() -> dict[str, Any]:
    return {"up": random(WIDTH, HIDDEN), "down": random(HIDDEN, WIDTH)}


WEIGHT_BYTES = 2 * WIDTH * HIDDEN * FLOAT


def fsdp_by_shard_map() -> Any:
    """Parameters and momentum are sharded; each layer is gathered, its gradient scattered."""

    def step(state, x):
        whole = jax.tree.map(lambda w: lax.all_gather(w, "data", tiled=True), state["params"])
        loss, grads = jax.value_and_grad(loss_of)(whole, x)
        grads = jax.tree.map(
            lambda g: lax.psum_scatter(g, "data", scatter_dimension=0, tiled=True) / N, grads
        )
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
        params = jax.tree.map(lambda w, m: w - 0.1 * m, state["params"], momentum)
        return {"params": params, "momentum": momentum}, lax.pmean(loss, "data")

    state = {"params": weights(), "momentum": jax.tree.map(np.zeros_like, weights())}
    step = mapped(step, (P("data"), P("data")), (P("data"), P()), donate_argnums=0)
    return step, (state, random(N * BATCH, WIDTH))


def fsdp_by_jit() -> Any:
    """The same, left to the compiler: only the arguments are sharded."""

    def step(params, x):
        loss, grads = jax.value_and_grad(loss_of)(params, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), loss

    params = jax.tree.map(lambda w: placed(w, P("data")), weights())
    return jax.jit(step), (params, placed(random(N * BATCH, WIDTH), P("data")))


def zero_1() -> Any:
    """Parameters are replicated; the optimizer's state is sharded over the devices."""

    def step(params, momentum, x):
        grad = jax.grad(lambda w: ((x @ w) ** 2).mean())(params)
        own = lax.psum_scatter(grad, "data", scatter_dimension=0, tiled=True) / N
        momentum = 0.9 * momentum + own
        return params - 0.1 * lax.all_gather(momentum, "data", tiled=True), momentum

    step = mapped(step, (P(), P("data"), P("data")), (P(), P("data")), donate_argnums=(0, 1))
    zeros = np.zeros((WIDTH, HIDDEN), np.float32)
    return step, (random(WIDTH, HIDDEN), zeros, random(N * BATCH, WIDTH))


def tensor_parallel() -> Any:
    """The hidden dimension is sharded; the partial products are summed once."""

    def forward(up, down, x):
        return lax.psum(jax.nn.relu(x @ up) @ down, "model")

    over = mesh(names=("model",))
    specs = (P(None, "model"), P("model"), P())
    arguments = random(WIDTH, HIDDEN), random(HIDDEN, WIDTH), random(BATCH, WIDTH)
    return mapped(forward, specs, P(), over), arguments


def pipeline() -> Any:
    """A stage on each device; activations go to the next one, 4 microbatches in 11 ticks."""

    def forward(stage, x):
        def tick(carry, t):
            here = jnp.where(lax.axis_index("data") == 0, x[jnp.minimum(t, 3)], carry)
            out = jnp.tanh(here @ stage[0])
            return lax.ppermute(out, "data", [(i, i + 1) for i in range(N - 1)]), out

        return lax.scan(tick, jnp.zeros_like(x[0]), jnp.arange(3 + N))[1]

    step = mapped(forward, (P("data"), P()), P(None, "data"))
    return step, (random(N, WIDTH, WIDTH), random(4, BATCH, WIDTH))


def experts() -> Any:
    """Tokens go to the devices of their experts and back."""

    def layer(expert, x):
        sent = lax.all_to_all(x.reshape(lax.axis_size("data"), -1, WIDTH), "data", 0, 0, tiled=True)
        done = jax.nn.relu(sent @ expert[0])
        return lax.all_to_all(done, "data", 0, 0, tiled=True).reshape(x.shape)

    step = mapped(layer, (P("data"), P("data")), P("data"))
    return step, (random(N, WIDTH, WIDTH), random(N * N * BATCH, WIDTH))


def accumulation() -> Any:
    """Gradients of 4 microbatches are added in a scan, and averaged once after it."""

    def step(params, x):
        def micro(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(loss_of)(params, x)), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        grads = lax.pmean(lax.scan(micro, zeros, x)[0], "i")
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)

    step = pmapx.pmap(step, "i", in_axes=(None, 0), out_axes=None)
    return step, (weights(), random(N, 4, BATCH, WIDTH))


def _batch_norm(is_synced: bool) -> Any:
    def step(state, x):
        mean = lax.pmean(x.mean(0), "i") if is_synced else x.mean(0)
        grad = lax.pmean(jax.grad(lambda w: (((x - mean) @ w) ** 2).mean())(state["w"]), "i")
        return {"w": state["w"] - 0.1 * grad, "mean": 0.9 * state["mean"] + 0.1 * mean}

    state = {"w": random(WIDTH, 8), "mean": np.zeros(WIDTH, np.float32)}
    # A batch of zeros: what differs must be found without its values.
    return pmapx.pmap(step, "i"), (pmapx.replicate(state), np.zeros((N, BATCH, WIDTH), np.float32))


def frozen_parameters() -> Any:
    """A backbone that is only read, and a head that is trained."""

    def step(head, backbone, x):
        def loss(head):
            return ((jnp.tanh(x @ backbone) @ head) ** 2).mean()

        return head - 0.1 * lax.pmean(jax.grad(loss)(head), "i")

    step = pmapx.pmap(step, "i", donate_argnums=0)
    head, backbone = (pmapx.replicate(random(WIDTH, k)) for k in (8, WIDTH))
    return step, (head, backbone, random(N, BATCH, WIDTH))


def chains() -> Any:
    """Independent Markov chains: no communication, and more chains on more devices."""

    def step(keys, positions):
        def one(key, position):
            key, own = jax.random.split(key)
            return key, position + 0.1 * jax.random.normal(own, position.shape)

        return jax.vmap(one)(keys, positions)

    step = mapped(step, (P("data"), P("data")), P("data"))
    return step, (jax.random.split(jax.random.key(0), N * BATCH), random(N * BATCH, 3))


def reinforcement() -> Any:
    """Environments of each device; the policy is replicated and its gradient averaged."""

    def step(policy, environments, actions):
        environments = environments + actions
        grad = jax.grad(lambda w: ((environments @ w) ** 2).mean())(policy)
        return policy - 0.1 * lax.pmean(grad, "data"), environments

    step = mapped(step, (P(), P("data"), P("data")), (P(), P("data")))
    rows = N * BATCH
    return step, (random(WIDTH, 2), random(rows, WIDTH), random(rows, WIDTH) + 1)


CASES = {
    "fsdp by shard_map": Case(
        fsdp_by_shard_map,
        # Both layers are gathered, and the gradient of both is scattered; the loss is a number.
        {"all-gather": WEIGHT_BYTES, "reduce-scatter": WEIGHT_BYTES, "all-reduce": FLOAT},
        {"x": (16 * BATCH, WIDTH)},
        equal=frozenset({"out[1]"}),
        absent=frozenset({"PMX601", "PMX609"}),
    ),
    "zero 1": Case(
        zero_1,
        {"reduce-scatter": WIDTH * HIDDEN * FLOAT, "all-gather": WIDTH * HIDDEN * FLOAT},
        {"x": (16 * BATCH, WIDTH)},
        equal=frozenset({"out[0]"}),
        absent=frozenset({"PMX601"}),
    ),
    "tensor parallel": Case(
        tensor_parallel, {"all-reduce": BATCH * WIDTH * FLOAT}, {}, equal=frozenset({"out"})
    ),
    "pipeline": Case(
        pipeline,
        {"collective-permute": (3 + N) * BATCH * WIDTH * FLOAT},
        {"stage": (16, WIDTH, WIDTH)},
    ),
    "experts": Case(
        experts,
        {"all-to-all": 2 * N * BATCH * WIDTH * FLOAT},
        {"expert": (16, WIDTH, WIDTH), "x": (2 * N * N * BATCH, WIDTH)},
    ),
    "accumulation": Case(
        accumulation,
        {"all-reduce": WEIGHT_BYTES},
        {"x": (16, 4, BATCH, WIDTH)},
        equal=frozenset({"out['up']", "out['down']"}),
    ),
    "batch norm synced": Case(
        lambda: _batch_norm(True),
        {"all-reduce": WIDTH * FLOAT + WIDTH * 8 * FLOAT},
        {
            "state['w']": (16, WIDTH, 8),
            "state['mean']": (16, WIDTH),
            "x": (16, BATCH, WIDTH),
        },
        equal=frozenset({"out['w']", "out['mean']"}),
        codes=frozenset({"PMX601"}),
        absent=frozenset({"PMX609"}),
    ),
    "batch norm not synced": Case(
        lambda: _batch_norm(False),
        {"all-reduce": WIDTH * 8 * FLOAT},
        {
            "state['w']": (16, WIDTH, 8),
            "state['mean']": (16, WIDTH),
            "x": (16, BATCH, WIDTH),
        },
        equal=frozenset({"out['w']"}),
        codes=frozenset({"PMX609"}),
    ),
    "frozen parameters": Case(
        frozen_parameters,
        {"all-reduce": WIDTH * 8 * FLOAT},
        {
            "head": (16, WIDTH, 8),
            "backbone": (16, WIDTH, WIDTH),
            "x": (16, BATCH, WIDTH),
        },
        equal=frozenset({"out"}),
        codes=frozenset({"PMX601"}),
    ),
    "chains": Case(
        chains,
        {},
        {"keys": (16 * BATCH,), "positions": (16 * BATCH, 3)},
        absent=frozenset({"PMX601", "PMX609"}),
    ),
    "reinforcement": Case(
        reinforcement,
        {"all-reduce": WIDTH * 2 * FLOAT},
        {"environments": (16 * BATCH, WIDTH), "actions": (16 * BATCH, WIDTH)},
        equal=frozenset({"out[0]"}),
        absent=frozenset({"PMX609"}),
    ),
    "fsdp by jit": Case(
        fsdp_by_jit,
        # How the compiler communicates is its own choice: see the test of it.
        {},
        {"x": (16 * BATCH, WIDTH)},
    ),
}
