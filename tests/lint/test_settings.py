"""Settings, selection and comments that silence."""

import pytest

from pmapx._src.analysis.values import Confidence
from pmapx._src.lint import settings
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import all_rules, selected
from pmapx._src.source.command_error import CommandError
from pmapx._src.source.location import Place
from reading import codes, findings

USE = "import jax\nstep = jax.pmap(lambda x: x)"


def test_everything_is_selected_unless_told():
    assert selected((), ()) == frozenset(all_rules())


def test_a_prefix_selects_all_codes_that_start_with_it():
    assert selected(("PMX55",), ()) == {"PMX551", "PMX552", "PMX553"}
    assert "PMX501" not in selected((), ("PMX50",))


@pytest.mark.parametrize(
    "comment",
    ["# noqa", "# noqa: PMX501", "#noqa:PMX501", "# noqa: E501, PMX501", "# NOQA: pmx501 E501"],
)
def test_a_comment_silences(tmp_path, comment):
    assert codes(tmp_path, f"{USE}  {comment}\n") == []


@pytest.mark.parametrize("comment", ["# noqa: E501", "# noqa: PMX502", "# no qa", "'# noqa'"])
def test_another_comment_does_not(tmp_path, comment):
    assert codes(tmp_path, f"{USE}, {comment}\n".replace(", #", "  #")) == ["PMX501"]


def test_a_comment_on_the_last_line_of_a_call_counts(tmp_path):
    text = "import jax\nlosses = jax.pmap(lambda x: x + 1)(\n    x\n)[0]  # noqa: PMX521\n"
    assert "PMX521" not in codes(tmp_path, text)
    assert "PMX521" in codes(tmp_path, text.replace("noqa", "note"))


def write(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "src").mkdir(exist_ok=True)
    return settings.load([str(tmp_path / "src")])


def test_settings_come_from_the_nearest_pyproject(tmp_path):
    table = write(tmp_path, '[tool.pmapx]\nignore = ["PMX501"]\nconfidence = "high"\n')
    made = settings.make(table)
    assert made.ignore == ("PMX501",)
    assert made.confidence == Confidence.HIGH


def test_options_win_over_the_file_and_ignores_add_up(tmp_path):
    table = write(tmp_path, '[tool.pmapx]\nselect = ["PMX51"]\nignore = ["PMX511"]\n')
    made = settings.make(table, select=("PMX50,PMX52",), ignore=("PMX501",), confidence="low")
    assert made.select == ("PMX50", "PMX52")
    assert made.ignore == ("PMX511", "PMX501")
    assert made.confidence == Confidence.LOW


def test_a_pyproject_without_a_pmapx_table_is_accepted(tmp_path):
    assert write(tmp_path, "[project]\nname = 'x'\n") == {}


def test_per_file_ignores(tmp_path):
    made = settings.make({"per-file-ignores": {"tests/*": ["PMX501"]}})
    places = (Place(path, 1, 0, 1, 1) for path in ("a/tests/x.py", "a/src/x.py"))
    assert [made.reports(Finding("PMX501", "", place)) for place in places] == [False, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.pmapx]\nselct = []\n", "did you mean 'select'"),
        ("[tool.pmapx\n", "pyproject.toml"),
        ("[tool]\npmapx = 3\n", "must be a table"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(tmp_path, text, words):
    with pytest.raises(CommandError, match=words) as caught:
        write(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"select": ["PMX777"]}, "no rule 'PMX777'"),
        ({"ignore": "PMX501"}, "ignore must be a list"),
        ({"confidence": "certain"}, "confidence is one of low, medium, high"),
        ({"per-file-ignores": ["x"]}, "must be a table"),
    ],
)
def test_a_wrong_setting_is_named(table, words):
    with pytest.raises(CommandError, match=words):
        settings.make(table)


def test_low_confidence_is_not_reported_unless_asked(tmp_path):
    text = "import jax\nfrom lib import f\ny = jax.pmap(f)(x)\nprint(y[0])\n"
    assert "PMX521" not in codes(tmp_path, text, confidence="medium")
    assert "PMX521" in [f.code for f in findings(tmp_path, text, confidence="low")]
