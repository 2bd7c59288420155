# %% [markdown]
# # Parallel linear regression
# Run cell by cell; every cell leaves its names behind.

# %%
import jax
import jax.numpy as jnp
import numpy as np

n_devices = jax.local_device_count()
print(f"{n_devices} devices")

# %% Data
rs = np.random.RandomState(0)
X = rs.normal(size=(n_devices, 10, 2)).astype(np.float32)
Y = X @ np.array([2.0, -1.0], np.float32) + 0.5

# %% A map is a map
squares = jax.pmap(lambda x: x**2)(np.arange(n_devices))
dots = jax.pmap(jnp.dot)(X, np.swapaxes(X, 1, 2))
dots.shape  # noqa: B018

# %% Collectives have names
normalised = jax.pmap(lambda x: x / jax.lax.psum(x, "i"), axis_name="i")(
    np.arange(1.0, n_devices + 1)
)
print(normalised.sum())


# %% The step
def loss(params, x, y):
    w, b = params
    return ((x @ w + b - y) ** 2).mean()


@jax.jit
def error(params):
    return loss(params, X.reshape(-1, 2), Y.reshape(-1))


def step(params, x, y):
    g = jax.grad(loss)(params, x, y)
    g = jax.lax.pmean(g, "devices")
    return [p - 0.2 * d for p, d in zip(params, g, strict=True)]


pstep = jax.pmap(step, "devices")

# %% Train
params = [jnp.stack([jnp.zeros(2)] * n_devices), jnp.zeros(n_devices)]
errors = []
for i in range(8):
    params = pstep(params, X, Y)
    if i % 2:
        errors.append(float(error([p[0] for p in params])))
errors  # noqa: B018

# %% And the last one
w, b = (np.asarray(p[0]) for p in params)
print("w", w, "b", b)


# %%
def main():
    return {
        "squares": np.asarray(squares),
        "dots": np.asarray(dots),
        "normalised": np.asarray(normalised),
        "errors": errors,
        "w": w,
        "b": b,
    }
