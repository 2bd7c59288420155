# %% A variational autoencoder, cell by cell
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.jax_utils import replicate, unreplicate
from flax.training.common_utils import shard
from flax.training.train_state import TrainState


# %%
class VAE(nn.Module):
    latents: int = 2

    @nn.compact
    def __call__(self, x, z_rng):
        h = nn.relu(nn.Dense(10)(x))
        mean, logvar = nn.Dense(self.latents)(h), nn.Dense(self.latents)(h)
        z = mean + jnp.exp(0.5 * logvar) * jax.random.normal(z_rng, mean.shape)
        out = nn.Dense(x.shape[-1], name="decode")(nn.relu(nn.Dense(10)(z)))
        return out, mean, logvar


model = VAE()
key = jax.random.PRNGKey(0)
params = model.init(key, jnp.ones((1, 6)), key)["params"]
state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(5e-3))


# %%
def step(state, batch, z_rng):
    def loss_fn(params):
        out, mean, logvar = state.apply_fn({"params": params}, batch, z_rng)
        reconstruction = jnp.mean(jnp.sum((out - batch) ** 2, -1))
        kl = -0.5 * jnp.mean(jnp.sum(1 + logvar - mean**2 - jnp.exp(logvar), -1))
        return reconstruction + 0.1 * kl, (reconstruction, kl)

    (loss, (reconstruction, kl)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    metrics = {"loss": loss, "reconstruction": reconstruction, "kl": kl}
    grads, metrics = jax.lax.pmean((grads, metrics), "d")
    return state.apply_gradients(grads=grads), metrics


pstep = jax.pmap(step, "d")

# %% Train
state = replicate(state)
data = np.random.RandomState(0)
basis = data.normal(size=(2, 6))
history = []
for i in range(4):
    x = shard((data.normal(size=(32, 2)) @ basis).astype(np.float32))
    state, metrics = pstep(state, x, jax.random.split(jax.random.PRNGKey(i), x.shape[0]))
    history.append(jax.device_get(unreplicate(metrics)))
print(history[-1])

# %% Look at what came out, on all devices again
reconstruct = jax.pmap(lambda p, x, k: model.apply({"params": p}, x, k)[0], in_axes=(0, 0, None))
images = reconstruct(state.params, x, key)
images.shape  # noqa: B018


# %%
def main():
    return {
        "history": history,
        "images": np.asarray(images),
        "params": jax.device_get(unreplicate(state).params),
    }
