# jit: predict
# The program traces the function, and counts what it calls, before it runs it.
import jax
import jax.numpy as jnp
import numpy as np

CALLS = []


def layer(w, x):
    CALLS.append(x.shape)
    return jnp.tanh(x @ w)


def predict(w, x):
    return layer(w, x)


def main():
    predicted = jax.pmap(predict, axis_name="batch", in_axes=(None, 0))
    x = np.random.default_rng(0).normal(size=(jax.device_count(), 4, 3)).astype("float32")
    w = jnp.ones((3, 2))
    shape = jax.eval_shape(predicted, w, x).shape
    assert len(CALLS) == 1, CALLS
    print(*shape)
    for _ in range(2):
        print(float(jnp.sum(predicted(w, x))))


if __name__ == "__main__":
    main()
