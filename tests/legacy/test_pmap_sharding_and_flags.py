"""PmapSharding and removed flags: each use warns in one line."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmapx
from pmapx._src import errors
from pmapx._src.legacy import pmap_sharding_and_flags
from pmapx._src.legacy.patches import current

N = jax.device_count()


def has(flag):
    return hasattr(jax.config, flag)


@pytest.fixture
def flag(request):
    name = request.param
    if has(name):
        pytest.skip(f"this release of JAX has {name}")
    return name


@pytest.mark.parametrize("flag", pmap_sharding_and_flags.FLAGS, indirect=True)
def test_setting_a_removed_flag_is_explained_in_one_line(flag):
    with pmapx.install(), pytest.warns(errors.RemovedName, match=flag) as told:
        jax.config.update(flag, False)

    assert len(str(told[0].message).splitlines()) == 1
    assert told[0].filename == __file__


@pytest.mark.parametrize("flag", pmap_sharding_and_flags.FLAGS, indirect=True)
def test_reading_a_removed_flag_is_explained(flag):
    with pmapx.install(), pytest.warns(errors.RemovedName, match=flag):
        assert getattr(jax.config, flag) is True

    with pytest.raises(AttributeError):
        getattr(jax.config, flag)


@pytest.mark.parametrize("flag", pmap_sharding_and_flags.FLAGS, indirect=True)
def test_a_removed_flag_in_the_environment_is_explained(flag, monkeypatch):
    monkeypatch.setenv(flag.upper(), "1")

    with pytest.warns(errors.RemovedName, match=flag.upper()), pmapx.install():
        pass


def test_other_options_are_set_as_before():
    before = jax.config.jax_debug_nans
    with pmapx.install(), warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.config.update("jax_debug_nans", not before)
        assert jax.config.jax_debug_nans is not before
        jax.config.update("jax_debug_nans", before)
        with pytest.raises(AttributeError, match="no_such_option"):
            jax.config.update("no_such_option", 1)


@pytest.mark.skipif(
    current(jax.sharding, "PmapSharding") is not None, reason="this release of JAX has PmapSharding"
)
def test_asking_for_pmap_sharding_is_explained_in_one_line():
    x = jnp.ones(3)
    with pmapx.install(), pytest.warns(errors.RemovedName, match="NamedSharding") as told:
        assert not isinstance(x.sharding, jax.sharding.PmapSharding)

    assert len(str(told[0].message).splitlines()) == 1


@pytest.mark.filterwarnings("ignore::pmapx.errors.RemovedName")
@pytest.mark.parametrize("dim", [0, 1])
def test_the_default_pmap_sharding_is_the_layout_of_pmaps_outputs(dim):
    shape = (N, N, 3)

    sharding = pmap_sharding_and_flags.PmapSharding.default(shape, dim)

    x = jax.device_put(np.zeros(shape, np.float32), sharding)
    mapped = pmapx.pmap(lambda x: x, in_axes=dim, out_axes=dim, reshard="error")(x)
    assert mapped.sharding.is_equivalent_to(sharding, 3)
