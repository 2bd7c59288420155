"""Migrated programs: what they give, what their text is, and what is left alone."""

import ast
from pathlib import Path

import jax
import pytest
from migrated import assert_same, migrate, rewritten, run_all
from notebook_cases import code_of, notebook
from pmap_programs import COUNTED, HEAD, PROGRAMS, SINCE_0_10, WRITTEN_OUT


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every program before and after, each side in one process."""
    root = tmp_path_factory.mktemp("programs")
    (root / "before").mkdir()
    (root / "after").mkdir()
    for name, text in PROGRAMS.items():
        after, _ = rewritten(root / "before", HEAD + text, f"{name}.py")
        (root / "after" / f"{name}.py").write_bytes(after)
    for name in WRITTEN_OUT:
        after, _ = rewritten(root, HEAD + COUNTED + PROGRAMS[name])
        (root / "after" / f"{name} written out.py").write_bytes(after)
    (root / "before" / "notebook.py").write_text(code_of(notebook()))
    after, _ = rewritten(root, notebook(), "a.ipynb")
    (root / "after" / "notebook.py").write_text(code_of(after))
    return run_all(root / "before", "before"), run_all(root / "after", "after")


@pytest.mark.parametrize("name", [*PROGRAMS, "notebook"])
def test_a_migrated_program_gives_the_same_to_the_bit(runs, name):
    if name in SINCE_0_10 and jax.__version_info__ < (0, 10):
        pytest.skip("needs JAX 0.10")
    before, after = runs
    assert_same(before[name], after[name])


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_a_map_that_is_written_out_gives_the_same_to_the_bit(runs, name):
    before, after = runs
    assert_same(before[name], after[f"{name} written out"])


@pytest.mark.parametrize(
    "name", ["at_once_in_a_function", "options_in_each_call", "wrapper_in_each_call"]
)
def test_a_function_that_is_mapped_in_each_call_is_traced_once(runs, name):
    assert runs[1][f"{name} traces"] == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_use_is_rewritten_and_a_second_run_changes_nothing(tmp_path, name):
    after, outcomes = rewritten(tmp_path, HEAD + PROGRAMS[name])
    assert outcomes
    assert [each.reason for each in outcomes] == [""] * len(outcomes)
    ast.parse(after)
    assert rewritten(tmp_path, after) == (after, ())


LEFT = {
    "nested, with values of the outer": (
        "@jax.pmap\ndef outer(x):\n    return jax.grad(lambda v: jax.pmap(lambda y: v)(x))(x)\n",
        "pass them as arguments",
    ),
    "axis_name not a string": ("f = jax.pmap(abs, axis_name=('a', 'b'))\n", "not a string"),
    "removed option": ("f = jax.pmap(abs, global_arg_shapes=None)\n", "global_arg_shapes"),
    "compared": ("is_it = chosen is jax.pmap\n", "compared"),
    "Python's own name taken": ("len = round\nf = jax.pmap(abs)\n", "the name len"),
    "module's name taken": (
        "functools = 1\ndef g(f, x): h = jax.pmap(f); return h(x)\nfor f in abs, abs: g(f, ROWS)\n",
        "the name functools",
    ),
    "passed on and compared": (
        "def g(map_fn): return map_fn is jax.pmap\ng(jax.pmap)\n",
        "compare",
    ),
    "name taken": ("def map_over_devices(): pass\nf = use(jax.pmap)\n", "map_over_devices"),
    "jax taken": ("def g(jax): pass\nf = jax.pmap(abs)\n", "the name jax"),
    "__wrapped__": ("f = jax.pmap(abs)\ng = f.__wrapped__\n", "__wrapped__"),
    "lowered in several processes": (
        "jax.distributed.initialize()\nf = jax.pmap(abs)\ng = f.lower(ROWS).compile()\n",
        "lowered ahead",
    ),
    "nested in several processes": (
        "jax.process_index()\nf = jax.pmap(jax.pmap(abs, 'j'), 'i')\n",
        "multi-process",
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_cannot_be_done_safely_is_left_with_a_reason(tmp_path, case):
    program, reason = LEFT[case]
    text = (HEAD + program).encode()
    after, outcomes = rewritten(tmp_path, text)
    assert after == text
    assert outcomes
    assert all(reason in each.reason for each in outcomes)


def test_an_import_is_added_below_those_of_future(tmp_path):
    text = "from __future__ import annotations\nimport jax\n"
    text += (
        "class A:\n    def f(self, x): return jax.pmap(self.g)(x=x)\n    def g(self, x): return x\n"
    )
    after, _ = rewritten(tmp_path, text)
    assert b"import functools\n" in after
    compile(after, "a.py", "exec")


def test_a_file_that_sets_what_a_function_wraps_is_rewritten(tmp_path):
    text = "import jax\nclass P:\n    def __init__(self, f):\n        self.call = jax.pmap(f)\n"
    _, outcomes = rewritten(tmp_path, text + "        self.__wrapped__ = f\n")
    assert [each.reason for each in outcomes] == [""]


def test_only_sites_with_a_plan_change_beside_one_that_is_left(tmp_path):
    after, outcomes = rewritten(
        tmp_path, HEAD + "f = jax.pmap(abs)\ng = jax.pmap(abs, axis_name=0)\n"
    )
    assert after.endswith(b"    )(*args),\n)\ng = jax.pmap(abs, axis_name=0)\n")
    assert [bool(each.reason) for each in outcomes] == [False, True]


TEXTS = {
    "static arguments of a number that is not known": (
        "step = jax.pmap(f, 'b', static_broadcasted_argnums=[1])\n",
        "step = map_over_devices(f, 'b', static_broadcasted_argnums=[1])\n",
    ),
    "partial": (
        "pmap = functools.partial(jax.pmap, axis_name='i')\n",
        "pmap = functools.partial(map_over_devices, axis_name='i')\n",
    ),
    "unpacked options in a decorator": (
        "@functools.partial(jax.pmap, **options)\ndef g(x): return x\n",
        "@functools.partial(map_over_devices, **options)\ndef g(x): return x\n",
    ),
    "silenced": ("step = jax.pmap(f)  # noqa: PMX501\n", "step = jax.pmap(f)  # noqa: PMX501\n"),
    "others' pmap": ("from lib import pmap\npmap(f)\n", "from lib import pmap\npmap(f)\n"),
}
SHORT = "x = 1\n" * 200


@pytest.mark.parametrize("case", TEXTS)
def test_the_text_of_a_site(tmp_path, case):
    before, expected = TEXTS[case]
    head = "import functools\nimport jax\n" + SHORT
    after = rewritten(tmp_path, head + before)[0].decode()
    assert after.endswith(SHORT + expected)


def test_everything_else_stays_to_the_byte(tmp_path):
    around = "x  =  [ 1,2 ]   # odd \t\n\n\n\nif x :\n\ty = '''a\n  b'''\n\n"
    text = f"#!/usr/bin/python\n# -*- coding: latin-1 -*-\nimport jax\n{around}z='\xe9'\n"
    before = (text + "f = jax.pmap(abs)\n# the end").encode("latin-1")
    after, _ = rewritten(tmp_path, before)
    assert after.decode("latin-1").startswith(text + "f = jax.jit(\n")
    assert after.endswith(b")(*args),\n)\n# the end")


def test_line_ends_of_a_file_are_kept(tmp_path):
    after, _ = rewritten(tmp_path, b"import jax\r\nf = jax.pmap(abs)\r\n")
    assert after.count(b"\r\n") == after.count(b"\n") > 10
    compile(after, "after", "exec")


def test_a_byte_order_mark_is_kept(tmp_path):
    after, _ = rewritten(tmp_path, b"\xef\xbb\xbfimport jax\nf = jax.pmap(abs)\n")
    assert after.startswith(b"\xef\xbb\xbfimport jax\n")
    compile(after, "after", "exec")


def test_imports_are_added_once_and_behind_the_future(tmp_path):
    text = '"""Doc."""\nfrom __future__ import annotations\nfrom jax import pmap\nf = pmap(abs)\n'
    after, _ = rewritten(tmp_path, text)
    lines = after.decode().splitlines()
    assert lines[:3] == [*text.splitlines()[:2], "import jax"]
    assert lines.count("import jax") == 1
    compile(after, "after", "exec")


def test_a_name_that_was_something_else_before_is_an_alias_still(tmp_path):
    first, _ = rewritten(tmp_path, "import jax\nprint(f)\nf = jax.pmap\nf = jax.pmap(f)\n")
    assert rewritten(tmp_path, first)[0] == first


def test_a_later_pmap_uses_the_function_that_is_there(tmp_path):
    first, _ = rewritten(tmp_path, "import jax\nf = use(jax.pmap)\n")
    second, _ = rewritten(tmp_path, first + b"g = use(jax.pmap)\n")
    assert second == first + b"g = use(map_over_devices)\n"


def test_what_the_functions_use_stays_imported(tmp_path):
    text = "import functools\nimport jax\npmap = functools.partial(jax.pmap, axis_name='i')\n"
    after, _ = rewritten(tmp_path, text.replace("functools.partial", "use"))
    assert after.startswith(b"import functools\nimport jax\n")


def test_a_map_that_is_made_again_is_made_once_at_the_top_level(tmp_path):
    text = "import jax\ndef f(x): return x\ndef g(x): return jax.pmap(f)(x), jax.pmap(f)(x)\n"
    after, _ = rewritten(tmp_path, text)
    assert after.count(b"sharded_f = jax.jit(\n    lambda x: jax.shard_map(") == 1
    assert after.endswith(b"\n\n\ndef g(x): return sharded_f(x), sharded_f(x)\n")


CONSTANT = """import jax
AXIS = "i"
N = jax.device_count()
step = jax.pmap(lambda x: jax.lax.psum(x, AXIS), axis_name=AXIS)
print(step(jax.numpy.zeros(N)))
"""


def test_a_mesh_names_its_axis_as_the_specs_do(tmp_path):
    after, _ = rewritten(tmp_path, CONSTANT)
    assert b"mesh = jax.make_mesh(\n    (jax.device_count(),), (AXIS,)," in after
    assert b"in_specs=jax.P(AXIS)" in after
    # One map names it by another text, or the constant has another value later.
    more = "other = jax.pmap(lambda x: x, axis_name='i')\nprint(other(step(jax.numpy.zeros(N))))\n"
    for text in (CONSTANT + more, CONSTANT + "AXIS = 'j'\n"):
        after, _ = rewritten(tmp_path, text)
        assert b"(AXIS,)" not in after


def test_a_constant_of_a_class_does_not_name_the_axis_of_a_mesh(tmp_path):
    lines = CONSTANT.splitlines(keepends=True)
    inside = "".join(f"    {line}" for line in (lines[1], lines[3]))
    after, _ = rewritten(tmp_path, f"{lines[0]}{lines[2]}class A:\n{inside}")
    assert b"make_mesh" in after
    assert b"(AXIS,)" not in after


ABOVE = """import jax
N = jax.device_count()
once = jax.pmap(lambda x: x, axis_name="i")
def f(x): return x
def g(): return jax.pmap(f, axis_name="i")(once(jax.numpy.zeros(N)))
g(), g()
"""


def test_a_map_that_is_made_again_has_the_mesh_of_one_above_it(tmp_path):
    after, _ = rewritten(tmp_path, ABOVE)
    assert after.count(b"make_mesh") == 1
    assert after.index(b"\nmesh = ") < after.index(b"sharded_f = jax.jit(\n    jax.shard_map(")
    # Its function is not there yet.
    lines = ABOVE.splitlines(keepends=True)
    after, _ = rewritten(tmp_path, "".join([*lines[:3], lines[4], lines[3], lines[5]]))
    assert after.count(b"make_mesh") == 1
    assert b"sharded_f = jax.jit(\n    lambda *args: jax.shard_map(" in after
    # Nor is the mesh.
    after, _ = rewritten(tmp_path, "".join([*lines[:2], *lines[3:5], lines[2], lines[5]]))
    assert after.count(b"make_mesh") == 2


def test_a_method_that_is_mapped_in_each_call_is_an_argument_of_what_is_made_once(tmp_path):
    text = (
        "import jax\nclass A:\n    def add(self, x): return jax.pmap(self.f, donate_argnums=0)(x)\n"
    )
    after, _ = rewritten(tmp_path, text)
    assert b"import functools\n" not in after
    assert b"over_devices = jax.jit(\n    lambda function, x: jax.shard_map(" in after
    assert b"    static_argnums=0,\n    donate_argnums=1,\n" in after
    assert b"return over_devices(self.f, x)\n" in after


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("(\n            x, x)", "over_devices(\n            self.f,\n            x, x)\n"),
        (f"({'x' * 90})", f"over_devices(\n            self.f, {'x' * 90}\n        )\n"),
        ("(*x)", "over_devices(self.f, *x)\n"),
        ("(x=x)", "functools.partial(over_devices, self.f)(x=x)\n"),
        (" (x)", "functools.partial(over_devices, self.f) (x)\n"),
    ],
)
def test_the_call_that_maps_a_method_is_given_it_however_it_is_written(tmp_path, call, text):
    head = "import jax\nclass A:\n    def add(self, x):\n        return jax.pmap(self.f)"
    after, _ = rewritten(tmp_path, f"{head}{call}\n")
    assert after.endswith(f"        return {text}".encode())


def test_a_pmap_that_another_file_nests_is_left(tmp_path):
    (tmp_path / "inner.py").write_text("import jax\nmapped = jax.pmap(abs)\n")
    (tmp_path / "outer.py").write_text(
        "import jax\nimport inner\n@jax.pmap\ndef f(x):\n    return inner.mapped(x)\n"
    )
    files = migrate([str(tmp_path)]).files
    assert ["nested" in each.reason for file in files for each in file.outcomes] == [True, True]


def test_a_removed_name_whose_absence_is_looked_after_is_left(tmp_path):
    text = (
        "import jax\ntry:\n    y = jax.device_put_replicated(1, jax.devices())\n"
        "except AttributeError:\n    y = 1\n"
    )
    assert rewritten(tmp_path, text) == (text.encode(), ())


def test_an_import_of_a_removed_name_goes(tmp_path):
    text = "from jax import device_put_sharded, numpy\ny = device_put_sharded([1], numpy.d)\n"
    after, _ = rewritten(tmp_path, text)
    assert after.startswith(b"import jax\nfrom jax import numpy\n")
    assert b"device_put_sharded" not in after


IMPORTS = {
    "used no more": ("from jax import pmap\nf = pmap(abs)\n", False),
    "among others": ("from jax import lax, pmap as my_pmap\nf = my_pmap(abs)\n", False),
    "used still": ("from jax import pmap\nf = pmap(abs)\ng = pmap(abs, 0)\n", True),
    "exported": ("from jax import pmap\n__all__ = ['pmap']\nf = pmap(abs)\n", True),
    "never used": ("import jax\nfrom jax import pmap\nf = jax.pmap(abs)\n", True),
    "with a comment": ("from jax import pmap  # ours\nf = pmap(abs)\n", True),
}


@pytest.mark.parametrize("case", IMPORTS)
def test_an_import_of_pmap_goes_if_nothing_uses_it_now(tmp_path, case):
    text, stays = IMPORTS[case]
    after = rewritten(tmp_path, text)[0].decode()
    imported = [line for line in after.splitlines() if line.startswith("from jax import")]
    assert any("pmap" in line for line in imported) == stays
    compile(after, "after", "exec")


def test_an_import_of_pmap_stays_where_another_file_takes_it_from(tmp_path):
    (tmp_path / "first.py").write_text("from jax import pmap\nf = pmap(abs)\n")
    (tmp_path / "second.py").write_text("from first import pmap\ng = pmap(abs)\n")
    (tmp_path / "third.py").write_text("import first\ng = first.pmap(abs)\n")
    first = migrate([str(tmp_path)]).files[0]
    assert b"from jax import pmap" in first.after


def test_a_file_that_has_no_word_of_pmap_after_its_edits_is_rewritten_too(tmp_path):
    (tmp_path / "steps.py").write_text(
        "import functools, jax\n"
        "@functools.partial(jax.pmap, axis_name='batch')\n"
        "def step(w, x):\n"
        "    return w - jax.lax.pmean((x * w).mean(), 'batch')\n"
    )  # fmt: skip
    (tmp_path / "train.py").write_text(
        "import jax, numpy as np, steps\n"
        "def main():\n"
        "    w = jax.device_put_replicated(np.ones(3), jax.local_devices())\n"
        "    x = np.ones((16, 3)).reshape((jax.device_count(), -1, 3))\n"
        "    w = steps.step(w, x)\n"
        "    print(w[0])\n"
        "main()\n"
    )  # fmt: skip
    done = migrate([str(tmp_path)])
    after = {Path(file.path).name: file.after.decode() for file in done.files}
    assert "device_put_replicated" not in after["train.py"]
    assert "print(w)" in after["train.py"]


GRID = """
import jax
N, M = 4, 2
f = jax.pmap(jax.pmap(lambda x: x * 2, axis_name="j"), axis_name="i")
def main(x):
    {}
    return f(x)
"""


@pytest.mark.parametrize(
    ("assigned", "is_seen"),
    [
        ("x = x.reshape(N, M, -1)", True),
        ("x = x.reshape((N, M) + x.shape[1:])", True),
        ("x, y = (v.reshape((N, M, -1)) for v in (x, x))", True),
        ("x = x.reshape(len(x), M, -1)", False),
        ("N = 2; x = x.reshape(N, M, -1)", False),
        ("x = x.reshape(N, M, -1)\n    if x.size: x = x[:2]", False),
        ("return f(x.reshape(N, M, -1))", False),
        ("x = x.reshape(N, M, -1)\n    return [f(x) for x in x]", False),
    ],
)
def test_the_mesh_of_two_maps_has_a_name_where_the_sizes_are_seen(tmp_path, assigned, is_seen):
    after, _ = rewritten(tmp_path, GRID.format(assigned))
    assert (b"mesh = jax.make_mesh((N, M), " in after.replace(b"(\n    (N", b"((N")) == is_seen
    assert (b".shape[:2]" in after) != is_seen


def test_a_main_function_of_each_script_runs_once(tmp_path):
    script = (
        "import jax\ndef step(x): return x\n"
        "def main(x):\n    p_step = jax.pmap(step)\n    return p_step(x)\nmain(1)\n"
    )
    for name in ("train.py", "evaluate.py"):
        (tmp_path / name).write_text(script)
    assert not any(b"sharded_step" in file.after for file in migrate([str(tmp_path)]).files)


SYNC = """
from functools import partial
import jax
@partial(jax.pmap, axis_name="i", donate_argnums=0)
def sync(state):
    return jax.tree.map(lambda x: jax.lax.pmean(x, "i"), state)
"""
SCRIPT = """
import jax, numpy as np
from package.syncing import sync
def step(state, x):
    return state + jax.lax.pmean(x, "i")
def main(batches):
    jax.distributed.initialize()
    share = 64 // jax.process_count()
    p_step = jax.pmap(step, axis_name="i")
    state = sync(jax.device_put_replicated(np.float32(jax.process_index()), jax.local_devices()))
    for x in batches(share):
        state = p_step(state, x)
    return state[0]
"""


AT_TOP_LEVEL = """
import jax
share = 64 // jax.process_count()
def total(x):
    return jax.lax.psum(x, "i")
def main(x, is_mapped):
    if is_mapped:
        run = jax.pmap(total, axis_name="i")
    else:
        run = jax.jit(total)
    return run(x)
def again(xs):
    return [main(x, True) for x in xs]
"""


def test_arguments_that_share_a_tree_map_are_in_lines_that_fit(tmp_path):
    names = [f"argument_no_{i}" for i in range(3)]
    text = "import jax\nN = jax.local_device_count()\n"
    text += "def main(\n    " + ",\n    ".join([*names, "s"]) + ",\n):\n"
    text += "    g = jax.pmap(f, 'i', in_axes=(0, 0, 0, None))\n"
    text += "    return g(\n        " + ",\n        ".join([*names, "s"]) + ",\n    )\n"
    after, _ = rewritten(tmp_path, text)
    assert after.count(b"lambda x: x[0]") == 1
    assert b" = jax.tree.map(\n            lambda x: x[0], (argument_no_0," in after
    assert max(map(len, after.splitlines())) <= 80


def test_what_is_made_at_the_top_level_does_not_use_the_mesh_of_a_function(tmp_path):
    (tmp_path / "train.py").write_text(AT_TOP_LEVEL)
    (file,) = migrate([str(tmp_path)]).changed
    top, _, below = file.after.decode().partition("def main")
    assert "sharded_total = jax.jit(" in top
    assert "mesh=jax.sharding.Mesh(" in top
    assert "mesh = jax.sharding.Mesh(" in below
    assert "args, mesh, jax.P('i')" in below.replace('"', "'")


def test_a_decorated_function_of_several_programs_is_given_global_arrays_where_they_call_it(
    tmp_path,
):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "syncing.py").write_text(SYNC)
    for name in ("one.py", "two.py", "three.py"):
        (tmp_path / name).write_text(SCRIPT)
    after = {file.path: file.after.decode() for file in migrate([str(tmp_path)]).files}
    shared = next(text for path, text in after.items() if path.endswith("syncing.py"))
    assert "jitted" not in shared
    for name in ("one.py", "two.py", "three.py"):
        text = after[str(tmp_path / name)]
        assert "state = sync(\n        multihost_utils.host_local_array_to_global_array(\n" in text
        assert "global_array_to_host_local_array" not in text  # The state is global from there on.


def test_an_import_sorts_in_by_its_full_name_where_the_file_has_that_order(tmp_path):
    text = (
        "import jax\nfrom jax.example_libraries import optimizers\nimport jax.numpy as jnp\n"
        "jax.distributed.initialize()\nf = jax.pmap(sum, 'i')\nf(jnp.ones(optimizers))\n"
    )
    after, _ = rewritten(tmp_path, text)
    assert after.startswith(
        b"import jax\nfrom jax.example_libraries import optimizers\n"
        b"from jax.experimental import multihost_utils\nimport jax.numpy as jnp\n"
    )


@pytest.mark.parametrize(
    "imports",
    [
        "import jax\nimport jax.numpy as jnp\nimport zlib\nfrom flax import struct\nHERE"
        "from orbax import checkpoint\n",
        "from absl import app\nimport jax\nHEREimport jax.numpy as jnp\nimport numpy as np\n",
        "import jax\nfrom jax import random\nHEREimport jax.numpy as jnp\n",
        "import jax\nHEREfrom jax import lax\nimport jax.numpy as jnp\nfrom jax import random\n",
        "import jax\nimport jax.numpy as jnp\nHEREimport csv\nimport ast\n",
    ],
    ids=["from below import", "by module", "of one module", "by full name", "in no order"],
)
def test_an_import_sorts_into_its_section_as_the_file_does(tmp_path, imports):
    text = imports.replace("HERE", "") + "jax.distributed.initialize()\nf = jax.pmap(sum, 'i')\n"
    after = rewritten(tmp_path, text + "y = f(jnp.ones(8))\n")[0].decode()
    assert after.startswith(
        imports.replace("HERE", "from jax.experimental import multihost_utils\n")
    )


def test_in_doubt_an_import_sorts_in_by_its_module_where_two_spaces_indent(tmp_path):
    text = "import jax\nimport numpy as np\n\n\ndef g(x):\n    return x\n\n\n"
    text += "jax.distributed.initialize()\nf = jax.pmap(g, 'i')\ny = f(np.ones(8))\n"
    line = "from jax.experimental import multihost_utils\n"
    four = rewritten(tmp_path, text)[0].decode()
    two = rewritten(tmp_path, text.replace("    ", "  "))[0].decode()
    assert four.startswith(f"import jax\nimport numpy as np\n{line}")
    assert two.startswith(f"import jax\n{line}import numpy as np\n")


def test_imports_of_functions_that_a_file_is_given_are_sorted_too(tmp_path):
    text = "import abc\nimport sys\n\nimport jax\nimport numpy as np\n\nf = use(jax.pmap)\n"
    after = rewritten(tmp_path, text)[0].decode()
    assert after.startswith("import abc\nimport functools\nimport sys\n\nimport jax\n")


EVALUATOR = """
import jax
class Evaluator:
    def __init__(self, function, is_mapped=True):
        self.share = 64 // jax.process_count()
        if is_mapped:
            self.function = jax.pmap(function, axis_name="i", donate_argnums=0)
        else:
            self.function = jax.jit(function)
    def __call__(self, x):
        return self.function(x)
"""
TRAINER = """
import jax
from package.evaluators import Evaluator
def predict(x):
    return jax.lax.psum(x, "i")
def train(batches):
    p_predict = jax.pmap(predict, "i")
    evaluate = Evaluator(predict)
    return [evaluate(p_predict(x)) for x in batches]
"""


def evaluators(folder, trainers):
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "evaluators.py").write_text(EVALUATOR)
    for name, text in trainers.items():
        (folder / "package" / name).write_text(text)
    done = migrate([str(folder)])
    assert not done.left
    return next(f.after.decode() for f in done.files if f.path.endswith("evaluators.py"))


def test_a_map_that_several_files_and_tests_make_once_each_stays_where_it_is(tmp_path):
    twice = TRAINER.replace("= Evaluator(predict)", "= Evaluator(predict) or Evaluator(predict)")
    run = "import jax\nfrom package import {0}\nx = jax.pmap(abs)({0}.train([]))\n"
    runs = {f"run_{name}.py": run.format(name) for name in ("one", "two")}
    trainers = {"one.py": TRAINER, "two.py": TRAINER, "one_test.py": twice, **runs}
    assert "over_devices" not in evaluators(tmp_path, trainers)


def test_a_map_of_several_processes_that_is_made_again_has_its_mesh_at_the_top_level(tmp_path):
    again = TRAINER.replace("evaluate(p_", "Evaluator(predict)(p_")
    text = evaluators(tmp_path, {"one.py": again})
    made = text[text.index("over_devices = ") : text.index("class Evaluator")]
    assert "lambda function, *args: jax.shard_map(" in made
    assert "mesh=jax.sharding.Mesh(" in made


def test_a_test_makes_its_map_and_mesh_itself(tmp_path):
    (tmp_path / "test_mean.py").write_text(
        "import jax\nfrom lib import mean, spread\n"
        "def test_mean(x):\n    n = jax.device_count()\n"
        "    assert jax.pmap(mean, axis_name='i')(x).shape == (n,)\n"
        "def test_spread(x):\n    assert jax.pmap(spread, axis_name='i')(x)[0] == 1\n"
        "if __name__ == '__main__':\n    pytest.main()\n"
    )
    (file,) = migrate([str(tmp_path)], style="stacked").files
    after = file.after.decode()
    # Collected by a test runner, it must not initialize the backend, nor have names of no test.
    assert "sharded_" not in after
    assert "\nmesh" not in after
    assert after.count("jax.make_mesh(") == 2
