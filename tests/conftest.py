"""Virtual devices for the whole suite; PMAPX_TEST_DEVICES says how many (8 unless told)."""

import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
DEVICE_COUNT = int(os.environ.get("PMAPX_TEST_DEVICES", "8"))
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={DEVICE_COUNT}"
)

import jax  # noqa: E402
import pytest  # noqa: E402


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
    config.addinivalue_line("markers", "needs_devices(n): skip when fewer devices are there")


def pytest_runtest_setup(item):
    marker = item.get_closest_marker("needs_devices")
    if marker and jax.device_count() < marker.args[0]:
        pytest.skip(f"needs {marker.args[0]} devices, {jax.device_count()} are there")
