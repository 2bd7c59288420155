"""``pmapx migrate --to jit --fsdp``: whole programs with their state sharded, before and after.

The first line of a program in ``fsdp_programs`` is what it must become: ``# fsdp: params`` for
state that is sharded, ``# replicated: words`` with words of why it is not.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from virtual_devices import xla_flags

pytest.importorskip("pmapx._src.codemod.migration", reason="needs pmapx[tools]")
pytest.importorskip("click.testing", reason="needs pmapx[tools]")

from click.testing import CliRunner

import pmapx
from pmapx._src.cli._group import group
from pmapx._src.codemod.report import page

PROGRAMS = Path(__file__).parent / "fsdp_programs"
# Runs the program, and prints what part of each array of its state a device holds.
RUN = """
import json, jax, numpy as np, train
from jax.sharding import PartitionSpec
from pmapx._src.audit.what_if import sharded_spec

state = [x for x in jax.tree.leaves(train.main()) if isinstance(x, jax.Array)]
parts = [x.size // max(x.addressable_shards[0].data.size, 1) for x in state]
print("RESULT", json.dumps([[list(x.shape), part] for x, part in zip(state, parts)]))
function = getattr(train, "fsdp_shardings", None)
if function is None and hasattr(train, "steps"):
    function = getattr(train.steps, "fsdp_shardings", None)
shapes = [(), (0,), (8,), (1016,), (1024,), (1023, 3), (8, 128), (3, 512), (96, 64), (64, 96),
          (2, 512, 5), (71, 91), (64, 1, 64), (0, 1024)]
for shape in shapes if function else ():
    sharding = function(np.zeros(shape))
    [axis] = sharding.mesh.axis_names
    wanted = sharded_spec(shape, PartitionSpec(), axis, 8) or PartitionSpec()
    assert sharding.spec == wanted, (shape, sharding.spec, wanted)
"""


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", xla_flags(8))
    # Of many steps in flight, XLA's CPU backend now and then finishes none.
    folder = tmp_path_factory.mktemp("site")
    setting = 'import jax\njax.config.update("jax_cpu_enable_async_dispatch", False)\n'
    (folder / "sitecustomize.py").write_text(setting)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def copied(name, folder):
    source = PROGRAMS / name
    if source.is_dir():
        shutil.copytree(source, folder, dirs_exist_ok=True)
    else:
        shutil.copy(source, folder / "train.py")
    return folder / "train.py"


def printed(folder, *words):
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert not done.returncode, done.stderr[-2000:]
    return done.stdout


def numbers(text):
    return [float(each) for each in re.findall(r"-?\d+\.\d+(?:e[-+]?\d+)?", text)]


def check_program(name, folder, monkeypatch, **options):
    monkeypatch.chdir(folder)
    program = copied(name, folder)
    kind, words = re.match(r"# (fsdp|replicated): (.*)", program.read_text()).groups()
    before = printed(folder, "-m", "pmapx", "run", "train.py")
    command = [sys.executable, "train.py"]
    done = pmapx.migrate(["."], to="jit", fsdp=True, command=command, **options)
    for file in done.changed:
        Path(file.path).write_bytes(file.after)
    steps = [form for form in done.forms if not form.reason]
    assert steps
    notes = "\n".join(note for form in steps for note in form.notes)
    after = printed(folder, "-c", RUN)
    assert "shard_map(" not in program.read_text()
    found, result = after.split("RESULT")
    np.testing.assert_allclose(numbers(found), numbers(before), rtol=2e-3, atol=1e-5)
    arrays = json.loads(result)
    if kind == "replicated":
        assert re.search(f"its state stays replicated: .*{words}", notes)
        assert "fsdp_shardings" not in program.read_text()
        assert all(part == 1 for _, part in arrays)
        return notes
    assert "stays replicated" not in notes
    assert "FSDP over" in page.render(page.report(done))
    for name in words.split(", "):
        [row] = re.findall(rf"^{re.escape(name)} .*$", notes, re.M)[:1]
        assert re.search(r"\d+ K?i?B\s+\d+ K?i?B", row.replace(".", ""))
    for shape, part in arrays:
        is_sharded = np.prod(shape) >= 1024 and any(n % 8 == 0 for n in shape)
        assert part == (8 if is_sharded else 1)
    return notes


@pytest.mark.slow
def test_parameters_and_momentum_are_sharded_from_step_to_step(tmp_path, monkeypatch):
    notes = check_program("momentum.py", tmp_path, monkeypatch, topology="cpu:16")
    # Of velocity, (64, 16) is sharded; (16,) and (16, 3) are too small. All are of float32.
    assert re.search(r"^velocity +4.25 KiB +768 B$", notes, re.M)
    assert re.search(r"^velocity +4.25 KiB +512 B$", notes, re.M)
    costs = re.findall(r"cost of a call on cpu:16: jax.jit 1 all-reduce, .*; jax.shard_map", notes)
    assert len(costs) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*os.listdir(PROGRAMS)} - {"momentum.py"}))
def test_state_is_sharded_where_shapes_divide(name, tmp_path, monkeypatch):
    check_program(name, tmp_path, monkeypatch)


PROCESSES = """\
import jax
import jax.numpy as jnp
import numpy as np


def train_step(w, x, y):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * jax.lax.pmean(grads, "batch"), jax.lax.pmean(loss, "batch")


step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)


def shard(batch):
    return batch.reshape((jax.local_device_count(), -1) + batch.shape[1:])


def main():
    jax.distributed.initialize()
    rng = np.random.default_rng(jax.process_index())
    w = jax.device_put_replicated(np.ones(1024, "float32"), jax.local_devices())
    for _ in range(2):
        x = rng.normal(size=(16, 1024)).astype("float32") / 32
        y = rng.normal(size=(16,)).astype("float32")
        w, loss = step(w, shard(x), shard(y))
        print("loss", float(loss[0]))
    END


main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "why"),
    [("pass", ""), ("print(np.asarray(w[0]).tolist())", "spans non-addressable")],
)
def test_state_is_sharded_over_processes_unless_one_fetches_it(end, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROCESSES.replace("END", end))
    command = [sys.executable, "-m", "pmapx", "run", "-n", "2", "--devices", "4", "train.py"]
    done = pmapx.migrate(["."], to="jit", fsdp=True, command=command)
    [form], [file] = done.forms, done.files
    assert not form.reason
    assert (b"fsdp_shardings" in file.after) == (not why)
    assert b"jax.make_array_from_process_local_data(" in file.after
    if why:
        assert why in form.notes[-1]
    else:
        assert re.search(r"^w +4.00 KiB +512 B$", "\n".join(form.notes), re.M)


def test_fsdp_is_of_the_jit_form(tmp_path):
    (tmp_path / "train.py").write_text("import jax\nstep = jax.pmap(abs)\n")
    result = CliRunner().invoke(group, ["migrate", str(tmp_path), "--fsdp"])
    assert result.exit_code == 2
    assert "add --to jit -- python train.py" in result.output
    with pytest.raises(ValueError, match="needs to='jit'"):
        pmapx.migrate([str(tmp_path)], fsdp=True)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--topology", "cpu:16"], "--topology needs --to jit"),
        (["--to", "jit", "--topology", "v5z:9"], "is not a known device family"),
    ],
)
def test_a_topology_is_checked_before_the_program_runs(options, why, tmp_path):
    (tmp_path / "train.py").write_text("import jax\nstep = jax.pmap(abs)\n")
    command = ["migrate", str(tmp_path), *options, "--", "python", "train.py"]
    result = CliRunner().invoke(group, command)
    assert result.exit_code == 2
    assert why in result.output


def test_fsdp_needs_axes_for_which_jax_chooses_shardings(tmp_path):
    (tmp_path / "train.py").write_text("import jax\nstep = jax.pmap(abs)\n")
    options = ["--to", "jit", "--fsdp", "--mesh", "explicit"]
    command = ["migrate", str(tmp_path), *options, "--", "python", "train.py"]
    result = CliRunner().invoke(group, command)
    assert result.exit_code == 2
    assert "--fsdp needs --mesh auto" in result.output
