"""Two towers and a contrastive loss over the examples of all devices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils
from flax import linen as nn
from flax.training import train_state
from flax.training.common_utils import shard, shard_prng_key


class Tower(nn.Module):
    @nn.compact
    def __call__(self, x):
        z = nn.Dense(4)(nn.relu(nn.Dense(8)(x)))
        return z / jnp.linalg.norm(z, axis=-1, keepdims=True)


class Towers(nn.Module):
    def setup(self):
        self.image, self.text = Tower(), Tower()
        self.temperature = self.param("temperature", nn.initializers.constant(1.0), ())

    def __call__(self, image, text):
        return self.image(image), self.text(text), jnp.exp(self.temperature)


def gather_others(x):
    """Everyone's features, mine in the graph and the others' as constants."""
    everyone = jax.lax.all_gather(x, "devices")
    index = jax.lax.axis_index("devices")
    return jax.lax.stop_gradient(everyone).at[index].set(x).reshape(-1, x.shape[-1])


def train_step(state, batch, rng):
    noise = 0.05 * jax.random.normal(rng, batch["image"].shape)

    def loss_fn(params):
        image, text, scale = state.apply_fn(
            {"params": params}, batch["image"] + noise, batch["text"]
        )
        logits = scale * image @ gather_others(text).T
        labels = jnp.arange(image.shape[0]) + image.shape[0] * jax.lax.axis_index("devices")
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    state = state.apply_gradients(grads=jax.lax.pmean(grads, "devices"))
    return state, jax.lax.pmean({"loss": loss}, "devices")


def main():
    model = Towers()
    params = model.init(jax.random.PRNGKey(0), jnp.ones((1, 5)), jnp.ones((1, 3)))["params"]
    state = train_state.TrainState.create(
        apply_fn=model.apply, params=params, tx=optax.adam(0.01)
    ).replace()
    state = jax_utils.replicate(state)
    p_step = jax.pmap(train_step, "devices", donate_argnums=(0,))
    data = np.random.RandomState(0)
    mixing = data.normal(size=(3, 5))
    rng = jax.random.PRNGKey(1)
    losses = []
    for _ in range(4):
        text = data.normal(size=(16, 3))
        batch = {"image": (text @ mixing).astype(np.float32), "text": text.astype(np.float32)}
        rng, step_rng = jax.random.split(rng)
        state, metrics = p_step(state, shard(batch), shard_prng_key(step_rng))
        losses.append(float(jax_utils.unreplicate(metrics)["loss"]))
    print("losses", losses)
    return {"losses": losses, "params": jax.device_get(jax_utils.unreplicate(state.params))}


if __name__ == "__main__":
    main()
