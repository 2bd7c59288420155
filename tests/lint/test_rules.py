"""What the rules find and fix beyond their pages' examples, and what they leave alone.

The programs are in ``rule_cases``, a file for each group of rules.
"""

import importlib
import pathlib
import runpy
import textwrap

import pytest

from pmapx._src.lint.rules import all_rules
from reading import codes, findings, fixed, marked

FILES = sorted(pathlib.Path(__file__).with_name("rule_cases").glob("*.py"))
GROUPS = [runpy.run_path(str(file)) for file in FILES]


def cases(kind):
    """Programs of all groups, by what they show."""
    found = [(name, case) for group in GROUPS for name, case in group.get(kind, {}).items()]
    return pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in found])


@cases("MARKED")
def test_a_rule_marks_these_lines_and_no_others(tmp_path, case):
    code, text = case
    found, expected = marked(tmp_path, code, text, confidence="medium")
    assert found == expected


@cases("LEFT_ALONE")
@pytest.mark.parametrize("unsafe", [False, True])
def test_a_fix_leaves_alone(case, unsafe):
    assert fixed(case, unsafe=unsafe) == case


@cases("FIXED")
def test_a_safe_fix(case):
    before, after = map(textwrap.dedent, case)
    assert fixed(before) == after


@cases("FIXED_UNSAFELY")
def test_an_unsafe_fix_is_made_only_when_asked_for(case):
    before, after = map(textwrap.dedent, case)
    assert fixed(before) == before
    assert fixed(before, unsafe=True) == after


def test_every_rule_with_a_fix_says_how_safe_it_is():
    names = [n for g in GROUPS for kind in ("FIXED", "FIXED_UNSAFELY") for n in g.get(kind, {})]
    for code in {name[:6] for name in names if name.startswith("PMX")}:
        safety = all_rules()[code].page().partition("**Safety.**")[2].partition("**Guide")[0]
        assert "fix" in safety, code


def test_a_lowered_map_in_one_process_has_low_confidence(tmp_path):
    text = "import jax\nc = jax.pmap(lambda x: x).lower(x).compile()\n"
    (found,) = findings(tmp_path, program=text, select=("PMX504",))
    assert str(found.confidence) == "low"


def test_lowering_a_function_of_pmapx_is_not_reported(tmp_path):
    text = (
        "import jax, pmapx\njax.process_index()\nc = pmapx.pmap(lambda x: x).lower(x).compile()\n"
    )
    assert codes(tmp_path, text) == []


def test_a_mesh_is_reported_where_it_is_created_not_where_it_is_used(tmp_path):
    found = findings(
        tmp_path,
        files={
            "meshes.py": 'import jax\nmesh = jax.make_mesh((8,), ("i",))\n',
            "train.py": (
                "import jax\nfrom meshes import mesh\n"
                "f = jax.shard_map(g, mesh=mesh, in_specs=jax.P(), out_specs=jax.P())\n"
            ),
        },
        select=("PMX552",),
    )
    assert [f.place.path.rpartition("/")[2] for f in found] == ["meshes.py"]


def test_how_a_use_is_migrated_follows_its_options(tmp_path):
    text = (
        "import jax\nf = jax.pmap(g, 'i', in_axes=(0, None), out_axes=None, donate_argnums=0,"
        " static_broadcasted_argnums=2)\n"
    )
    (found,) = findings(tmp_path, program=text, select=("PMX501",))
    assert found.hint.startswith(
        "pmapx migrate writes jax.jit(jax.shard_map(g, mesh=mesh, in_specs=(P('i'), P()), "
        "out_specs=P(), check_vma=False), donate_argnums=0, static_argnums=2), with x[0]"
    )


def test_names_in_the_table_are_gone_from_jax_and_their_replacements_are_there():
    jax = pytest.importorskip("jax", "0.10")
    from pmapx._src.lint.rules.removed.removed_names import REPLACEMENTS

    def exists(name):
        parts = name.split(".")
        found = jax
        for position, part in enumerate(parts[1:], start=2):
            if not hasattr(found, part):
                try:
                    importlib.import_module(".".join(parts[:position]))
                except ImportError:
                    return False
            found = getattr(found, part)
        return True

    is_plain = [
        new for new in REPLACEMENTS.values() if all(p.isidentifier() for p in new.split("."))
    ]
    assert [old for old in REPLACEMENTS if exists(old)] == []
    assert [new for new in is_plain if not exists(new)] == []


def test_a_file_whose_calls_are_not_all_followed_is_reported(tmp_path, monkeypatch):
    from pmapx._src.analysis import module

    monkeypatch.setattr(module, "STATEMENTS", 5)
    text = "import jax\nstep = jax.pmap(f)\ndef same(y):\n    return y\n"
    text += "x = same(step(x))\nx = same(1)\n" * 10
    found = findings(tmp_path, program=text, select=("PMX500",))
    assert [f.message.partition(":")[0] for f in found] == ["checked in part"]
