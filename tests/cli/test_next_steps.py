"""Each command ends with one line that suggests what to do next."""

import pytest

click_testing = pytest.importorskip("click.testing", reason="needs pmapx[tools]")

FILES = {
    "clean.py": "x = 1\n",
    "mapped.py": "import jax\n\nstep = jax.pmap(lambda x: x + 1)\n",
    "renamed.py": "import jax\n\ny = jax.tree_map(abs, x)\n",
}


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "clean.py"],
        ["check", "mapped.py"],
        ["check", "empty"],
        ["check", "clean.py", "--diff"],
        ["check", "renamed.py", "--diff"],
        ["check", "renamed.py", "--fix"],
        ["check", "mapped.py", "--baseline", "known.json", "--write-baseline"],
        ["migrate", "clean.py"],
        ["migrate", "mapped.py"],
        ["migrate", "mapped.py", "--write"],
    ],
    ids=" ".join,
)
def test_the_last_line_is_a_next_step(tmp_path, monkeypatch, arguments):
    from pmapx._src.cli._group import group

    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    result = click_testing.CliRunner().invoke(group, arguments)

    assert result.output.splitlines()[-1].startswith("Next: "), result.output


def test_the_output_of_diff_is_a_patch_alone(tmp_path):
    from pmapx._src.cli._group import group

    path = tmp_path / "renamed.py"
    path.write_text(FILES["renamed.py"])
    result = click_testing.CliRunner().invoke(group, ["check", str(path), "--diff"])
    assert "Next: " not in result.stdout
