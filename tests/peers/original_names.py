"""A pytest plugin: the names that JAX 0.7.2's pmap tests import and that JAX has dropped since.

Load it with `-p original_names`. Functions that the tests call get what replaced them. Classes that
only JAX's own sharding specs need are there to be imported; tests of those are not run.
ORIGINAL_SUITE_PMAP says what `pmap` is: that of JAX, that of pmapx, or all of `pmapx.install()`.
"""

import os
import sys
import types

import jax
import jax.ad_checkpoint
import numpy as np
from jax._src import api, config, sharding_impls
from jax._src.interpreters import pxla
from jax._src.lib import _jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import pmapx


class Gone:
    """Stands for a class of JAX that is gone."""

    def __init__(self, *args, **kwargs):
        self.sharding = self.mesh_mapping = id(self)  # Part of the names of tests.


class Off:
    """A setting that is gone, as it was by default."""

    value = False


class On:
    """A setting that is gone, as JAX behaves now."""

    value = True


def create_pmap_sharding_spec(shape, sharded_dim=0, sharded_dim_size=None):
    """Returns the partition spec in place of the sharding spec."""
    return PartitionSpec() if sharded_dim is None else PartitionSpec(*[None] * sharded_dim, "rows")


class PmapSharding:
    """Makes what replaced it: nothing is an instance of it."""

    def __new__(cls, devices, spec):
        return NamedSharding(Mesh(np.array(devices), ("rows",)), spec)


def put(module, **names):
    for name, value in names.items():
        if not hasattr(module, name):
            setattr(module, name, value)


KIND = os.environ.get("ORIGINAL_SUITE_PMAP", "install")
if KIND == "install":
    pmapx.install()
elif KIND == "pmapx":
    jax.pmap = pmapx.pmap

SPECS = ("Chunked", "NoSharding", "Replicated", "ShardedAxis", "ShardingSpec", "Unstacked")
specs = types.ModuleType("jax._src.sharding_specs")
put(specs, create_pmap_sharding_spec=create_pmap_sharding_spec, **dict.fromkeys(SPECS, Gone))
put(pxla, **dict.fromkeys(SPECS, Gone))
if not hasattr(jax._src, "sharding_specs"):
    sys.modules[specs.__name__] = jax._src.sharding_specs = specs
jax.sharding.PmapSharding = PmapSharding
put(jax.ad_checkpoint, checkpoint=jax.checkpoint)
put(config, pmap_no_rank_reduction=On, pmap_shmap_merge=Off, vjp3=On)
put(sharding_impls, AxisEnv=Gone)
put(_jax, XlaRuntimeError=jax.errors.JaxRuntimeError)
put(api, pmap=jax.pmap, _cpp_pmap=jax.pmap)
