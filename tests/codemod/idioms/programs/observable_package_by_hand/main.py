"""Fits a wave function with a package whose modules share their parallel parts."""

import jax
import numpy as np
import parallel
from fitting import fit
from observables import NoisyOverlap, Radius


def main():
    key, walker_key = jax.random.split(jax.random.PRNGKey(0))
    walkers = parallel.put(jax.random.normal(walker_key, (32, 3)))
    params = parallel.copy_to_devices({"a": np.float32(0.4)})
    keys = parallel.keys_for_devices(key)
    observables = [Radius(), NoisyOverlap(0.1, period=2), NoisyOverlap(0.3)]
    history = []
    run = fit(keys, params, walkers, observables, steps=3)
    for fitted, moved, stats, samples in run:  # noqa: B007
        stats = {name: float(value) for name, value in stats.items()}
        history.append({**stats, "radii": np.asarray(samples["radius/samples"])})
    print([stats["energy"] for stats in history])
    return {
        "history": history,
        "params": jax.device_get(fitted),
        "walkers": np.asarray(moved),
    }


if __name__ == "__main__":
    main()
