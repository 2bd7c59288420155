"""State that a checkpoint committed to one device is put on the mesh where it is restored."""

import pytest

pytest.importorskip("click", reason="needs pmapx[tools]")

from pmapx import migrate

HEAD = """import jax, numpy as np
from library import checkpoints
def add(state, x):
    return state + jax.lax.psum(x, "i")
step = jax.pmap(add, axis_name="i", in_axes=({axis}, 0), out_axes={axis}{options})
x = np.arange(float(jax.device_count()), dtype=np.float32)
"""
PUT = "jax.device_put({}, jax.NamedSharding(mesh, jax.P()))"


def migrated(tmp_path, text, axis="None", options=""):
    path = tmp_path / "train.py"
    path.write_text(HEAD.format(axis=axis, options=options) + text)
    (file,) = migrate([str(path)]).files
    assert b"from library import checkpoints" in file.after
    return (
        " ".join(file.after.decode().split())
        .replace("( ", "(")
        .replace(",)", ")")
        .replace(", )", ")")
    )


@pytest.mark.parametrize(
    ("text", "put"),
    [
        ("state = checkpoints.restore_checkpoint('runs', 0.0)\nstate = step(state, x)\n",
         "state = " + PUT.format("checkpoints.restore_checkpoint('runs', 0.0)")),
        ("state = jax.device_put(np.float32(1), jax.devices()[0])\nstate = step(state, x)\n",
         "state = " + PUT.format("np.float32(1)")),
        ("def resumed(folder):\n    return checkpoints.restore(folder)\n"
         "state = resumed('runs')\nfor _ in range(3):\n    state = step(state, x)\n",
         "state = " + PUT.format("resumed('runs')")),
        ("state, start = checkpoints.restore('runs')\nstate = step(state, x)\n",
         "state = step(" + PUT.format("state") + ", x)"),
    ],
)  # fmt: skip
def test_what_is_restored_is_put_on_the_mesh_once(tmp_path, text, put):
    assert put in migrated(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "state = checkpoints.restore_checkpoint('runs', 0.0)\nstate = step(state, x)\n",
        "state, start = checkpoints.restore('runs')\nstate = step(state, x)\n",
    ],
)
def test_in_several_processes_what_is_restored_is_put_on_the_mesh_from_the_host(tmp_path, text):
    # jax.device_put refuses arrays that are committed to a device of one process.
    after = migrated(tmp_path, f"jax.distributed.initialize()\n{text}")
    assert "jax.device_put(jax.device_get(" in after


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("state = jax.numpy.zeros(())\nstate = step(state, x)\n", {}),
        ("state = checkpoints.restore('runs')\nprint(state)\n", {}),
        ("state = checkpoints.restore('runs')\nstate = step(state, x)\n", {"axis": "0"}),
        ("state = checkpoints.restore('runs')\nstate = step(state, x)\n",
         {"options": ", devices=jax.devices()[:2]"}),
    ],
)  # fmt: skip
def test_what_no_map_takes_replicated_over_all_devices_is_left_alone(tmp_path, text, options):
    after = migrated(tmp_path, text, **options)
    assert "device_put" not in after
    assert text.splitlines()[0] in after
