"""State that is put on devices for a map is placed on the map's mesh: one program, not two."""

import re
import sys
import textwrap
import types

import jax
import pytest

from pmapx._src.codemod.migration import migrate

PROGRAM = """
import jax, numpy as np
AXIS = {axis!r}

def train_step(state, x):
    return state + jax.lax.pmean(x.sum(), AXIS), x.sum()

step = jax.pmap(train_step, axis_name=AXIS)
state = jax.device_put_replicated(np.float32(0), jax.local_devices())
for _ in range(3):
    state, _ = step(state, np.ones((jax.local_device_count(), 2), np.float32))
"""


def migrated(tmp_path, text, **options):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(text))
    (file,) = migrate([str(path)], **options).files
    assert not [each.reason for each in file.outcomes if each.reason]
    path.write_bytes(file.after)
    assert not migrate([str(path)]).changed  # A second run changes nothing.
    return file.after.decode()


@pytest.mark.parametrize("options", [
    {},
    {"style": "stacked"},
    {"style": "replicated", "named": ["train_step:state"]},
], ids=["global", "stacked", "replicated"])  # fmt: skip
@pytest.mark.parametrize("axis", ["batch", "chips"])
def test_a_migrated_step_is_compiled_once(tmp_path, options, axis):
    names = {}
    exec(migrated(tmp_path, PROGRAM.format(axis=axis), **options), names)

    assert names["step"]._cache_size() == 1
    assert float(jax.numpy.ravel(names["state"])[0]) == 6


@pytest.mark.parametrize(
    ("brought", "called"),
    [
        ("from flax import jax_utils", "jax_utils.replicate("),
        ("from flax.jax_utils import replicate", "replicate("),
        ("from flax.jax_utils import replicate as everywhere", "everywhere("),
    ],
    ids=str,
)
def test_a_step_is_compiled_once_for_state_that_flax_replicated(
    tmp_path, monkeypatch, brought, called
):
    text = brought + PROGRAM.format(axis="batch").replace("jax.device_put_replicated(", called)
    text = text.replace(", jax.local_devices())", ")")
    flax, utils = types.ModuleType("flax"), types.ModuleType("flax.jax_utils")
    flax.jax_utils, utils.replicate = utils, None
    monkeypatch.setitem(sys.modules, "flax", flax)
    monkeypatch.setitem(sys.modules, "flax.jax_utils", utils)
    names = {}
    exec(migrated(tmp_path, text, style="stacked"), names)

    assert names["step"]._cache_size() == 1
    assert names["state"].tolist() == [6.0] * jax.device_count()


def test_flax_keeps_its_replicate_where_nothing_is_mapped(tmp_path):
    (tmp_path / "a.py").write_text("from flax import jax_utils\nx = jax_utils.replicate(1)\n")
    assert not migrate([str(tmp_path)]).changed


@pytest.mark.parametrize(
    ("maps", "name"),
    [
        ("f = jax.pmap(abs, axis_name='i')", "i"),
        ("f = jax.pmap(abs)", "devices"),
        ("f = jax.pmap(abs); g = jax.pmap(abs, 'i')", "i"),
        ("f = jax.pmap(abs, 'j'); g = jax.pmap(abs, 'i'); h = jax.pmap(len, 'i')", "i"),
        ("f = jax.pmap(abs, axis_name=unknown())", "devices"),
    ],
    ids=str,
)
def test_the_name_is_that_of_most_of_the_files_maps(tmp_path, maps, name):
    text = migrated(
        tmp_path,
        f"import jax\n{maps}\nx = jax.device_put_replicated(1, jax.devices())\n",
        style="stacked",
    )

    assert re.search(rf"NamedSharding\(\w*mesh, jax\.P\(.{name}.\)\)", text)


def test_a_file_that_makes_no_map_asks_the_others(tmp_path):
    (tmp_path / "steps.py").write_text("import jax\nf = jax.pmap(abs, axis_name='batch')\n")
    (tmp_path / "main.py").write_text(
        "import jax\nimport steps\nx = jax.device_put_replicated(1, jax.devices())\nsteps.f(x)\n"
    )

    changed = migrate([str(tmp_path)], style="stacked").changed
    files = {file.path: file.after.decode() for file in changed}

    assert 'jax.NamedSharding(mesh, jax.P("batch"))' in files[str(tmp_path / "main.py")]


OPTIONAL = """
import jax, numpy as np
{first}

class Optimizer:
    def __init__(self, is_mapped, axis_name="batch"):
        self.axis_name = axis_name if is_mapped else None
        self.scale = jax.pmap(self._scale, axis_name=self.axis_name)
        self.step = jax.pmap(self._step, axis_name=self.axis_name, static_broadcasted_argnums=[1])

    def _scale(self, x):
        return x / 2

    def _step(self, x, times):
        return x * times if self.axis_name is None else jax.lax.psum(x, self.axis_name) * times

x = np.arange(jax.local_device_count(), dtype=np.float32)
optimizers = Optimizer(True), Optimizer(False)
RESULTS = [np.asarray(each.step(each.scale(x), 3)) for each in optimizers]
"""


@pytest.mark.parametrize("first", ["", "share = 64 // jax.process_count()"])
def test_a_name_that_may_be_none_is_given_to_a_mesh_in_another_ones_place(tmp_path, first):
    after = migrated(tmp_path, OPTIONAL.format(first=first))
    assert 'self.axis_name or "devices"' in after
    assert after.count("mesh = ") <= 1
    names = {}
    exec(after, names)
    count = jax.local_device_count()
    total = [count * (count - 1) / 4 * 3] * count
    assert [each.tolist() for each in names["RESULTS"]] == [total, [i * 1.5 for i in range(count)]]
