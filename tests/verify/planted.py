"""A program with pmap, and one that was migrated by hand with a mistake in each of its steps."""

HEAD = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
N = jax.device_count()
X = np.arange(N * 4 * 3, dtype=np.float32).reshape(N, 4, 3) / 50
W = np.linspace(-1, 1, 3, dtype=np.float32)
def loss(w, x):
    return jnp.mean((x @ w - 1) ** 2)
def gradients(w, x):
    return jax.lax.pmean(jax.grad(loss)(w, x), "i")
def update(w, x):
    return {"w": w["w"] - 0.1 * jax.lax.pmean(jax.grad(loss)(w["w"], x), "i")}
def spread(x):
    return jnp.outer(x[0], x[:, 0])
def donating(w, x):
    return w + jax.lax.pmean(x.mean((0, 1)), "i")
def right(w, x):
    return w - jax.lax.pmean(jax.grad(loss)(w, x), "i"), jax.lax.pmean(loss(w, x), "i")
"""

BEFORE = (
    HEAD
    + """
def mean(x):
    return jax.lax.pmean(x.mean(), "i")
def unreached(x):
    return x
stacked = np.stack([W] * N)
print(jax.pmap(gradients, axis_name="i", in_axes=(None, 0), out_axes=None)(W, X))
step = jax.pmap(update, axis_name="i")
w = {"w": stacked}
for _ in range(3):
    w = step(w, X)
jax.pmap(spread)(X)
added = jax.pmap(donating, axis_name="i", donate_argnums=0)
added(added(jnp.asarray(stacked), X), X)
jax.pmap(mean, axis_name="i")(X)
both = jax.pmap(right, axis_name="i")
w, value = both(stacked, X)
w, value = both(w, X)
if N > 1000:
    jax.pmap(unreached)(X)
"""
)

AFTER = (
    HEAD
    + """
mesh = jax.sharding.Mesh(jax.devices(), ("i",))
def rows(f, in_specs, out_specs, **options):
    return jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)

def mean(x):
    return x.mean()[None]
def unreached(x):
    return x
# Rows of rows are one axis now, and what was stacked is replicated; check_vma is on.
ROWS = X.reshape(N * 4, 3)
print(jax.jit(rows(gradients, (P(), P("i")), P()))(W, ROWS))
step = jax.jit(rows(update, (P(), P("i")), P()))
w = {"w": W}
for _ in range(3):
    w = step(w, ROWS)

@jax.jit
def spread_rows(x):
    return rows(lambda x: spread(x[0]).T[None], P("i"), P("i"), check_vma=False)(x)
spread_rows(X)

@jax.jit
@functools.partial(rows, in_specs=(P("i"), P("i")), out_specs=P("i"), check_vma=False)
def added(w, x):
    return donating(w[0], x[0])[None]
added(added(jnp.asarray(np.stack([W] * N)), X), X)
jax.jit(rows(mean, P("i"), P("i"), check_vma=False))(X)
both = jax.jit(rows(right, (P(), P("i")), P(), check_vma=False))
w, value = both(W, ROWS)
w, value = both(w, ROWS)
"""
)
