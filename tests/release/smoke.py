"""What must work in an environment that has nothing but an installed pmapx; `make test-wheel`.

Run with `--core` where the extra pmapx[tools] is not installed. It is started away from the
checkout, so that nothing of it is imported by accident.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

LEGACY = """\
import jax
import numpy as np

state = jax.device_put_replicated({"w": np.ones(3)}, jax.local_devices())
step = jax.pmap(lambda s: {"w": s["w"] * 2}, axis_name="i")
print("row", step(state)["w"][0])
"""


def main() -> None:
    core()
    if "--core" in sys.argv:
        ended = pmapx_command("check", ".", status=1)
        assert 'pip install "pmapx[tools]"' in ended.stderr, ended.stderr
        assert "click missing" in pmapx_command("info").stdout
    else:
        command_line()
    print("smoke test passed:", *sys.argv[1:])


def core() -> None:
    import jax
    import numpy as np

    import pmapx

    installed = Path(pmapx.__file__).resolve()
    assert Path(sysconfig.get_path("purelib")).resolve() in installed.parents, installed
    out = pmapx.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(np.ones((8, 2), np.float32))
    assert out.shape == (8, 2)
    assert float(pmapx.unreplicate(out)[0]) == 8
    assert all(getattr(pmapx, name) is not None for name in pmapx.__all__)
    assert (installed.parent / "py.typed").exists()


def command_line() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(LEGACY)
        os.chdir(folder)
        assert json.loads(pmapx_command("info", "--json").stdout)["devices"]["count"] == 8
        assert pmapx_command("run", "train.py").stdout.strip() == "row [2. 2. 2.]"
        assert "PMX511" in pmapx_command("check", "train.py", status=1).stdout
        assert "shard_map" in pmapx_command("migrate", "train.py", status=1).stdout
        assert pmapx_command("explain", "PMX101").stdout.startswith("PMX101")
        for name in listed_commands():
            pmapx_command(name, "--help")
        os.chdir("/")


def listed_commands() -> list[str]:
    listed = pmapx_command("--help").stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    return [line.split()[0] for line in listed.splitlines() if line[2:3].strip()]


def pmapx_command(*args: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = Path(sysconfig.get_path("scripts"), "pmapx")
    done = subprocess.run([command, *args], capture_output=True, text=True, check=False)
    assert done.returncode == status, f"pmapx {args}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


if __name__ == "__main__":
    main()
