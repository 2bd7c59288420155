"""Batches that are split over the devices become global: same numbers, the split gone."""

import os
import pickle
import subprocess
import sys

import pytest

from virtual_devices import xla_flags

pytest.importorskip("click", reason="needs pmapx[tools]")

from batch_programs import ARGUMENTS, BOTH, HEAD, STAYS

from pmapx._src.analysis.project import Project
from pmapx._src.codemod.evidence.evidence import Evidence
from pmapx._src.codemod.merged.merging import merge
from pmapx._src.codemod.migration import migrate
from pmapx._src.codemod.replicated import style
from pmapx._src.codemod.unused_names import without_unused
from pmapx._src.source.rewriting.edits import applied

RUNNER = '''
import pathlib, pickle, sys, types
import jax, numpy as np
import pmapx
jax.config.update("jax_cpu_enable_async_dispatch", False)
pmapx.install()

def put_ahead(iterator, size):
    """What Flax does: each shard of a batch goes to its device."""
    for batch in iterator:
        assert all(len(x) == jax.local_device_count() for x in jax.tree.leaves(batch))
        yield jax.tree.map(jax.numpy.asarray, batch)

def shard(tree):
    n = jax.local_device_count()
    return jax.tree.map(lambda x: x.reshape((n, -1) + x.shape[1:]), tree)

class Examples:
    """As tf.data: batch() stacks so many elements, and drops the rest."""

    def __init__(self, batches):
        self.elements = [jax.tree.map(lambda x: x[i], b) for b in batches for i in range(24)]

    def batch(self, size, drop_remainder):
        new, old = Examples(()), self.elements
        starts = range(0, len(old) - size + 1, size)
        stack = lambda *xs: np.stack(xs)
        new.elements = [jax.tree.map(stack, *old[i : i + size]) for i in starts]
        return new

    def prefetch(self, size):
        return self

    def as_numpy_iterator(self):
        return iter(self.elements)

sys.modules["pipelines"] = types.ModuleType("pipelines")
sys.modules["pipelines"].Examples = Examples
flax, training = types.ModuleType("flax"), types.ModuleType("flax.training")
flax.jax_utils = types.ModuleType("flax.jax_utils")
flax.jax_utils.prefetch_to_device = put_ahead
training.common_utils = types.ModuleType("flax.training.common_utils")
training.common_utils.shard = shard
flax.training = training
sys.modules |= {"flax": flax, "flax.training": training, "flax.jax_utils": flax.jax_utils,
                "flax.training.common_utils": training.common_utils}
results = {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.py")):
    names = {"__name__": path.stem}
    exec(compile(path.read_text(), str(path), "exec"), names)
    results[path.stem] = [(x.dtype, x.shape, x.tobytes())
                          for x in map(np.asarray, jax.tree.leaves(names["RESULT"]))]
pathlib.Path(sys.argv[2]).write_bytes(pickle.dumps(results))
'''


def _restyled(folder, text, named=(), paths=None):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "train.py"
    path.write_text(text)
    project = Project(paths or [str(path)], has_definitions=True)
    module = project.module(str(path), data=text.encode())
    done = style.restyle([module], Evidence(), named, merge=merge)
    edits = done.edits.get(os.path.normpath(str(path)), [])
    return done, _tidied(text, edits)


def _tidied(text, edits):
    before = text.encode()
    return without_unused("a.py", before, applied(before, edits), lambda name: False).decode()


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Run every program before and after; return what each became, and its results."""
    folder = tmp_path_factory.mktemp("merged")
    done, results = {}, {}
    for version in ("before", "after"):
        (folder / version).mkdir()
    for name, text in {**ARGUMENTS, **BOTH}.items():
        before = HEAD + text
        done[name] = (*_restyled(folder / "texts", before), before)
        stem = name.replace(" ", "_").replace("'", "")
        (folder / "before" / f"{stem}.py").write_text(before)
        (file,) = migrate([str(folder / "before" / f"{stem}.py")]).files
        (folder / "after" / f"{stem}.py").write_bytes(file.after)
    (folder / "runner.py").write_text(RUNNER)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env |= {"XLA_FLAGS": xla_flags(8), "JAX_PLATFORMS": "cpu"}
    for version in ("before", "after"):
        out = folder / f"{version}.pickle"
        command = [sys.executable, str(folder / "runner.py"), str(folder / version), str(out)]
        run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, run.stderr[-3000:]
        results[version] = pickle.loads(out.read_bytes())
    return done, results


@pytest.mark.parametrize("case", [*ARGUMENTS, *BOTH])
def test_a_merged_program_gives_the_same_to_the_bit(programs, case):
    _, results = programs
    name = case.replace(" ", "_").replace("'", "")
    assert results["before"][name]
    assert results["before"][name] == results["after"][name]


@pytest.mark.parametrize("case", ARGUMENTS)
def test_the_batch_of_a_step_is_merged_where_its_split_is_seen(programs, case):
    done, text, before = programs[0][case]
    assert list(done.merged_arguments.values()) == [{1}], done.unmerged
    gone = ("shard", "reshape((n", "reshape(n", "prefetch_to_device")
    assert not [word for word in gone if word in text]
    assert len(text.split("\n")) <= len(before.split("\n"))


@pytest.mark.parametrize("case", BOTH)
def test_a_result_is_merged_with_the_reshape_that_merges_it(programs, case):
    done, text, _ = programs[0][case]
    assert list(done.merged_arguments.values()) in ([{0}], [{1}]), done.unmerged
    assert list(done.merged_results.values()) in ([{-1}], [{0}])
    assert "concatenate" not in text
    assert "n_device" not in text


@pytest.mark.parametrize("case", STAYS)
def test_a_batch_that_is_used_otherwise_stays_split(tmp_path, case):
    body, reason = STAYS[case]
    head = HEAD + "from flax.training.common_utils import shard\nn = jax.local_device_count()\n"
    before = head + "one = jax.pmap(lambda x: x + 1)\nbatch = next(loader())\n" + body + "\n"
    done, _ = _restyled(tmp_path, before)
    assert not done.merged_arguments
    assert not done.merged_results
    assert not reason or any(reason in stay.reason for stay in done.unmerged), done.unmerged


def test_a_prefetched_iterator_is_reported_where_it_stands(programs):
    done, text, _ = programs[0]["a map that is prefetched"]
    assert "for batch in batches:" in text
    assert "batches = loader()" in text
    assert "flax" not in text
    assert len(done.prefetched) == 1


@pytest.mark.parametrize("case", ["a tree_map of a lambda", "a wrapper of the project's own"])
def test_what_only_split_is_gone(programs, case):
    _, text, _ = programs[0][case]
    body = text.removeprefix(HEAD)
    assert "def " not in body
    assert "batch = batch" not in body
    assert "tree.map" not in body
    assert "local devices" not in body


def test_a_method_that_only_split_is_gone(programs):
    _, text, _ = programs[0]["a method that splits"]
    assert "prepare" not in text
    assert text.endswith("self.state = note(*step(self.state, batch))\n\n\nTrainer().run()\n")


@pytest.mark.parametrize(
    ("case", "left"),
    [
        ("parts that are split one by one", ['x, y = batch["x"], batch["y"]']),
        ("parts in a list", ['parts = [batch["x"], batch["y"]]', "x, y = parts"]),
        ("names that are split again", ['x, y = batch["x"], batch["y"]']),
    ],
)
def test_a_comprehension_that_only_split_is_gone(programs, case, left):
    _, text, _ = programs[0][case]
    body = [line.strip() for line in text.removeprefix(HEAD).split("\n")]
    first = body.index("for batch in loader():")
    assert body[first + 1 : -3] == left


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Trainer().run()", "class Other(Trainer):\n    def prepare(self, xs):\n        pass\n"),
        ("class Trainer:", "class Trainer(Base):"),
    ],
)
def test_a_method_that_a_subclass_or_a_base_may_share_stays(tmp_path, old, new):
    before = HEAD + "from trainers import Base\n" + ARGUMENTS["a method that splits"]
    _, after = _restyled(tmp_path, before.replace(old, new))
    assert "def prepare(self, xs):" in after.partition("class Other")[0]
    assert "self.prepare(batch)" in after


def test_state_and_batches_change_together(tmp_path):
    before = """import jax
from flax import jax_utils
from flax.training.common_utils import shard
def train(state, batch):
    return state + jax.lax.pmean(batch.sum(), "i")
step = jax.pmap(train, axis_name="i")
def main(batches):
    state = jax_utils.replicate(1.0)
    for batch in jax_utils.prefetch_to_device(map(shard, batches), 2):
        state = step(state, batch)
    return jax_utils.unreplicate(state)
main([])
"""
    done, after = _restyled(tmp_path, before, named=["train:state"])
    assert list(done.merged_arguments.values()) == [{1}]
    assert "in_axes=(None, 0)" in after
    assert "flax" not in after


PACKAGE = {
    "utils.py": """import jax
N = jax.local_device_count()
def shard(xs):
    return jax.tree.map(lambda x: x.reshape((N, -1) + x.shape[1:]), xs)
def unshard(x, padding=0):
    y = x.reshape([x.shape[0] * x.shape[1]] + list(x.shape[2:]))
    return y[:-padding] if padding > 0 else y
""",
    "train.py": """import jax
from utils import shard
import utils
step = jax.pmap(lambda x: x * 2)
for batch in []:
    print(utils.unshard(step(shard(batch)), 3))
""",
    "evaluate.py": """import jax
import utils
step = jax.pmap(lambda x: x * 3)
for batch in map(utils.shard, []):
    print(utils.unshard(step(batch)))
""",
}


@pytest.mark.parametrize("is_first_kept", [False, True])
def test_the_files_of_a_program_agree(tmp_path, is_first_kept):
    texts = dict(PACKAGE)
    if is_first_kept:
        texts["evaluate.py"] += "    print(batch[0])\n"
    paths = {name: str(tmp_path / name) for name in texts}
    for name in paths:
        (tmp_path / name).write_text(texts[name])
    project = Project(paths.values(), has_definitions=True)
    modules = [project.module(path, data=texts[name].encode()) for name, path in paths.items()]
    done = style.restyle(modules, Evidence(), merge=merge)
    after = {name: _tidied(text, done.edits.get(paths[name], [])) for name, text in texts.items()}
    # Both files merge their results with unshard, whatever becomes of their batches.
    assert list(done.merged_results.values()) == [{-1}, {-1}]
    assert "shape[0]" not in after["utils.py"]
    assert list(done.merged_arguments.values()) == ([] if is_first_kept else [{0}, {0}])
    assert len(done.unmerged) == (2 if is_first_kept else 0)
    for name, text in texts.items():
        uses = "def shard", "(shard(batch))", "map(utils.shard, [])", "import shard"
        left = [use for use in uses if use in after[name]]
        assert left == ([use for use in uses if use in text] if is_first_kept else [])


def test_a_function_that_an_unread_file_uses_stays(tmp_path):
    before = HEAD + ARGUMENTS["a wrapper of the project's own"]
    (tmp_path / "other.py").write_text("import train\nprint(train.prepare({}))\n")
    paths = [str(tmp_path / name) for name in ("train.py", "other.py")]
    done, after = _restyled(tmp_path, before, paths=paths)
    assert after == before
    assert "may be used in a file that is not read" in done.unmerged[0].reason


def test_nothing_is_merged_unless_it_is_asked_for(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(HEAD + ARGUMENTS["shard"])
    project = Project([str(path)], has_definitions=True)
    module = project.module(str(path), data=path.read_bytes())
    done = style.restyle([module], Evidence())
    assert not done.edits
    assert not done.merged_arguments


def test_an_import_stays_if_what_is_reshaped_uses_it(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "import jax\nimport jax.numpy as jnp\n\nN = jax.local_device_count()\n"
        "step = jax.pmap(lambda x: x.sum())\n"
        "x = jnp.arange(N * 3.0).reshape(N, 3)\nprint(step(x))\n"
    )
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    assert "jnp.arange(N * 3.0).reshape(-1)" in text
    assert "import jax.numpy as jnp" in text


MIXED = """\
import jax
import jax.numpy as jnp

N = jax.local_device_count()


def make_warmup(scale):
    def warmup(env_states, keys):
        return env_states * scale + jax.random.normal(keys, env_states.shape), keys

    return warmup


warmup = make_warmup(2.0)
warmup = jax.pmap(warmup, axis_name="device")
# (devices, envs, ...)
env_states = jnp.arange(N * 6.0).reshape(N, 2, 3)
env_states, keys = warmup(env_states, jax.random.split(jax.random.key(0), N))
"""
CALLED = "one, _ = make_warmup(1.0)(jnp.zeros((2, 3)), jax.random.key(0))\n"


def test_a_function_that_another_makes_is_edited_if_its_map_alone_has_it(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(MIXED)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    assert "        keys = keys[0]\n" in text
    assert "env_states = jnp.arange(N * 6.0).reshape(-1, 3)\n" in text


def test_an_argument_stays_stacked_beside_others_if_the_function_is_wrapped(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(MIXED + CALLED)
    (file,) = migrate([str(path)]).changed
    text = file.after.decode()
    # One lambda for all arguments, and the comment above the split stays true.
    assert "function(*jax.tree.map(lambda x: x[0], args))" in text
    assert "# (devices, envs, ...)\nenv_states = jnp.arange(N * 6.0).reshape(N, 2, 3)" in text
