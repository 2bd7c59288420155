"""Files that are not what they should be, links, and code that must not run."""

import json
import os
import sys
import textwrap

import pytest

from pmapx._src.lint.check import check
from pmapx._src.lint.settings import make
from pmapx._src.source import files
from reading import findings

USE = "import jax\nstep = jax.pmap(lambda x: x)\n"


def check_all(path, **options):
    return check([str(path)], make({"confidence": "low"}, **options), processes=1).findings


def only(found):
    (finding,) = found
    return finding


BROKEN = {
    "syntax error": (USE + "def f(:\n").encode(),
    "null bytes": USE.encode() + b"\0\0",
    "wrong encoding": USE.encode() + b"# \xff\xfe\n",
    "unknown encoding": b"# -*- coding: klingon -*-\n" + USE.encode(),
    "deep parentheses": USE.encode() + b"x = " + b"(" * 5000 + b")" * 5000,
    "deep attributes": USE.encode() + b"x = a" + b".b" * 20000,
    "deep sums": USE.encode() + b"x = 1" + b" + 1" * 50000,
    "deep calls": USE.encode() + b"x = f" + b"()" * 5000,
    "deep nots": USE.encode() + b"x = " + b"not " * 20000 + b"y",
    "indentation": USE.encode() + b"".join(b" " * n + b"if x:\n" for n in range(300)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_line_and_the_others_are_checked(tmp_path, case):
    (tmp_path / "bad.py").write_bytes(BROKEN[case])
    (tmp_path / "good.py").write_text(USE)
    found = check_all(tmp_path)
    assert [f.place.path.rpartition(os.sep)[2] for f in found if f.code == "PMX501"][-1:] == [
        "good.py"
    ]
    bad = [f for f in found if f.place.path.endswith("bad.py")]
    assert [f.code for f in bad] in (["PMX500"], ["PMX501"])
    assert all("\n" not in f.message and len(f.message) < 300 for f in bad)


def test_a_broken_file_without_a_use_is_not_our_business(tmp_path):
    (tmp_path / "bad.py").write_bytes(b"def f(:\n\0\xff")
    assert check_all(tmp_path) == []


def test_a_huge_file_is_said_and_not_read(tmp_path, monkeypatch):
    monkeypatch.setitem(files.LARGEST, ".py", 1000)
    (tmp_path / "huge.py").write_text(USE + "#" * 2000)
    assert "too large" in only(check_all(tmp_path)).message


def test_an_unreadable_file_is_said(tmp_path, monkeypatch):
    (tmp_path / "secret.py").write_text(USE)
    (tmp_path / "gone.py").symlink_to(tmp_path / "secret.py")
    opened = os.open

    def refuse(path, *args, **kwargs):
        if str(path).endswith(("secret.py", "gone.py")):
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(files.os, "open", refuse)
    assert only(check_all(tmp_path)).message == "not checked: permission denied"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "good.py").write_text(USE)
    assert [f.code for f in check_all(tmp_path)] == ["PMX501"]
    named = check([str(tmp_path / "pipe.py")], processes=1).findings
    assert only(named).message == "not checked: not a plain file"


def test_links_out_of_the_paths_are_not_followed(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "other.py").write_text(USE)
    (inside / "file.py").symlink_to(outside / "other.py")
    (inside / "folder").symlink_to(outside)
    (inside / "loop").symlink_to(inside)
    assert check_all(inside) == []


def test_a_link_within_the_paths_is_read_once(tmp_path):
    (tmp_path / "a.py").write_text(USE)
    (tmp_path / "b.py").symlink_to(tmp_path / "a.py")
    assert len(check_all(tmp_path)) == 1


def test_nothing_that_is_read_is_imported_or_run(tmp_path):
    proof = tmp_path / "proof"
    text = f"import pathlib\npathlib.Path({str(proof)!r}).touch()\n" + USE
    (tmp_path / "trap.py").write_text(text)
    (tmp_path / "user.py").write_text(
        "import jax, trap\nfrom trap import step\nf = jax.pmap(step)\n"
    )
    before = set(sys.modules)
    assert len(check_all(tmp_path)) >= 2
    assert not proof.exists()
    assert "trap" not in set(sys.modules) - before


def test_folders_that_hold_other_peoples_code_are_left_out(tmp_path):
    for folder in (".git", "__pycache__", "node_modules", ".venv", "env/lib/site-packages"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.py").write_text(USE)
    own = tmp_path / "my_env"
    own.mkdir()
    (own / "pyvenv.cfg").touch()
    (own / "x.py").write_text(USE)
    assert check_all(tmp_path) == []


def test_exclude_takes_names_folders_and_patterns(tmp_path):
    for name in ("a.py", "b_test.py", "old/c.py", "old/deep/d.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(USE)
    found = check_all(tmp_path, exclude=("*_test.py", "old/"))
    assert [f.place.path.rpartition(os.sep)[2] for f in found] == ["a.py"]


def test_odd_line_ends_and_wide_characters_keep_their_places(tmp_path):
    text = "import jax\r\nü = '\f日本'; f = jax.pmap(g)\r\n"
    (tmp_path / "a.py").write_bytes(text.encode())
    finding = only(check_all(tmp_path))
    assert (finding.place.line, finding.place.column) == (2, text.split("\n")[1].index("jax"))


def test_a_byte_order_mark_is_taken(tmp_path):
    (tmp_path / "a.py").write_bytes(b"\xef\xbb\xbf" + USE.encode())
    assert [f.code for f in check_all(tmp_path)] == ["PMX501"]


def test_another_encoding_that_is_declared_is_taken(tmp_path):
    (tmp_path / "a.py").write_bytes(b"# coding: latin-1\n# \xe9\n" + USE.encode())
    assert [f.code for f in check_all(tmp_path)] == ["PMX501"]


def test_a_function_that_calls_itself_in_many_ways_ends_soon(tmp_path):
    body = "\n".join(
        f"def f{n}(g, x):\n    return f{(n + 1) % 40}(jax.pmap(g), f{(n + 7) % 40}(g, x))"
        for n in range(40)
    )
    (tmp_path / "a.py").write_text("import jax\n" + body)
    assert {f.code for f in check_all(tmp_path)} >= {"PMX501"}


def test_several_processes_find_what_one_finds(tmp_path):
    for n in range(6):
        text = (
            f"import jax\nfrom shared import spread\nf = jax.pmap(lambda x: x + {n})\ny = f(1)[0]\n"
        )
        (tmp_path / f"m{n}.py").write_text(text + "z = spread(f)(1)[0]\n")
    (tmp_path / "shared.py").write_text("import jax\ndef spread(f): return jax.pmap(f)\n")
    one = findings(tmp_path, USE)
    several = check([str(tmp_path)], make({"confidence": "low"}), processes=2).findings
    assert several == one
    assert len(one) > 12


def notebook(*cells, version=4):
    code = [{"cell_type": "code", "source": textwrap.dedent(cell)} for cell in cells]
    markdown = {"cell_type": "markdown", "source": "jax.pmap(f)"}
    content = {"cells": [markdown, *code]}
    if version == 3:
        content = {"worksheets": [{"cells": [{**c, "input": c["source"]} for c in code]}]}
    return json.dumps(content)


def test_a_notebook_is_read_as_one_program_and_places_are_in_cells(tmp_path):
    text = notebook("%matplotlib inline\nimport jax\n", "!pip install x\nf = jax.pmap(lambda x: x)")
    (tmp_path / "n.ipynb").write_text(text)
    finding = only(check_all(tmp_path))
    assert finding.cell == (3, 2)
    assert finding.location.endswith("n.ipynb:cell 3:2:5")


def test_a_cell_that_does_not_parse_is_said_and_the_rest_is_checked(tmp_path):
    text = notebook("import jax", "def f(:", "%%bash\nls (", "%%time\ng = jax.pmap(f)")
    (tmp_path / "n.ipynb").write_text(text)
    found = check_all(tmp_path)
    assert sorted(f.code for f in found) == ["PMX500", "PMX501"]
    assert any("cell 3 is not checked" in f.message for f in found)


def test_a_cell_that_does_not_parse_is_not_said_where_no_cell_has_a_use(tmp_path):
    (tmp_path / "n.ipynb").write_text(notebook("import jax", "def f(:"))
    assert check_all(tmp_path) == []


@pytest.mark.parametrize("halves", [("def f(x):", "  return x"), ("@jax.jit", "def f(x): pass")])
def test_a_statement_that_goes_on_in_the_next_cell_does_not_parse(tmp_path, halves):
    (tmp_path / "n.ipynb").write_text(notebook("import jax\ng = jax.pmap(f)", *halves))
    found = check_all(tmp_path)
    assert "PMX501" in [f.code for f in found]
    assert any("cell 3 is not checked" in f.message for f in found)


def test_the_pictures_of_a_notebook_are_not_searched(tmp_path):
    content = json.loads(notebook("import jax\nf = jax.jit(g)", "h = 1"))
    del content["cells"][0]
    picture = {"data": {"image/png": "iVBORpmapw0KGgo=\n"}, "output_type": "display_data"}
    for cell in content["cells"]:
        cell["outputs"] = [picture, picture]
    (tmp_path / "n.ipynb").write_text(json.dumps(content))
    assert check([str(tmp_path)]).files_with_uses == 0
    content["cells"][1]["source"] = "h = jax.pmap(g)"
    (tmp_path / "n.ipynb").write_text(json.dumps(content, indent=1))
    assert only(check_all(tmp_path)).cell == (2, 1)


def test_a_magic_goes_on_with_any_indentation(tmp_path):
    text = notebook(
        "import jax\nif many:\n  !tool run \\\n    --here \\\n      --now\nf = jax.pmap(g)"
    )
    (tmp_path / "n.ipynb").write_text(text)
    assert only(check_all(tmp_path)).cell == (2, 6)


def test_a_file_for_a_newer_python_is_said_to_be_one(tmp_path):
    (tmp_path / "a.py").write_text("import jax\nf = jax.pmap(g)\nclass T[K](list[K]): pass\n")
    found = only(check_all(tmp_path))
    if sys.version_info >= (3, 12):
        assert found.code == "PMX501"
    else:
        assert found.code == "PMX500"
        assert "run pmapx with that" in found.message


def test_an_old_notebook_is_read(tmp_path):
    (tmp_path / "n.ipynb").write_text(notebook(USE, version=3))
    assert [f.code for f in check_all(tmp_path)] == ["PMX501"]


@pytest.mark.parametrize("text", ["jax.pmap", "[]", '{"cells": 3, "x": "jax.pmap"}', "{"])
def test_a_file_that_is_no_notebook_is_survived(tmp_path, text):
    (tmp_path / "n.ipynb").write_text(text + (" " if "pmap" in text else "jax pmap"))
    assert [f.code for f in check_all(tmp_path)] == ["PMX500"]


def test_a_noqa_in_a_cell_counts(tmp_path):
    (tmp_path / "n.ipynb").write_text(notebook("import jax\nf = jax.pmap(g)  # noqa: PMX501"))
    assert check_all(tmp_path) == []


def test_a_file_that_cannot_be_written_in_the_global_style_is_written_stacked(
    tmp_path, monkeypatch
):
    from pmapx._src.codemod.forms import placing
    from pmapx._src.codemod.migration import migrate

    path = tmp_path / "train.py"
    path.write_text(
        "import jax\nimport jax.numpy as jnp\n\n\n"
        "def step(state, batch):\n"
        "    return state - jax.lax.pmean(batch.mean() * state, 'i')\n\n\n"
        "def main(batches):\n"
        "    p_step = jax.pmap(step, 'i')\n"
        "    state = jax.device_put_replicated(jnp.ones(3), jax.local_devices())\n"
        "    for batch in batches:\n        state = p_step(state, batch)\n"
        "    return state[0]\n"
    )
    assert b"jax.P()" in migrate([str(path)]).files[0].after
    broken = lambda module, call, mesh, is_global, editor: editor.replace(
        module.place(call), "device_put("
    )
    monkeypatch.setattr(placing, "write_replicated", broken)
    (file,) = migrate([str(path)]).files
    assert [outcome.reason for outcome in file.outcomes] == ["", ""]
    assert b"on_every_device" not in file.after
    assert b"jnp.stack([x] * mesh.size)" in file.after


def test_one_file_that_cannot_be_written_so_does_not_keep_the_others_stacked(tmp_path, monkeypatch):
    from pmapx._src.codemod.forms import placing
    from pmapx._src.codemod.migration import migrate

    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text(
            "import jax\nimport jax.numpy as jnp\n\n\n"
            "def step(state, batch):\n"
            "    return state - jax.lax.pmean(batch.mean() * state, 'i')\n\n\n"
            "def main(batches):\n"
            "    p_step = jax.pmap(step, 'i')\n"
            "    state = jax.device_put_replicated(jnp.ones(3), jax.local_devices())\n"
            "    for batch in batches:\n        state = p_step(state, batch)\n"
            "    return state[0]\n"
        )
    write = placing.write_replicated

    def broken(module, call, mesh, is_global, editor):
        if module.path.endswith("second.py"):
            editor.replace(module.place(call), "device_put(")
        else:
            write(module, call, mesh, is_global, editor)

    monkeypatch.setattr(placing, "write_replicated", broken)
    first, second = migrate([str(tmp_path)]).files
    assert b"in_specs=(jax.P(), " in first.after
    assert b"jnp.stack([x] * mesh.size)" in second.after
    assert not any(outcome.reason for file in (first, second) for outcome in file.outcomes)


def test_an_internal_error_of_the_global_style_leaves_the_stacked_one(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from pmapx._src.cli._group import group
    from pmapx._src.codemod.replicated import style

    path = tmp_path / "train.py"
    path.write_text("import jax\nstep = jax.pmap(lambda x: x + 1)\n")
    assert CliRunner().invoke(group, ["migrate", str(path), "--style", "stacked"]).exit_code == 1

    def fails(*args, **kwargs):
        raise KeyError("planted")

    monkeypatch.setattr(style, "restyle", fails)
    result = CliRunner().invoke(group, ["migrate", str(path), "--write"])
    assert result.exit_code == 0
    assert "internal error in test_robustness.py:" in result.stderr
    assert "KeyError: 'planted'" in result.stderr
    assert "--style stacked" in result.stderr
    assert "pmapx info" in result.stderr
    assert "jax.shard_map(" in path.read_text()
    monkeypatch.setenv("PMAPX_TRACEBACK", "1")
    path.write_text("import jax\nstep = jax.pmap(lambda x: x + 1)\n")
    result = CliRunner().invoke(group, ["migrate", str(path), "--write"])
    assert "Traceback (most recent call last)" in result.stderr


def test_nested_maps_that_are_called_without_arguments_are_survived(tmp_path):
    from pmapx._src.codemod.migration import migrate

    path = tmp_path / "train.py"
    path.write_text("import jax\nf = jax.pmap(jax.pmap(g, 'i'), 'j')\nf()\n")
    (file,) = migrate([str(path)]).files
    assert b"map_over_devices(" in file.after


def test_a_function_that_maps_itself_is_survived(tmp_path):
    from pmapx._src.codemod.migration import migrate

    path = tmp_path / "train.py"
    path.write_text("import jax\nN = jax.device_count()\ndef f(x):\n    return jax.pmap(f)(x)\n")
    (file,) = migrate([str(path)]).files
    assert len(file.outcomes) == 1


def test_an_outside_function_called_flatten_is_survived(tmp_path):
    from pmapx._src.codemod.migration import migrate

    path = tmp_path / "program.py"
    path.write_text(
        "import jax\nimport outside\n\nstep = jax.pmap(abs)\n\n\ndef main(x):\n"
        "    flat = outside.flatten()\n    return step(x.reshape((jax.local_device_count(), -1)))\n"
    )
    (file,) = migrate([str(path)]).changed
    assert b"outside.flatten()" in file.after
