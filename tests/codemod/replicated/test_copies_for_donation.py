"""Where donated state is copied: only if something else may still read its memory."""

import pytest
from migrated import rewritten

PROGRAM = """\
import jax
import jax.numpy as jnp


def step(state, batch):
    grads = jax.lax.pmean(batch.mean() * state, "i")
    return state - grads


def main(batches):
    p_step = jax.pmap(step, "i", donate_argnums=0)
    params = jnp.ones(3)
    state = jax.device_put_replicated(params, jax.local_devices()){after_placing}
    for batch in batches:
        state = p_step(state, batch){in_loop}
    {last}


if __name__ == "__main__":
    main([jnp.ones((jax.local_device_count(), 4))] * 2)
"""


def migrated(folder, after_placing="", in_loop="", last="return state[0]"):
    text = PROGRAM.format(after_placing=after_placing, in_loop=in_loop, last=last)
    return rewritten(folder, text, style="global")[0].decode()


def test_state_that_is_read_no_more_is_not_copied(tmp_path):
    after = migrated(tmp_path)
    assert "state = jax.device_put(params, jax.NamedSharding(mesh, jax.P()))" in after
    assert "copy" not in after
    assert "return state\n" in after


def test_a_name_that_is_assigned_again_is_not_copied(tmp_path):
    last = "params = jax.tree.map(lambda x: x[0], state)\n    return params"
    after = migrated(tmp_path, last=last)
    assert "copy" not in after


@pytest.mark.parametrize(
    "later",
    [
        {"after_placing": "\n    print(params)"},
        {"in_loop": "\n        print(params)"},
        {
            "after_placing": "\n    norm = lambda: jnp.sum(params)",
            "last": "return state[0], norm()",
        },
    ],
    ids=["after it", "in a loop", "in a lambda"],
)
def test_what_is_read_after_it_was_put_on_the_devices_is_copied(tmp_path, later):
    assert "jax.tree.map(jnp.copy, params)," in migrated(tmp_path, **later)


def test_state_that_a_loop_keeps_is_copied(tmp_path):
    after = migrated(
        tmp_path, after_placing="\n    kept = []", in_loop="\n        kept.append(state[0])"
    )
    assert "kept.append(jnp.copy(state))" in after


def test_state_of_two_names_is_copied(tmp_path):
    last = "other = state\n    first = state[0]\n    p_step(other, batches[0])\n    return first"
    assert "first = jnp.copy(state)" in migrated(tmp_path, last=last)


def test_what_a_checkpoint_writes_at_once_is_not_copied(tmp_path):
    text = PROGRAM.format(
        after_placing="",
        in_loop='\n        checkpoints.save_checkpoint("run", (state[0], 1), 1)',
        last="return state[0]",
    )
    text = text.replace("import jax\n", "from flax.training import checkpoints\nimport jax\n", 1)
    after = rewritten(tmp_path, text, style="global")[0].decode()
    assert 'save_checkpoint("run", (state, 1), 1)' in after
    later = text.replace(", 1), 1)", ", 1), 1, async_manager=manager)")
    assert "jnp.copy(state)" in rewritten(tmp_path, later, style="global")[0].decode()


def test_names_that_are_placed_together_and_bound_anew_are_not_copied(tmp_path):
    text = """\
    import jax
    import jax.numpy as jnp


    def step(w, m, x):
        m = m + jax.lax.pmean(x.mean(), "i")
        return w - m, m


    def main(batches):
        p_step = jax.pmap(step, "i", donate_argnums=(0, 1))
        w, m = jnp.ones(3), jnp.zeros(3)
        w, m = jax.device_put_replicated((w, m), jax.local_devices())
        for batch in batches:
            w, m = p_step(w, m, batch)
        return w[0]
    """
    after = rewritten(tmp_path, text, style="global")[0].decode()
    assert "w, m = jax.device_put((w, m), jax.NamedSharding(mesh, jax.P()))" in after
