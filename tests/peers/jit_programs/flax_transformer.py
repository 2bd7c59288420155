# jit: train_step
# Flax: attention, gradients clipped after the mean and accumulated by optax, an EMA.
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils
from flax.training import common_utils, train_state


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x), mask=mask)
        return x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))


class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(11, 16)(tokens)
        for _ in range(2):
            x = Block()(x)
        return nn.Dense(11)(nn.LayerNorm()(x))


def train_step(state, ema, tokens):
    def loss_fn(params):
        logits = state.apply_fn({"params": params}, tokens[:, :-1])
        targets = common_utils.onehot(tokens[:, 1:], 11)
        return optax.softmax_cross_entropy(logits, targets).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    grads = jax.lax.pmean(grads, "batch")
    state = state.apply_gradients(grads=grads)
    ema = jax.tree.map(lambda e, p: 0.9 * e + 0.1 * p, ema, state.params)
    return state, ema, jax.lax.pmean({"loss": loss}, axis_name="batch")


def main():
    rng = np.random.default_rng(0)
    model = Model()
    params = model.init(jax.random.key(0), jnp.zeros((1, 5), jnp.int32))["params"]
    tx = optax.MultiSteps(
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), every_k_schedule=2
    )
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    ema = jax_utils.replicate(params)
    state = jax_utils.replicate(state)
    p_train_step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0, 1))
    for _ in range(4):
        tokens = common_utils.shard(rng.integers(0, 11, size=(16, 6)))
        state, ema, metrics = p_train_step(state, ema, tokens)
        print("loss", float(jax_utils.unreplicate(metrics)["loss"]))


if __name__ == "__main__":
    main()
