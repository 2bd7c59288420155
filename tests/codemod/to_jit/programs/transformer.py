# jit: train_step, predict
# Attention, layer norm and Adam; the predictions are used by device, (n, b).
import jax
import jax.numpy as jnp
import numpy as np


def layer_norm(x):
    mean = x.mean(axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + 1e-5)


def model(params, tokens):
    x = params["embed"][tokens]
    for layer in params["layers"]:
        h = layer_norm(x)
        q, k, v = h @ layer["q"], h @ layer["k"], h @ layer["v"]
        scores = jnp.einsum("bid,bjd->bij", q, k) / jnp.sqrt(q.shape[-1])
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(causal, scores, -1e9)
        x = x + jax.nn.softmax(scores) @ v
        x = x + jax.nn.gelu(layer_norm(x) @ layer["up"]) @ layer["down"]
    return layer_norm(x) @ params["embed"].T


def loss_fn(params, tokens):
    logits = jax.nn.log_softmax(model(params, tokens[:, :-1]))
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1).mean()


def train_step(state, tokens):
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], tokens)
    grads = jax.lax.pmean(grads, axis_name="data")
    step = state["step"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, state["v"], grads)
    scale = 0.01 * jnp.sqrt(1 - 0.99**step) / (1 - 0.9**step)
    params = jax.tree.map(
        lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-6), state["params"], m, v
    )
    metrics = jax.lax.pmean({"loss": loss}, axis_name="data")
    return {"params": params, "m": m, "v": v, "step": step}, metrics


def predict(params, tokens):
    return jnp.argmax(model(params, tokens)[:, -1], axis=-1)


p_train_step = jax.pmap(train_step, axis_name="data", donate_argnums=(0,))
p_predict = jax.pmap(predict, axis_name="data")


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.device_count(), -1) + x.shape[1:]), batch)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def main():
    rng = np.random.default_rng(0)
    normal = lambda *shape: 0.3 * rng.normal(size=shape).astype("float32")
    layer = lambda: {
        "q": normal(8, 8),
        "k": normal(8, 8),
        "v": normal(8, 8),
        "up": normal(8, 16),
        "down": normal(16, 8),
    }
    params = {"embed": normal(11, 8), "layers": [layer(), layer()]}
    zeros = jax.tree.map(np.zeros_like, params)
    state = replicate({"params": params, "m": zeros, "v": zeros, "step": np.int32(0)})
    for _ in range(3):
        tokens = rng.integers(0, 11, size=(16, 6))
        state, metrics = p_train_step(state, shard(tokens))
        print("loss", float(metrics["loss"][0]))
    guesses = p_predict(state["params"], shard(tokens))
    print("guesses", np.asarray(guesses).reshape(-1).tolist())


if __name__ == "__main__":
    main()
