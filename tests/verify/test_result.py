"""What a verification comes to, and how it is shown."""

import pytest

from pmapx._src.verify.compare.result import SiteResult, Verification

click = pytest.importorskip("click", reason="needs pmapx[tools]")

from pmapx._src.cli.verify import as_text  # noqa: E402

VERIFIED = SiteResult("a.py", 3, "f", "verified", "equal to the bit", calls=2)
DIFFERENT = SiteResult("a.py", 9, "g", "different", detail="call 1: output: about 8 times", order=4)
LATER = SiteResult("b.py", 1, "h", "different", detail="call 0: got different values", order=7)
UNVERIFIED = SiteResult("a.py", 12, "k", "unverified", detail="the command never reached it")


@pytest.mark.parametrize(
    ("found", "code", "strict_code"),
    [
        (Verification((VERIFIED,)), 0, 0),
        (Verification((VERIFIED, UNVERIFIED)), 0, 1),
        (Verification((VERIFIED, DIFFERENT)), 1, 1),
        (Verification((UNVERIFIED,)), 1, 1),
        (Verification(()), 1, 1),
        (Verification((VERIFIED,), errors=("it fails",)), 2, 2),
        (Verification((VERIFIED,), differences=("it fails after",)), 1, 1),
    ],
)
def test_exit_codes(found, code, strict_code):
    assert (found.exit_code(), found.exit_code(is_strict=True)) == (code, strict_code)


def test_a_line_has_the_worst_of_its_functions():
    other = SiteResult("a.py", 3, "g", "different")
    assert Verification((VERIFIED, other)).at("./a.py", 3) is other
    assert Verification((VERIFIED,)).at("a.py", 4) is None


def test_the_table_has_one_line_per_site_and_the_first_difference():
    shown = click.unstyle(as_text(Verification((VERIFIED, LATER, DIFFERENT, UNVERIFIED))))
    assert shown.splitlines() == [
        "site     function  state       calls  detail",
        "a.py:3   f         verified        2  equal to the bit",
        "b.py:1   h         different       -  call 0: got different values",
        "a.py:9   g         different       -  call 1: output: about 8 times",
        "a.py:12  k         unverified      -  the command never reached it",
        "First difference: g at a.py:9: call 1: output: about 8 times",
        "Different: 1 verified, 2 different, 1 unverified.",
    ]


def test_states_are_coloured():
    assert click.style("different ", fg="red") in as_text(Verification((DIFFERENT, UNVERIFIED)))


def test_the_end_of_what_a_failing_command_printed_is_shown():
    found = Verification((), errors=("it fails",), output="\n".join(map(str, range(100))))
    shown = click.unstyle(as_text(found)).splitlines()
    assert shown[:2] == ["  85", "  86"]
    assert "error: it fails" in shown


def test_inputs_that_differ_first_are_attributed_to_the_program():
    hint = "No earlier call differs: does the program use unseeded random data"
    assert hint in as_text(Verification((VERIFIED, LATER)))
    assert hint not in as_text(Verification((DIFFERENT, LATER)))


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Verification((VERIFIED,)), "Verified: 1 verified, 0 different, 0 unverified."),
        (
            Verification((VERIFIED, UNVERIFIED)),
            "Not verified, --strict allows no unverified site: 1 verified, 0 different, "
            "1 unverified.",
        ),
        (
            Verification((UNVERIFIED,), notes=("a note",), tolerance="x"),
            "Not verified, nothing was compared: 0 verified, 0 different, 1 unverified.",
        ),
        (
            Verification((), errors=("it fails",)),
            "Not verified, the runs cannot be compared: 0 verified, 0 different, 0 unverified.",
        ),
        (
            Verification((VERIFIED,), differences=("it fails after",)),
            "Different: 1 verified, 0 different, 0 unverified.",
        ),
    ],
)
def test_the_last_line_is_the_verdict(found, verdict):
    assert click.unstyle(as_text(found, is_strict=True)).splitlines()[-1] == verdict


def test_progress_in_a_pipe_is_a_line_now_and_then(capsys):
    from pmapx._src.cli._terminal import Progress

    with Progress("Running the program ({})") as progress:
        for step in ("before", "after"):
            for elapsed in range(200):
                progress.show(step, elapsed)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [
        f"pmapx: Running the program (before): {elapsed} s" for elapsed in (10, 20, 40)
    ]
    assert lines.index("pmapx: Running the program (after): 10 s") == len(lines) // 2 == 5


def test_progress_of_files_in_a_pipe_is_a_line_now_and_then(capsys, monkeypatch):
    from pmapx._src.cli import _terminal

    now = [0.0]
    monkeypatch.setattr(_terminal.time, "monotonic", lambda: now[0])
    with _terminal.Progress("Reading") as progress:
        for done in range(30):
            now[0] = float(done)
            progress.advance(done, 1000)
    assert capsys.readouterr().err.splitlines() == [
        "pmapx: Reading: 10 of 1,000, 10 s",
        "pmapx: Reading: 20 of 1,000, 20 s",
    ]
