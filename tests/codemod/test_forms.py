"""Which form a use of pmap is given, and that a form is a module and nothing else."""

import importlib

import pytest
from migrated import rewritten

from pmapx._src.analysis.project import Project
from pmapx._src.analysis.sites import find_sites
from pmapx._src.codemod import forms
from pmapx._src.codemod.decide.nested_pmaps import nestings
from pmapx._src.codemod.decide.process_model import Surroundings
from pmapx._src.codemod.write import plans

COUNTED = "N = jax.local_device_count()\n"
OF_PROCESSES = COUNTED + "SHARE = BATCH // jax.process_count()\n"
CASES = {
    "a map whose axes can be read": (COUNTED + "f = jax.pmap(abs)", "shard_map_call"),
    "the same as a decorator": (COUNTED + "@jax.pmap\ndef f(x): return x", "shard_map_decorator"),
    "in a multi-process program": (
        OF_PROCESSES + "def main(): return jax.pmap(abs)",
        "shard_map_call",
    ),
    "on devices that nobody counts": ("f = jax.pmap(abs)", "shard_map_call"),
    "a decorator nobody counts devices for": (
        "@jax.pmap\ndef f(x): return x",
        "shard_map_decorator",
    ),
    "at import of a multi-process program": (OF_PROCESSES + "f = jax.pmap(abs)", "shard_map_call"),
    "a decorator of a multi-process program": (
        OF_PROCESSES + "@jax.pmap\ndef f(x): return x",
        "shard_map_decorator",
    ),
    "comments inside": ("f = jax.pmap(\n    abs,  # why\n)", "shard_map_call"),
    "with axes from the end": (COUNTED + "f = jax.pmap(abs, in_axes=-1)", "pmap_options"),
    "nested in another": ("f = jax.pmap(jax.pmap(lambda x: x))", "shard_map_call inner_map"),
    "nested in another, with unknown arguments": (
        COUNTED + "f = jax.pmap(jax.pmap(abs))",
        "pmap_options pmap_options",
    ),
    "passed on": ("f = use(jax.pmap)", "pmap_options"),
    "unpacked options": ("f = jax.pmap(abs, **options)", "pmap_options"),
    "static positions that are computed": (
        "f = jax.pmap(abs, static_broadcasted_argnums=range(2))",
        "pmap_options",
    ),
    "a decorator below its @": ("@\\\njax.pmap\ndef f(x): return x", "pmap_options"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_use_is_given_the_first_form_that_applies(case):
    text, expected = CASES[case]
    data = f"import jax\n{text}\n".encode()
    module = Project(["a.py"]).module("a.py", data=data)
    planned = plans.plan(module, find_sites(module), nestings([module]), Surroundings.of(data))
    assert " ".join(plan.form.__name__.rpartition(".")[2] for plan in planned) == expected


def test_a_form_has_a_preference_of_its_own_and_says_what_it_writes():
    found = forms.all_forms()
    assert len({form.PREFERENCE for form in found}) == len(found) > 1
    for form in found:
        assert "``" in importlib.import_module(form.__name__).__doc__
    assert found[-1].obstacle(None) == ""  # Something can always be written.


def test_sites_inside_one_another_are_written_from_the_inside_out(tmp_path):
    text = "import jax\nf = jax.pmap(lambda x: jax.pmap, 'i', devices=d(jax.pmap(g)))\n"
    after, outcomes = rewritten(tmp_path, text)
    assert [each.reason for each in outcomes] == ["", "", ""]
    lines = ["f = map_over_devices(", "    lambda x: map_over_devices,", "    'i',"]
    lines += ["    devices=d(", "        jax.jit(\n"]
    assert "\n".join(lines) in after.decode()
    assert after.endswith(b")(*args),\n        ),\n    ),\n)\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f = (jax.pmap)((g))", "(g)(*jax.tree.map(lambda x: x[0], args))"),
        ("f = jax.pmap(f := g)", "(f := g)"),
        ("@(jax.pmap)\ndef f(x): return x", "@(jax.jit)\ndef f(x):\n    mesh = "),
    ],
    ids=str,
)
def test_parentheses_around_an_argument_stay(tmp_path, before, after):
    done = rewritten(tmp_path, f"import jax\n{before}\n")[0].decode()
    assert after in done, done


def test_an_indented_comment_stays_with_its_block(tmp_path):
    text = "import jax\ntry:\n    import flax\nexcept ImportError:\n    flax = None\n    # old\n"
    after = rewritten(tmp_path, text + "f = use(jax.pmap)\n")[0].decode()
    assert after.startswith(f"import functools\n\n{text}\n\ndef each_leaf(")


def test_an_import_that_a_block_needs_becomes_pass(tmp_path):
    text = "import jax\ndef f(x):\n    if x:\n        y = 1\n        z = 2\n    else:\n"
    after = rewritten(tmp_path, text + "        from jax import pmap\n    return pmap(abs)\n")[0]
    assert b"    else:\n        pass\n    return jax.jit(\n" in after


def test_what_is_inside_an_f_string_is_written_at_its_place_or_left(tmp_path):
    text = (
        'import jax\ng = jax.pmap(abs)\ny = g(1)\nprint(f\'{jax.pmap(abs)} {float(y[0])}\', f"""\n'
        '  a {jax.pmap(len)}\n{float(y[0])} {jax.device_put_replicated(1, [])}""")\n'
    )
    after, outcomes = rewritten(tmp_path, text)
    assert not outcomes[0].reason
    assert {each.reason for each in outcomes} <= {"", plans.MISPLACED}
    changed = after.decode().replace("map_over_devices", "jax.pmap")
    changed = changed.replace("{device_put", "{jax.device_put")
    assert changed.endswith(text.partition("\nprint(")[2])


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("", "\n    @jax.jit\n    def g(y): pass\n"),
        ("", "    # Why.\n    y = 1\n"),
        ('    """D."""\n\n', "    # Why.\n    y = 1\n"),
    ],
    ids=["blank line below the signature", "comment", "comment below a docstring"],
)
def test_what_takes_the_device_axis_off_separates_no_comment_or_blank_line(tmp_path, above, below):
    head = "import jax\nN = jax.device_count()\n@jax.pmap\n"
    text = f"{head}def f(x):\n{above}{below}    return x\n"
    done = rewritten(tmp_path, text)[0].decode()
    assert f"def f(x):\n{above}    x = jax.tree.map(lambda x: x[0], x)\n{below}    return" in done


def test_a_definition_below_a_docstring_gets_a_blank_line(tmp_path):
    text = 'import jax\nN = jax.device_count()\n@jax.pmap\ndef f(x):\n    """D."""\n'
    done = rewritten(tmp_path, text + "    def g(y): pass\n    return x\n")[0].decode()
    assert '"""D."""\n    x = jax.tree.map(lambda x: x[0], x)\n\n    def g(y): pass\n' in done


@pytest.mark.parametrize("other", ["g = jax.pmap(make(2))\n", "make(2)(ROWS[0])\n"])
def test_a_function_that_is_made_again_keeps_its_body(tmp_path, other):
    body = "    def scaled(x):\n        return {'y': x.sum() * scale}\n    return scaled\n"
    text = f"import jax\ndef make(scale):\n{body}"
    alone = rewritten(tmp_path, f"{text}f = make(1)\nf = jax.pmap(f)\n")[0].decode()
    several = rewritten(tmp_path, f"{text}f = make(1)\nf = jax.pmap(f)\n{other}")[0].decode()
    assert body not in alone
    assert body in several
    assert "function=f: " in several


def test_a_map_inside_jit_gets_no_second_jit(tmp_path):
    text = "import jax\nN = jax.device_count()\ndef main(f):\n    g = jax.jit(jax.pmap(f))\n"
    done = rewritten(tmp_path, text)[0].decode()
    assert done.count("jax.jit(") == 1
    assert "g = jax.jit(\n        jax.shard_map(" in done


def test_many_arguments_and_results_get_their_axis_together_and_within_the_line(tmp_path):
    names = ["parameters", "optimizer_state", "accumulated_gradients", "dropout_key"]
    given = ", ".join(names)
    text = (
        "import jax\nN = jax.device_count()\n@jax.pmap\n"
        f"def f({given}):\n    y = update({given})\n    return {given}\n"
        f"@functools.partial(jax.pmap, out_axes=(0, 0, 0, 0, None))\n"
        f"def g({given}):\n    y = 1\n    return {given}, count\n"
    )
    done = rewritten(tmp_path, f"import functools\n{text}")[0].decode()
    assert max(map(len, done.splitlines())) < 110
    # Names that do not fit a line have another.
    assert done.count("lambda x: x[0]") == 4
    # ``count`` may be a number.
    assert done.count("lambda x: x[None]") == done.count("lambda x: jax.numpy.expand_dims") == 1
    assert "        count,\n    )\n" in done
