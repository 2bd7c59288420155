"""Programs of several processes give the same after their migration, in each process."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import pmapx
from pmapx._src.codemod.migration import migrate

HEAD = """\
import dataclasses
import functools
import jax
import jax.numpy as jnp
import numpy as np

jax.distributed.initialize()
N = jax.local_device_count()
SHARE = 8 // jax.process_count()
FIRST = jax.process_index() * N


def show(*trees):
    with open(f"shown.{jax.process_index()}", "a") as file:
        for leaf in jax.tree.leaves(trees):
            print(np.asarray(leaf).tolist(), file=file)


"""
# A map without the name of an axis, whose result goes to one that has it.
LOCAL = """\
def main():
    x = jnp.arange(N * 3.0).reshape(N, 3) + FIRST
    keys = jax.random.split(jax.random.fold_in(jax.random.key(0), jax.process_index()), N)
    noise = jax.pmap(lambda key, x: x + jax.random.normal(key, x.shape))(keys, x)
    total = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(noise)
    show(noise, total, jax.pmap(jnp.square)(total))


main()
"""
# A pmap that the project keeps, over axes that are a tree of a class, and called by keyword.
KEPT = """\
pmap = functools.partial(jax.pmap, axis_name="i")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Walkers:
    positions: object
    atoms: object


def energy(params, data, scale=1.0):
    local = (params * data.positions).sum() * data.atoms.sum() * scale
    return jax.lax.pmean(local, "i"), local


def main():
    walkers = Walkers(jnp.arange(N * 3.0).reshape(N, 3) + FIRST, jnp.ones(2))
    axes = Walkers(positions=0, atoms=None)
    p_energy = pmap(energy, in_axes=(0, axes))
    params = jnp.ones((N, 3))
    show(p_energy(params, walkers), p_energy(params, walkers, scale=jnp.full(N, 2.0)))


main()
"""
# Methods whose object is static, in a function of the project that hands on to pmap.
STATIC = """\
def pmap(f, axis_name="i", **options):
    return jax.pmap(f, axis_name, **options)


def centered(x):
    return x - jax.lax.pmean(x, "i")


@functools.partial(jax.pmap, static_broadcasted_argnums=1)
def split(key, count):
    return tuple(jax.random.split(key, count))


class Observable:
    def __init__(self, power):
        self.power = power

    @functools.partial(pmap, static_broadcasted_argnums=(0,))
    def value(self, x):
        return jax.lax.pmean((x**self.power).sum(), "i"), x.sum()


def main():
    x = jnp.arange(N * 3.0).reshape(N, 3) + FIRST
    show(split(jax.random.split(jax.random.PRNGKey(FIRST), N), 2))
    show(Observable(2).value(x), Observable(3).value(x), pmap(centered, "i")(x))


main()
"""
# More maps than are converted one by one.
MANY = """\
total = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
mean = jax.pmap(lambda x: jax.lax.pmean(x, "i"), axis_name="i")
highest = jax.pmap(lambda x: jax.lax.pmax(x, "i"), axis_name="i")
lowest = jax.pmap(lambda x: jax.lax.pmin(x, "i"), axis_name="i")
double = jax.pmap(lambda x: x * 2)
scaled = jax.pmap(lambda x, w: x * w, axis_name="i", in_axes=(0, None))
place = jax.pmap(lambda x: jax.lax.axis_index("i"), axis_name="i")
split = jax.pmap(lambda key, n: jax.random.uniform(key, (n,)), static_broadcasted_argnums=1)


def main():
    x = jnp.arange(N * 3.0).reshape(N, 3) + FIRST
    show(total(x), mean(x), highest(x), lowest(x), double(x), scaled(x, 3.0), place(x))
    show(split(jax.random.split(jax.random.key(FIRST), N), 2))


main()
"""
# An axis name that is an attribute, in several maps of one function.
ATTRIBUTE = """\
class Trainer:
    def __init__(self, axis_name):
        self.axis_name = axis_name
        self.step = jax.pmap(self._step, axis_name=self.axis_name)
        if axis_name:
            self.mean = jax.pmap(lambda x: jax.lax.pmean(x, axis_name), axis_name=self.axis_name)

    def _step(self, x):
        return x - jax.lax.psum(x, self.axis_name)


def main():
    trainer = Trainer("batch")
    x = jnp.arange(N * 3.0).reshape(N, 3) + FIRST
    show(trainer.step(x), trainer.mean(x))


main()
"""
# Devices that the program chooses, a jitted step, and static arguments that in_axes leaves out.
CHOSEN = """\
if __name__ == "__main__":
    devices = sorted(jax.devices(), key=lambda device: device.process_index)

    @jax.jit
    def update(state, batch, scale):
        state = state + jax.lax.pmean(batch.sum(), "data") * scale
        return state, jax.lax.psum(batch, "data"), batch * scale

    p_update = jax.pmap(update, axis_name="data", devices=devices, in_axes=(0, 0, None))
    scaled = jax.pmap(
        lambda x, y, power: jax.lax.pmean(x, "data") + y**power,
        axis_name="data",
        in_axes=(0, None),
        static_broadcasted_argnums=(2,),
        devices=devices,
    )
    state = jnp.zeros(N) + FIRST
    for step in range(2):
        batch = jnp.arange(N * 3.0).reshape(N, 3) + FIRST + step
        state, total, own = p_update(state, batch, 0.5)
        show(state, total, own, scaled(batch, jnp.ones(3) * 2, 2))
"""
# Each process maps over its own devices, though over an axis that has a name.
OWN = """\
def step(state, batch):
    return state - jax.lax.pmean(batch.mean(), "batch"), batch * 2


def main():
    devices = jax.local_devices()
    state = jax.device_put_replicated(jnp.zeros(3), devices)
    p_step = jax.pmap(step, axis_name="batch", devices=devices)
    for i in range(2):
        batch = jnp.arange(N * 3.0).reshape(N, 3) + FIRST + i
        state, out = p_step(state, batch)
    show(state[0], out)


main()
"""
# A state with a field of each device's own, in maps that are called near, often, and elsewhere.
FIELDS = """\
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    step: int
    params: dict
    stats: dict

    def replace(self, **fields):
        return dataclasses.replace(self, **fields)


def train_step(state, batch):
    stats = {"mean": 0.9 * state.stats["mean"] + 0.1 * batch.mean()}
    grads = jax.lax.pmean(jax.grad(lambda p: jnp.mean(batch * p["w"]))(state.params), "batch")
    params = jax.tree.map(lambda p, g: p - 0.1 * g, state.params, grads)
    return state.replace(step=state.step + 1, params=params, stats=stats), batch.mean()


def eval_step(state, batch):
    return jax.lax.pmean(batch.mean() * state.params["w"] + state.stats["mean"], "batch")


def evaluate(state, batch):
    p_eval = jax.pmap(eval_step, axis_name="batch")
    return p_eval(state, batch)[0]


def main():
    batches = [jnp.arange(N * 12.0).reshape(N, 4, 3) + FIRST + i for i in range(3)]
    state = State(0, {"w": jnp.ones(3)}, {"mean": jnp.zeros(())})
    state = jax.device_put_replicated(state, jax.local_devices())
    p_step = jax.pmap(train_step, axis_name="batch")
    p_sum = jax.pmap(
        lambda state, x: jax.lax.psum(state.stats["mean"] * x.sum(), "batch"), axis_name="batch"
    )
    for batch in batches:
        state, loss = p_step(state, batch)
        show(loss)
        show(p_sum(state, batch), p_sum(state, batch)[0], p_sum(state, batches[0]))
    show(state.stats, evaluate(state, batches[1]))
    show(jax.tree.map(lambda x: x[0], state))


main()
"""
# Calls that fill their lines, as most calls of their file do.
FILLED = """\
def train_step(state, batch):
    grads = jax.lax.pmean(jnp.mean(batch, axis=0),
                          axis_name="batch")
    return (jnp.add(state,
                    grads), jnp.stack([jnp.mean(batch), jnp.max(batch),
                                       jnp.min(batch)]))


def evaluate(function, state, batch):
    return function(state, batch)


def main():
    train_step_pmapped = jax.pmap(train_step, axis_name="batch", donate_argnums=(0,))
    eval_step_pmapped = jax.pmap(lambda s, b: jax.lax.pmean(b @ s, "batch"), axis_name="batch")
    state = jnp.zeros((N, 3))
    batch = jnp.arange(N * 6.0).reshape(N, 2, 3) + FIRST
    for _ in range(2):
        state, metrics_of_this_step_and_no_other = train_step_pmapped(state, batch)
        show(metrics_of_this_step_and_no_other)
    show(state, evaluate(eval_step_pmapped, state, batch))


main()
"""
COMPUTING = """\
def unreplicate(tree):
    return jax.tree.map(lambda x: x[0], tree)


def main(rate=0.5):
    step = jax.pmap(
        lambda w, x, lr: (w + lr * jax.lax.pmean(x, "i"), jax.lax.pmean(x.sum(), "i")),
        axis_name="i",
        in_axes=(0, 0, None),
        donate_argnums=0,
    )
    x = np.arange(N * 2.0, dtype=np.float32).reshape(N, 2) + FIRST
    w = jax.device_put_replicated(np.ones(2, np.float32), jax.local_devices())
    for count in range(2):
        lr = rate / (count + 1)
        w, mean = step(w, x, lr)
    before = unreplicate(w)
    w, mean = step(w, x, min(lr, 0.5))
    average = mean[0]
    from jax.experimental import multihost_utils

    gathered = multihost_utils.process_allgather(unreplicate(w), tiled=True)
    show(gathered, multihost_utils.process_allgather(average), jnp.dot(before, jnp.asarray(x[0])))
    first = jax.device_put(unreplicate(w), jax.local_devices()[0])
    show(jnp.dot(first, jnp.asarray(x[0])), jnp.asarray(x) @ unreplicate(w))
    summed = jax.device_put_replicated(
        jax.tree.map(jnp.zeros_like, unreplicate({"w": w})["w"]), jax.local_devices()
    )
    moved = jax.device_put_replicated(
        jax.tree.map(lambda w: w - 1, unreplicate(w)), jax.local_devices()
    )
    add = jax.pmap(lambda total, x, y: total + x + y, axis_name="i")
    for _ in range(2):
        summed = add(summed, x, moved)
    show(summed)


main()
"""
# Maps of a module that may make no mesh, given numbers and arrays.
DECORATED = """\
def initialize():
    jax.distributed.initialize()


@functools.partial(jax.pmap, axis_name="i", donate_argnums=0)
def step(w, x):
    return w - jax.lax.pmean(x, "i"), x.sum()


@functools.partial(jax.pmap, axis_name="i", in_axes=(0, None), out_axes=None)
def scaled(x, rate):
    return jax.lax.psum(x * rate, "i")


place = jax.pmap(lambda x: x + jax.lax.axis_index("i"), axis_name="i")


def main():
    x = jnp.arange(N * 3.0, dtype=jnp.bfloat16).reshape(N, 3) + FIRST
    w, own = step(jnp.ones((N, 3)), x)
    total = scaled(w, 0.5)
    show(w, own, total, x[0] + total, scaled(x, total[0]), scaled(x, 2), place(own))


main()
"""
# Maps that are given numbers by some calls, and arrays by others.
NUMBERS = """\
def main():
    x = jnp.arange(N * 3.0, dtype=jnp.bfloat16).reshape(N, 3) + FIRST
    total = jax.pmap(lambda x, w: jax.lax.psum(x * w, "i"), axis_name="i", in_axes=(0, None))
    mean = jax.pmap(lambda x, w: jax.lax.pmean(x, "i") * w, axis_name="i", in_axes=(0, None))
    once = total(x, 0.5)
    again = total(x, once[0, 0])
    for w in (2, 0.5, np.float32(3)):
        show(mean(x, w), mean(x, once[0, 0]), mean(x, np.ones(3)))


main()
"""
# Numbers that come from a parameter, a function, an attribute and settings; and one that is not.
FOLLOWED = """\
class Config:
    decay = 0.5


def schedule(step):
    return 0.1 / (step + 1)


class Trainer:
    def __init__(self, config, **settings):
        self.decay = config.decay * 2
        self.settings = settings
        self.step = jax.pmap(
            lambda w, x, lr, decay: (w * decay - lr * jax.lax.pmean(x, "i"), x.sum() * lr),
            axis_name="i",
            in_axes=(0, 0, None, None),
        )
        self.scale = jax.pmap(
            lambda x, scale: jax.lax.pmean(x, "i") * scale, axis_name="i", in_axes=(0, None)
        )

    def train(self, rate):
        x = jnp.arange(N * 3.0, dtype=jnp.bfloat16).reshape(N, 3) + FIRST
        w = jax.device_put_replicated(jnp.ones(3, jnp.bfloat16), jax.local_devices())
        for i in range(2):
            w, own = self.step(w, x, schedule(i), self.decay)
            show(w, own)
        show(self.step(w, x, rate, self.settings["decay"]))
        scale = 2.0
        for i in range(2):
            out = self.scale(x, scale)
            scale = out[0].mean()
            show(out, np.asarray(out.dtype.itemsize))


Trainer(Config(), decay=0.25).train(0.5)
"""
# Parts of what was brought to the host are not arrays of all processes.
ON_HOST = """\
def first(tree):
    return tree["w"][0]


def main():
    step = jax.pmap(
        lambda p, x: jax.tree.map(lambda w: w - jax.lax.pmean(x.mean(), "i"), p), axis_name="i"
    )
    params = jax.device_put_replicated({"w": jnp.ones(3)}, jax.local_devices())
    for i in range(2):
        params = step(params, jnp.arange(N * 2.0).reshape(N, 2) + FIRST + i)
    host = jax.device_get(params)
    show(first(host), host["w"][0], jax.device_get(params)["w"][0], np.asarray(params["w"])[0])


main()
"""
# State with leaves that jax.device_put refuses for devices of several processes.
REFUSED = """\
def step(state, x):
    key, of_step = jax.random.split(state["key"])
    grads = jax.lax.pmean(x + jax.random.normal(of_step, x.shape), "i")
    return dict(state, w=state["w"] - state["rate"] * grads, key=key), x.sum()


def main():
    p_step = jax.pmap(step, axis_name="i")
    state = {"w": jnp.ones(3), "key": jax.random.key(3), "rate": 0.1}
    state = jax.device_put_replicated(state, jax.local_devices())
    for i in range(2):
        state, own = p_step(state, jnp.arange(N * 3.0).reshape(N, 3) + FIRST + i)
        show(own)
    show(jax.tree.map(lambda x: x[0], state)["w"])


main()
"""
PROGRAMS = {
    "refused": REFUSED,
    "followed": FOLLOWED,
    "on_host": ON_HOST,
    "computing": COMPUTING,
    "decorated": DECORATED,
    "numbers": NUMBERS,
    "chosen": CHOSEN,
    "own": OWN,
    "local": LOCAL,
    "kept": KEPT,
    "many": MANY,
    "static": STATIC,
    "attribute": ATTRIBUTE,
    "fields": FIELDS,
    "filled": FILLED,
}


def shown(path):
    """What each of 2 processes of 2 devices shows, by line.

    In files: what Gloo prints of its ranks may be broken anywhere, so output is no measure.
    """
    command = [sys.executable, "-m", "pmapx", "run", "-n", "2", "--devices", "2", path.name]
    env = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    env |= {"PYTHONPATH": str(Path(pmapx.__file__).parents[1]), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, cwd=path.parent, env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    files = [path.with_name(f"shown.{rank}") for rank in (0, 1)]
    lines = [file.read_text().splitlines() for file in files]
    for file in files:
        file.unlink()
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_process_shows_the_same(tmp_path, name):
    path = tmp_path / "program.py"
    path.write_text(HEAD + PROGRAMS[name])
    before = shown(path)
    (file,) = migrate([str(path)]).changed
    path.write_bytes(file.after)
    assert all(before)
    assert b"jax.pmap" not in file.after
    assert shown(path) == before


def test_a_map_without_the_name_of_an_axis_is_over_the_devices_of_its_process(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + LOCAL)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    assert text.count("mesh=local_mesh") == 2
    # Only the map with collectives takes and gives global arrays.
    assert text.count("multihost_utils.host_local_array_to_global_array") == 1


def test_a_kept_pmap_with_trees_of_leading_axes_is_given_the_short_function(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + KEPT)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    assert "pmap = functools.partial(map_over_devices, axis_name=" in text
    assert text.count("def ") - (HEAD + KEPT).count("def ") == 5


def test_a_pmap_with_static_arguments_is_given_a_short_function(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + STATIC)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    assert "    return map_over_devices(f, axis_name, **options)\n" in text
    assert text.count("def ") - (HEAD + STATIC).count("def ") == 8
    # The decorated one has its body in a function of its own.
    assert text.count("def per_device(") == 1


def test_a_decorator_without_the_name_of_an_axis_is_over_the_devices_of_its_process(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + STATIC)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    assert "    mesh=local_mesh,\n" in text
    assert "    show(split(jax.random.split(" in text


def test_many_maps_of_a_file_share_a_function_that_converts(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + MANY)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    assert "map_over_devices" not in text
    assert text.count(" = host_local_shard_map(") == 5
    # Beside the one of that function: maps of one process, and one that is given a number.
    assert text.count("jax.shard_map(") == 4
    assert "        double(x),\n" in text
    assert text.count("multihost_utils.host_local_array_to_global_array(x, mesh") == 1


def test_decorated_maps_share_a_function_that_makes_no_mesh_at_import(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + DECORATED)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    assert text.count('mesh=lambda: device_mesh("i"),\n') == 3
    assert "@functools.partial(\n    host_local_map,\n" in text
    assert "    donate_argnums=0,\n)\ndef step(w, x):\n" in text
    # What is host-local after pmap, is after it.
    assert text.count("keep_global=False,\n") == 1
    assert "\n    w, own = step(jnp.ones((N, 3)), x)\n    total = scaled(w, 0.5)\n" in text


def test_a_call_with_an_array_converts_it_beside_one_with_a_number(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + NUMBERS)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    assert '(x, mesh, jax.P("i")), 0.5)' in text
    assert "(x, once[0, 0]), mesh" in re.sub(r"\s+", " ", text)


def test_numbers_are_followed_through_parameters_functions_and_attributes(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + FOLLOWED)
    (file,) = migrate([str(path)]).changed
    text = re.sub(r"\s+", " ", file.after.decode())
    assert 'mesh, jax.P("i")), schedule(i), self.decay,' in text
    assert 'jax.P("i")), rate, ' in text
    # A name that is a number at first, and an array then.
    assert "lambda x: x if isinstance(x, (int, float)) else" in text
    assert "jax.P()), scale, )" in text


def test_a_map_that_is_converted_for_all_calls_may_be_given_numbers(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + NUMBERS)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    assert text.count("if isinstance(x, (int, float))\n") == 1
    assert "mean(x, w), mean(x, once[0, 0]), mean(x, np.ones(3))" in text


def test_few_maps_of_a_file_are_converted_where_they_are(tmp_path):
    path = tmp_path / "program.py"
    path.write_text((HEAD + MANY).replace("lowest = jax.pmap", "lowest = jax.jit"))
    (file,) = migrate([str(path)]).changed
    assert "map_over_devices" not in file.after.decode()


def test_two_maps_of_a_file_convert_without_a_function(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        HEAD + CALLED.format("state = jax.pmap(abs, axis_name='b')(step(state, batch))")
    )
    (file,) = migrate([str(path)], style="stacked").changed
    assert "host_local_shard_map" not in file.after.decode()


def test_maps_of_several_files_convert_by_a_function_of_a_module_that_they_import(tmp_path):
    shared = "import jax\n\n\ndef total(x):\n    return jax.pmap(sum, 'batch')(x)\n"
    (tmp_path / "shared.py").write_text(shared)
    program = HEAD + CALLED.format("return shared.total(step(state, batch))")
    program = program.replace("import jax\n", "import jax\nimport shared\n", 1)
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(program)
    after = {Path(each.path).name: each.after.decode() for each in migrate([str(tmp_path)]).changed}
    assert after["shared.py"].count("def host_local_shard_map(") == 1
    assert "jax.experimental import multihost_utils\n" in after["shared.py"]
    for name in ("one.py", "two.py"):
        assert "step = shared.host_local_shard_map(" in after[name]
        # Its calls stay as they are.
        assert "return shared.total(step(state, batch))" in after[name]
        assert "multihost_utils" not in after[name].replace(HEAD, "")


def test_a_module_for_the_project_has_the_function_that_converts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = HEAD + CALLED.format("return jax.pmap(sum, 'batch')(step(state, batch))")
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(program)
    done = migrate([str(tmp_path)], helpers="sharding.py")
    after = {Path(each.path).name: each.after.decode() for each in done.changed}
    assert after["sharding.py"].count("def host_local_shard_map(") == 1
    for name in ("one.py", "two.py"):
        assert "from sharding import host_local_shard_map, mesh" in after[name]
        assert after[name].count("host_local_shard_map(") == 2


def test_a_map_of_another_file_is_converted_on_a_mesh_with_its_own_axis(tmp_path):
    maps = "import jax\n\nscaled = jax.pmap(lambda x, w: x * w, in_axes=(0, None))\n"
    (tmp_path / "maps.py").write_text(maps)
    text = HEAD + LOCAL.replace("jax.pmap(jnp.square)(total)", "scaled(noise, jnp.float32(2))")
    head = text.replace("import numpy as np\n", "import numpy as np\nfrom maps import scaled\n")
    (tmp_path / "program.py").write_text(head)
    after = {Path(each.path).name: each.after.decode() for each in migrate([str(tmp_path)]).changed}
    assert 'devices_mesh,\n            jax.P("devices"),\n' in after["program.py"]
    assert after["program.py"].count('devices_mesh = device_mesh("devices")\n') == 1
    # Nor does an import start JAX's backend, before jax.distributed.initialize().
    assert "mesh = " not in after["maps.py"].replace("mesh=", "")


def test_maps_of_a_function_over_the_same_axis_share_a_mesh(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + ATTRIBUTE)
    (file,) = migrate([str(path)]).changed
    assert file.after.decode().count("jax.sharding.Mesh(") == 1


def test_what_jax_computes_with_is_the_copy_of_the_process(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + COMPUTING)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    assert "average = mean.addressable_data(0)\n" in text
    # The step after it reuses the memory of the state.
    assert "before = jax.tree.map(lambda x: jnp.copy(x.addressable_data(0)), w)\n" in text
    assert len(re.findall(r"addressable_data\(0\)\)?, w\s*\)", text)) == 4
    # What is replicated again stays global.
    assert "jax.tree.map(lambda w: w - 1, jax.tree.map(jnp.copy, w))" in text
    # Of a tree_map with a function of JAX, in its function.
    assert "summed = jax.tree.map(" in text
    assert 'lambda x: jnp.zeros_like(x.addressable_data(0)), {"w": w}["w"]' in text
    assert max(map(len, text.splitlines())) <= 100
    # A number of Python's is not converted, and the name that is imported has one meaning.
    assert 'jax.P("i")), lr\n' in text
    assert text.count("import multihost_utils") == 1


def test_what_was_brought_to_the_host_is_no_array_of_all_processes(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + ON_HOST)
    (file,) = migrate([str(path)]).changed
    # Of four places that expect the leading axis, one has an array that is on devices.
    assert file.after.decode().count("[x] * jax.local_device_count()") == 3
    assert file.after.decode().count("[x.addressable_data(0)] * jax.local_device_count()") == 1


@pytest.mark.parametrize("without", ["", '"key": jax.random.key(3), ', ', "rate": 0.1'])
def test_keys_and_floats_are_replicated_by_a_jitted_identity(tmp_path, without):
    path = tmp_path / "program.py"
    path.write_text((HEAD + REFUSED).replace(without, "", 1))
    (file,) = migrate([str(path)]).changed
    identity = "jax.jit(lambda x: x, out_shardings=jax.NamedSharding(mesh, jax.P()))("
    assert f"state = {identity}" in file.after.decode()


def test_other_state_is_replicated_by_device_put(tmp_path):
    path = tmp_path / "program.py"
    text = (HEAD + REFUSED).replace("jax.random.key(", "jax.random.PRNGKey(")
    path.write_text(text.replace('"rate": 0.1', '"rate": jnp.float32(0.1)'))
    (file,) = migrate([str(path)]).changed
    assert "jax.device_put(state, jax.NamedSharding(mesh, jax.P()))" in file.after.decode()


def test_a_mesh_of_chosen_devices_has_a_name_and_calls_near_it_convert(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + CHOSEN)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    assert text.count("jax.sharding.Mesh(") == 1
    assert text.count("mesh=mesh") == 2
    # Each converts at its call, not in a lambda around the jitted function.
    assert "lambda jitted" not in text
    # The jitted function is edited itself.
    assert "            update, mesh=mesh" in text or "            update,\n" in text


MADE_ONCE = """
sync = None
def total(x):
    global sync
    if sync is None:
        first_devices = jax.devices()[:2]
        sync = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i", devices=first_devices)
    return sync(x)
"""


def test_a_mesh_that_is_made_in_a_branch_is_used_there_alone(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + MADE_ONCE)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    # It is made once, so that the map converts, and not its call behind the if.
    assert "        first_mesh = jax.sharding.Mesh(\n" in text
    assert "    return sync(x)\n" in text


def test_state_of_a_map_over_the_devices_of_a_process_is_placed_on_them(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + OWN)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    assert text.count("jax.sharding.Mesh(") == 1
    assert "jax.NamedSharding(local_mesh, jax.P())" in text
    assert "multihost_utils" not in text


def test_a_field_of_each_device_alone_keeps_its_axis_in_all_maps_of_a_state(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + FIELDS)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    # Where the step is made, and in the function that is given the state.
    assert text.count("state_specs = jax.tree.map(lambda _: jax.P(), state).replace(") == 2
    # Each of the three maps takes it so, and converts its arguments by the same specs; the step
    # its results, too.
    assert text.count(" = host_local_shard_map(") == 3
    assert text.count("in_specs=(state_specs, jax.P(") == 3
    assert text.count("out_specs=(state_specs, jax.P(") == 1


def test_where_lines_are_filled_what_follows_a_call_stands_behind_it(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + FILLED)
    (file,) = migrate([str(path)], style="stacked").changed
    text = file.after.decode()
    assert "function(*multihost_utils.host_local_array_to_global_array(\n" in text
    assert "train_step_pmapped(*multihost_utils.host_local_array_to_global_array(\n" in text
    behind = """(state, batch), mesh, jax.P("batch"))), mesh, jax.P("batch"))"""
    assert behind in text
    assert "\n        )\n" not in text


CALLED = """\
def main(step, state, batch):
    step = jax.pmap(step, axis_name="batch")
    {}


main()
"""
SHARDED = "multihost_utils.host_local_array_to_global_array"
LOCAL_AGAIN = "multihost_utils.global_array_to_host_local_array"


@pytest.mark.parametrize("names", ["state, loss", "self.state, self.loss"])
def test_results_of_a_long_call_are_converted_in_a_statement_below_it(tmp_path, names):
    path = tmp_path / "program.py"
    path.write_text(HEAD + CALLED.format(f"{names} = step(state, batch)"))
    (file,) = migrate([str(path)], style="stacked").changed
    assert f"""\
    {names} = step(
        *{SHARDED}(
            (state, batch), mesh, jax.P("batch")
        ),
    )
    {names} = {LOCAL_AGAIN}(
        ({names}), mesh, jax.P("batch")
    )
""" in file.after.decode()


@pytest.mark.parametrize(
    "statement",
    [
        "state, _ = step(state, batch)",
        "state, state = step(state, batch)",
        "state = loss = step(state, batch)",
        "states[0], loss = step(state, batch)",
        "state = (step(state, batch))",
        "state = (\n        step(state, batch)\n    )",
        "state = step(state, batch)  # a comment",
        "if batch: state = step(state, batch)",
        "state = step(state, batch); show(state)",
        "return step(state, batch)",
    ],
)
def test_other_calls_are_converted_where_they_are(tmp_path, statement):
    path = tmp_path / "program.py"
    path.write_text(HEAD + CALLED.format(statement))
    (file,) = migrate([str(path)], style="stacked").changed
    compile(file.after, "program.py", "exec")
    assert file.after.decode().count(f"{LOCAL_AGAIN}(\n") == 1
    assert f"{LOCAL_AGAIN}(\n        (" not in file.after.decode()


def test_where_lines_are_filled_results_with_state_among_them_leave_room_for_the_call(tmp_path):
    path = tmp_path / "program.py"
    filled = "x = show(\n    1,\n    2)\n" * 9
    calls = "    state, loss = step(state, batch)\n" * 3
    text = CALLED.replace(
        "step, axis_name", "step, in_axes=(None, 0), out_axes=(None, 0), axis_name"
    )
    path.write_text(HEAD + filled + text.format("pass\n" + calls.rstrip()))
    (file,) = migrate([str(path)], style="stacked").changed
    lines = file.after.decode().splitlines()
    assert max(map(len, lines)) <= 88
    assert any(line.endswith(")))(") for line in lines)


HOSTS = """
    import jax
    import jax.numpy as jnp
    DEVICES = {READ}

    def main(batch):
        step = jax.pmap(lambda x: jax.lax.pmean(x, "i"), axis_name="i")
        return step(batch)
"""


@pytest.mark.parametrize(
    ("read", "is_converted"),
    [
        ("{d.process_index: d for d in jax.devices()}", True),
        ("deterministic_data.get_read_instruction_for_host('train', info)", True),
        ("print(jax.devices()[0].process_index)", False),
        ("jax.process_index() == 0", False),
    ],
)
def test_devices_by_process_and_data_by_host_make_a_multi_process_program(
    tmp_path, read, is_converted
):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(HOSTS).replace("{READ}", read))
    (file,) = migrate([str(path)]).changed
    assert (b"host_local_array_to_global_array" in file.after) == is_converted
