"""Kept partials and wrappers of pmap are spelled out at their uses, if all of these are seen."""

import pytest
from migrated import migrate

from pmapx._src.codemod.program import Program
from pmapx._src.source.rewriting.edits import applied

PARTIAL = "over_devices = functools.partial(jax.pmap, axis_name=AXIS)\n"
WRAPPER = (
    "def over_devices(f, axis_name=AXIS, **options):\n"
    "    return jax.pmap(f, axis_name, **options)\n"
)
HEAD = "import functools\nimport jax\nAXIS = 'i'\n"
USES = {
    "x = over_devices(f, donate_argnums=0)\n": (
        "x = jax.pmap(f, axis_name=AXIS, donate_argnums=0)\n"
    ),
    "x = over_devices(f, axis_name='j')\n": "x = jax.pmap(f, axis_name='j')\n",
    "@over_devices\ndef g(x): return x\n": (
        "@functools.partial(jax.pmap, axis_name=AXIS)\ndef g(x): return x\n"
    ),
    "@functools.partial(over_devices, in_axes=1)\ndef g(x): return x\n": (
        "@functools.partial(jax.pmap, axis_name=AXIS, in_axes=1)\ndef g(x): return x\n"
    ),
}


def spelled(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    edits = Program.read([str(folder)], (), None).spelled_out()
    return {
        path.stem: applied(path.read_bytes(), edits.get(str(path), ())).decode()
        for path in folder.glob("*.py")
    }


@pytest.mark.parametrize("kept", [PARTIAL, WRAPPER], ids=["partial", "wrapper"])
@pytest.mark.parametrize("use", USES)
def test_a_use_in_the_same_file(tmp_path, kept, use):
    found = spelled(tmp_path, a=f"{HEAD}{kept}{use}")
    assert found["a"].endswith(f"AXIS = 'i'\n{USES[use]}")


def test_a_use_in_another_file_has_the_name_of_the_axis(tmp_path):
    found = spelled(
        tmp_path,
        lib=HEAD + PARTIAL,
        one="import lib\nx = lib.over_devices(f)\n",
        two="from lib import AXIS, over_devices\nimport jax\nx = over_devices(f)\n",
        three="import jax\nfrom lib import over_devices\nx = over_devices(f)\n",
    )
    assert found["lib"] == "import jax\nAXIS = 'i'\n"
    assert found["one"] == "import jax\nimport lib\nx = jax.pmap(f, axis_name=lib.AXIS)\n"
    assert found["two"] == "from lib import AXIS\nimport jax\nx = jax.pmap(f, axis_name=AXIS)\n"
    assert found["three"] == 'import jax\nx = jax.pmap(f, axis_name="i")\n'


@pytest.mark.parametrize(
    "use",
    [
        "x = use(over_devices)\n",
        "x = over_devices\n",
        "x = over_devices(f, **options)\n",
        "x = over_devices(f, in_axes=Data(0, None))\n",
        "x = over_devices(*args)\n",
        "over_devices = jax.jit\n",
        "x = getattr(module, 'over_devices')\n",
        "x = thing.over_devices(f)\n",
    ],
)
def test_what_is_used_in_another_way_is_kept(tmp_path, use):
    text = f"{HEAD}{PARTIAL}y = over_devices(f)\n{use}"
    assert spelled(tmp_path, a=text)["a"] == text


LOCAL = "def main(f):\n    p = functools.partial(jax.pmap, axis_name='i', in_axes=(0, None))\n"


def test_a_partial_of_a_function_is_spelled_out_in_it(tmp_path):
    found = spelled(tmp_path, a=f"{HEAD}{LOCAL}    return p(f, donate_argnums=0)\n")
    expected = "    return jax.pmap(f, axis_name='i', in_axes=(0, None), donate_argnums=0)\n"
    assert found["a"].endswith(f"def main(f):\n{expected}")


@pytest.mark.parametrize(
    "rest",
    [
        "    return p\n",
        "    p = jax.jit\n    return p(f)\n",
        "    return p(f)\ndef other():\n    return p(f)\n",
        "    return lambda p: p(f)\n",
    ],
    ids=["returned", "bound again", "used elsewhere", "a parameter of the same name"],
)
def test_a_partial_of_a_function_that_may_be_something_else_is_kept(tmp_path, rest):
    assert spelled(tmp_path, a=HEAD + LOCAL + rest)["a"] == HEAD + LOCAL + rest


@pytest.mark.parametrize("count", [1, 2])
def test_in_several_processes_only_what_is_used_once_is_spelled_out(tmp_path, count):
    head = f"{HEAD}jax.distributed.initialize()\n"
    text = head + PARTIAL + "x = over_devices(f)\n" * count
    found = spelled(tmp_path, a=text)["a"]
    assert (found == text) == (count > 1)
    assert found.endswith("jax.pmap(f, axis_name=AXIS)\n") == (count == 1)


def test_no_function_is_added_and_outcomes_are_at_the_uses(tmp_path):
    text = f"{HEAD}N = jax.local_device_count()\n{PARTIAL}step = over_devices(lambda x: x + 1)\n"
    (tmp_path / "a.py").write_text(text)
    (file,) = migrate([str(tmp_path)]).files
    assert file.before.decode() == text
    assert [(each.place.line, each.reason) for each in file.outcomes] == [(6, "")]
    assert b"def " not in file.after
    assert b"pmap" not in file.after
    assert b"jax.shard_map(" in file.after


IN_PLACE = {
    "a dict of options": (
        "options = dict(axis_name='i', donate_argnums=(0,))\nx = jax.pmap(f, **options)\n",
        "x = jax.pmap(f, axis_name='i', donate_argnums=(0,))\n",
    ),
    "a dict in a function": (
        "def main():\n    kw = {'axis_name': 'i'}\n    return jax.pmap(f, in_axes=1, **kw)\n",
        "def main():\n    return jax.pmap(f, in_axes=1, axis_name='i')\n",
    ),
}


@pytest.mark.parametrize("case", IN_PLACE)
def test_options_that_are_written_elsewhere_go_to_the_call(tmp_path, case):
    before, after = IN_PLACE[case]
    assert spelled(tmp_path, a=HEAD + before)["a"] == HEAD + after


@pytest.mark.parametrize(
    "text",
    [
        "kw = dict(axis_name='i')\nkw['in_axes'] = 1\nx = jax.pmap(f, **kw)\n",
        "kw = dict(axis_name='i')\nif big:\n    kw = dict(axis_name='j')\nx = jax.pmap(f, **kw)\n",
        "kw = dict(axis_name=name())\nx = jax.pmap(f, **kw)\n",
        "kw = dict(axis_name='i')\nx = jax.pmap(f, **kw)\nother(**kw)\n",
        "@lambda f: jax.pmap(f, axis_name='i')\ndef g(x): return x\n",
    ],
)
def test_options_that_may_change_stay_where_they_are(tmp_path, text):
    assert spelled(tmp_path, a=HEAD + text)["a"] == HEAD + text
