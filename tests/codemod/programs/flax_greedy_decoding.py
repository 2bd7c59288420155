"""Generation with a recurrent cell: a static length, a broadcast of parameters, padded prompts."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import jax_utils
from flax import linen as nn

VOCAB = 7


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, carry, token):
        carry, out = nn.GRUCell(features=6)(carry, nn.Embed(VOCAB, 5)(token))
        return carry, nn.Dense(VOCAB)(out)


@partial(jax.pmap, static_broadcasted_argnums=(0, 3), in_axes=(None, 0, 0, None, None))
def generate(model, params, prompt, max_length, temperature):
    """Greedy up to the temperature; prompts are forced while they last (0 is padding)."""
    carry = jnp.zeros((prompt.shape[0], 6))

    def step(state, forced):
        carry, token = state
        carry, logits = model.apply({"params": params}, carry, token)
        guess = jnp.argmax(logits / temperature, axis=-1)
        token = jnp.where(forced > 0, forced, guess)
        return (carry, token), (token, jax.nn.log_softmax(logits).max(-1))

    missing = max_length - prompt.shape[1]
    forced = jnp.pad(prompt, ((0, 0), (0, missing))).T
    start = jnp.ones(prompt.shape[0], prompt.dtype)
    _, (tokens, scores) = jax.lax.scan(step, (carry, start), forced)
    return tokens.T, scores.sum(0)


def filled_up(x, size):
    """Repeats the last row until there are as many as wanted."""
    return np.concatenate([x, np.repeat(x[-1:], size - len(x), axis=0)])


def main():
    n = jax.local_device_count()
    model = Decoder()
    params = model.init(jax.random.PRNGKey(4), jnp.zeros((1, 6)), jnp.zeros((1,), jnp.int32))[
        "params"
    ]
    params = jax_utils.replicate(params)
    prompts = np.random.RandomState(0).randint(1, VOCAB, size=(13, 2))
    padded = filled_up(prompts, -(-len(prompts) // n) * n)
    outputs = {}
    for length in (4, 6):
        tokens, scores = generate(model, params, padded.reshape(n, -1, 2), length, jnp.float32(0.7))
        tokens = np.asarray(tokens).reshape(-1, length)[: len(prompts)]
        assert (tokens[:, :2] == prompts).all()
        outputs[length] = tokens, np.asarray(scores).reshape(-1)[: len(prompts)]
    print(outputs[6][0])
    return outputs


if __name__ == "__main__":
    main()
