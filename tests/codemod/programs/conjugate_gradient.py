"""Natural gradient by conjugate gradient: products with the curvature summed over devices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def model(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def gauss_newton_product(params, x, v, damping):
    """(J^T J / n + damping) v, over the examples of all devices."""

    def f(p):
        return model(p, x)

    _, jv = jax.jvp(f, (params,), (v,))
    _, vjp = jax.vjp(f, params)
    (jtjv,) = vjp(jv / x.shape[0])
    return jax.tree.map(lambda h, v: h + damping * v, lax.pmean(jtjv, "i"), v)


def tree_dot(a, b):
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, a, b)))


def solve(matvec, b, n_iter):
    def body(carry, _):
        x, r, p, rr = carry
        ap = matvec(p)
        alpha = rr / tree_dot(p, ap)
        x = jax.tree.map(lambda x, p: x + alpha * p, x, p)
        r = jax.tree.map(lambda r, ap: r - alpha * ap, r, ap)
        new_rr = tree_dot(r, r)
        p = jax.tree.map(lambda r, p: r + new_rr / rr * p, r, p)
        return (x, r, p, new_rr), new_rr

    init = (jax.tree.map(jnp.zeros_like, b), b, b, tree_dot(b, b))
    (x, _, _, _), residuals = lax.scan(body, init, None, length=n_iter)
    return x, residuals


def natural_step(params, x, y):
    def loss_fn(params):
        return jnp.mean(jnp.sum((model(params, x) - y) ** 2, axis=-1)) / 2

    loss, grads = lax.pmean(jax.value_and_grad(loss_fn)(params), "i")
    direction, residuals = solve(
        lambda v: gauss_newton_product(params, x, v, damping=0.1), grads, n_iter=4
    )
    params = jax.tree.map(lambda p, d: p - d, params, direction)
    return params, {"loss": loss, "residuals": residuals}


def main():
    n = jax.local_device_count()
    rng = np.random.RandomState(1)
    params = {"a": rng.normal(size=(3, 5)), "b": rng.normal(size=(5, 2)) / 2}
    params = jax.tree.map(lambda p: p.astype(np.float32), params)
    x = rng.normal(size=(n, 6, 3)).astype(np.float32)
    y = np.stack([x.sum(-1), x.max(-1)], -1)
    step = jax.pmap(natural_step, "i")
    params = jax.tree.map(lambda p: np.tile(p[None], (n,) + (1,) * p.ndim), params)
    losses, residuals = [], []
    for _ in range(3):
        params, info = step(params, x, y)
        info = jax.tree.map(lambda v: np.asarray(v[0]), info)
        losses.append(info["loss"])
        residuals.append(info["residuals"])
    print("losses", [float(loss) for loss in losses])
    return {
        "losses": losses,
        "residuals": residuals,
        "params": jax.tree.map(lambda v: np.asarray(v[0]), params),
    }


if __name__ == "__main__":
    main()
