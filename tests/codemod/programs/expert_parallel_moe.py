"""One expert a device: tokens are sent to their expert and back with all_to_all."""

import jax
import jax.numpy as jnp
import numpy as np

CAPACITY = 3


def dispatch_mask(expert_index, n_experts, capacity):
    """(tokens, experts, capacity): where each token goes; late ones are dropped."""
    one_hot = jax.nn.one_hot(expert_index, n_experts, dtype=jnp.int32)
    place = jnp.cumsum(one_hot, axis=0) * one_hot - 1
    slots = jax.nn.one_hot(place, capacity, dtype=jnp.float32)
    return slots * one_hot[..., None]


def moe_layer(router, expert, tokens):
    n_experts = jax.lax.psum(1, axis_name="expert")
    gates = jax.nn.softmax(tokens @ router)
    choice = jnp.argmax(gates, axis=-1)
    mask = dispatch_mask(choice, n_experts, CAPACITY)
    outgoing = jnp.einsum("td,tec->ecd", tokens, mask)
    incoming = jax.lax.all_to_all(outgoing, "expert", split_axis=0, concat_axis=0)
    hidden = jax.nn.relu(incoming @ expert["up"]) @ expert["down"]
    returned = jax.lax.all_to_all(hidden, "expert", split_axis=0, concat_axis=0)
    combine = mask * jnp.max(gates, axis=-1)[:, None, None]
    out = jnp.einsum("ecd,tec->td", returned, combine)
    load = jax.lax.psum(mask.sum((0, 2)), "expert")
    return out, load


def train_step(router, expert, tokens, targets):
    def loss_fn(router, expert):
        out, load = moe_layer(router, expert, tokens)
        return jnp.mean((tokens + out - targets) ** 2), load

    grad_fn = jax.value_and_grad(loss_fn, argnums=(0, 1), has_aux=True)
    (loss, load), (g_router, g_expert) = grad_fn(router, expert)
    # The router is everyone's, an expert is its own device's.
    g_router = jax.lax.pmean(g_router, "expert")
    router = router - 0.5 * g_router
    expert = jax.tree.map(lambda p, g: p - 0.5 * g, expert, g_expert)
    return router, expert, jax.lax.pmean(loss, "expert"), load


p_step = jax.pmap(train_step, "expert", donate_argnums=(0, 1))


def main():
    n, dim, hidden, n_tokens = jax.local_device_count(), 4, 8, 10
    rng = np.random.RandomState(0)
    router = rng.normal(size=(dim, n)).astype(np.float32)
    experts = {
        "up": rng.normal(size=(n, dim, hidden)).astype(np.float32) / 2,
        "down": rng.normal(size=(n, hidden, dim)).astype(np.float32) / 3,
    }
    router = jax.device_put_replicated(router, jax.local_devices())
    experts = jax.device_put_sharded(
        [{k: v[i] for k, v in experts.items()} for i in range(n)], jax.local_devices()
    )
    losses, loads = [], []
    for _ in range(3):
        tokens = rng.normal(size=(n, n_tokens, dim)).astype(np.float32)
        router, experts, loss, load = p_step(router, experts, tokens, np.tanh(tokens))
        losses.append(float(loss[0]))
        loads.append(np.asarray(load[0]))
    print("losses", losses)
    print("tokens by expert", loads[-1])
    return {"losses": losses, "loads": loads, "router": np.asarray(router[0])}


if __name__ == "__main__":
    main()
