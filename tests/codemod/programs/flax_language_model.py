"""A small transformer with dropout: keys split per device, batches prefetched to the devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils
from flax import linen as nn
from flax.training import common_utils, train_state

VOCAB, LENGTH = 11, 6


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, tokens, deterministic):
        x = nn.Embed(VOCAB, 8)(tokens)
        x = x + self.param("position", nn.initializers.normal(0.02), (LENGTH, 8))
        mask = nn.make_causal_mask(tokens)
        y = nn.LayerNorm()(x)
        y = nn.MultiHeadDotProductAttention(
            num_heads=2, dropout_rate=0.1, deterministic=deterministic
        )(y, y, mask=mask)
        x = x + nn.Dropout(0.1)(y, deterministic=deterministic)
        x = x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))
        return nn.Dense(VOCAB)(x)


def shifted(tokens):
    return jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1]


def train_step(state, batch, dropout_rng, weight_decay):
    dropout_rng = jax.random.fold_in(dropout_rng, state.step)
    weights = jnp.where(batch["tokens"] > 0, 1, 0).astype(jnp.float32)

    def loss_fn(params):
        logits = state.apply_fn(
            {"params": params},
            shifted(batch["tokens"]),
            deterministic=False,
            rngs={"dropout": dropout_rng},
        )
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"])
        return (loss * weights).sum() / weights.sum()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    grads = jax.lax.pmean(grads, "batch")
    grads = jax.tree_util.tree_map(lambda g, p: g + weight_decay * p, grads, state.params)
    new_state = state.apply_gradients(grads=grads)
    return new_state, {"loss": jax.lax.pmean(loss, "batch")}


def eval_step(params, batch, model):
    logits = model.apply({"params": params}, shifted(batch["tokens"]), deterministic=True)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"])
    return jax.lax.psum({"loss": loss.sum(), "denominator": loss.size}, axis_name="batch")


def batches(seed, count):
    rng = np.random.RandomState(seed)
    for _ in range(count):
        start = rng.randint(1, VOCAB, size=(16, 1))
        tokens = (start + np.arange(LENGTH)) % VOCAB
        yield common_utils.shard({"tokens": tokens})


def main():
    model = Transformer()
    rng, init_rng = jax.random.split(jax.random.PRNGKey(0))
    params = model.init(init_rng, jnp.zeros((1, LENGTH), jnp.int32), deterministic=True)["params"]
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(3e-3))
    state = jax_utils.replicate(state)
    dropout_rngs = common_utils.shard_prng_key(rng)
    p_train_step = jax.pmap(
        functools.partial(train_step, weight_decay=1e-4), axis_name="batch", donate_argnums=(0,)
    )
    p_eval_step = jax.pmap(functools.partial(eval_step, model=model), axis_name="batch")
    metrics_all = []
    for batch in jax_utils.prefetch_to_device(batches(0, 4), 2):
        state, metrics = p_train_step(state, batch, dropout_rngs)
        metrics_all.append(metrics)
    losses = common_utils.get_metrics(metrics_all)["loss"]
    sums = [jax_utils.unreplicate(p_eval_step(state.params, b)) for b in batches(1, 2)]
    total = jax.tree_util.tree_map(lambda *xs: float(sum(xs)), *sums)
    perplexity = np.exp(total["loss"] / total["denominator"])
    print("losses", losses, "perplexity", perplexity)
    return {"losses": losses, "total": total}


if __name__ == "__main__":
    main()
