"""Virtual devices for the whole suite, and a context mesh on request.

PMAPX_TEST_DEVICES is the number of devices, 8 by default. PMAPX_TEST_MESH=auto or explicit runs
each test inside `jax.set_mesh` of a mesh with one such axis over all devices.
"""

import gc
import os
import subprocess
import sys
from pathlib import Path

from virtual_devices import xla_flags

os.environ.setdefault("JAX_PLATFORMS", "cpu")
DEVICE_COUNT = int(os.environ.get("PMAPX_TEST_DEVICES", "8"))
# Of two settings of a flag the last counts: those of the caller, but for the number of devices.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {xla_flags(DEVICE_COUNT)}".strip()

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from jax.sharding import AxisType, Mesh  # noqa: E402

CONTEXT_MESH = os.environ.get("PMAPX_TEST_MESH", "")
AXIS_TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


@pytest.fixture(autouse=True)
def context_mesh():
    if not CONTEXT_MESH:
        yield None
        return
    devices = np.array(jax.devices())
    mesh = Mesh(devices, ("context",), axis_types=(AXIS_TYPES[CONTEXT_MESH],))
    with jax.set_mesh(mesh):
        yield mesh


@pytest.fixture
def devices():
    return jax.devices()


@pytest.fixture
def run_python():
    """Run a program in a fresh interpreter with the suite's devices; gives what it printed."""

    def run(code, *, timeout=240, **environment):
        import pmapx

        package_root = str(Path(pmapx.__file__).parents[1])
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": package_root, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def pytest_configure(config):
    gc.disable()  # Until the tests are collected.
    config.addinivalue_line("markers", "needs_devices(n): skip when fewer devices are there")
    config.addinivalue_line(
        "markers", "no_context_mesh(reason, kind=None): skip inside a context mesh (of that kind)"
    )


def pytest_collection_finish():
    # Modules and tests stay to the end: the garbage collector need not go through them each time.
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item):
    marker = item.get_closest_marker("needs_devices")
    if marker and jax.device_count() < marker.args[0]:
        pytest.skip(f"needs {marker.args[0]} devices, {jax.device_count()} are there")
    for marker in item.iter_markers("no_context_mesh"):
        kind = marker.kwargs.get("kind")
        if CONTEXT_MESH and kind in (None, CONTEXT_MESH):
            pytest.skip(f"inside a context mesh: {marker.args[0]}")
