"""The page of ``pmapx audit --html`` in a real browser."""

import dataclasses

import pytest

from pmapx._src.audit import as_html
from pmapx._src.audit.report.audit_report import (
    AuditedFunction,
    AuditReport,
    Donation,
    Exchange,
    History,
    Leaf,
    Memory,
    MovedInput,
    Remark,
    ShardRead,
)
from pmapx._src.audit.report.scaling_table import Growth, Point, Scaling

STATE = Leaf("state['w']", (8, 4), "float32", (1, 4), (("i",), ()), 16, (), None, True, 112)
BATCH = Leaf("batch", (8, 6), "float32", (1, 6), (("i",), ()), 24, ("i",), moved="it lies on cpu:0")
LOSS = Leaf("out[1]", (), "float32", (), (), 4)
REDUCE = Exchange(
    "all-reduce", ("i",), 8, 16, 28, 1, "/code/train.py:12", "psum", is_written=True, seconds=2e-5
)
GATHER = Exchange("all-gather", ("i",), 8, 800, 700, 5, "/code/train.py:14", "add", seconds=6e-5)
STEP = AuditedFunction(
    name="step",
    kind="pmapx.pmap",
    place="/code/train.py:9",
    axis_sizes={"i": 8},
    device_kind="TPU v4",
    arguments=(STATE, BATCH),
    outputs=(dataclasses.replace(STATE, path="out[0]['w']"), LOSS),
    exchanges=(REDUCE, GATHER),
    memory=Memory(arguments=40, outputs=20, temporaries=100, aliases=16),
    donations=(Donation("state['w']", 16, True), Donation("batch", 24, False, "no output fits")),
    history=History(7, 2, 2, ("first call", "batch was larger"), (MovedInput("batch", "far", 7),)),
)
REMARK = Remark("PMX601", "stacked-replicas", "state['w'] is stacked", "pass it whole", "step")
REPORT = AuditReport(
    functions=(STEP, dataclasses.replace(STEP, name="evaluate", exchanges=())),
    shard_reads=(ShardRead("/code/train.py:20", "0", 3, 84, "float32[8]"),),
    findings=(REMARK,),
    assumptions=("TPU v4: a ring.",),
    jax_version="0.10.2",
    command="python train.py",
    status=1,
)

POINT = Point("v5e:2x4", 8, 2, 2048, {"all-gather": 4096}, 4096, 4096, 1024, 1.25)
GROWING = Scaling(
    "step",
    (POINT, dataclasses.replace(POINT, topology="4x v5e:16x16", devices=1024, between=512)),
    (Growth("all-gather at <b>train.py</b>:14", 4096, 524288),),
)


@pytest.fixture
def opened(open_html):
    return lambda report=REPORT, **options: open_html(as_html.render(report), **options)


def texts(browser, selector):
    return browser.value(
        f"[...document.querySelectorAll({selector!r})].map(e => e.textContent.trim())"
    )


def test_the_page_runs_without_complaint_and_loads_nothing(opened):
    page = opened()

    assert page.complaints() == []
    assert texts(page, "h2")[:2] == ["Findings", "Bytes by function"]
    assert "python train.py ended with 1" in texts(page, "#bar p")[0]


def test_equal_shards_share_a_color_and_others_have_their_own(opened):
    page = opened()
    colours = (
        "(n => new Set([...document.querySelectorAll('.holdings')[n].querySelectorAll('rect')]"
        ".map(e => getComputedStyle(e).fill)).size)"
    )

    assert page.value(f"{colours}(0)") == 1
    assert page.value(f"{colours}(1)") == 8
    labels = "[...document.querySelectorAll('.holdings')[1].querySelectorAll('.part')]"
    assert page.value(f"{labels}.map(e => e.textContent).join()") == "0,1,2,3,4,5,6,7"
    assert texts(page, "#function-0 .badge.replicated") == ["replicated"]


def test_collectives_are_drawn_in_sequence_on_a_time_line(opened):
    page = opened()

    boxes = page.value(
        "[...document.querySelectorAll('#function-0 .timeline .exchange')]"
        ".map(e => e.getBoundingClientRect()).map(b => [b.left, b.right])"
    )
    (start, middle), (after, end) = boxes
    assert start < middle <= after < end
    # 20 us, and 5 times 60 us.
    assert (end - after) / (middle - start) == pytest.approx(15, rel=0.15)
    assert "320 µs of collectives" in texts(page, "#function-0 .timeline .axis.end")[0]


def test_without_times_widths_are_bytes(opened):
    exchanges = [dataclasses.replace(each, seconds=None) for each in STEP.exchanges]
    step = dataclasses.replace(STEP, exchanges=tuple(exchanges))
    page = opened(dataclasses.replace(REPORT, functions=(step,)))

    said = texts(page, ".timeline .axis.end")[0]
    assert "no time is estimated" in said
    assert "3.45 KiB sent" in said


def test_a_click_on_the_time_line_shows_the_row(opened):
    page = opened(height=1400)

    page.click("#function-0 .block:nth-of-type(2)")

    assert page.value("document.querySelector('tr.shown').id") == "exchange-0-1"
    assert "added by XLA" in texts(page, "tr.shown")[0]


def test_a_finding_opens_its_explanation(opened):
    page = opened()

    page.click("details.finding summary")

    assert page.value("document.querySelector('details.finding').open")
    assert "What to do" in texts(page, ".explained")[0]


def test_bars_lead_to_their_function(opened):
    page = opened(height=500)

    page.click(".by-function .bar:nth-of-type(2)")

    page.wait_for("document.activeElement.id === 'function-1'")


def test_keys_go_from_function_to_function(opened):
    page = opened(height=500)

    page.press("j", "j")
    page.wait_for("document.activeElement.id === 'function-1'")
    page.press("k")
    page.wait_for("document.activeElement.id === 'function-0'")


def test_the_page_shows_memory_history_donations_and_shard_reads(opened):
    words = opened().value("document.body.innerText")

    for part in ("Memory per device: 144 B", "7 calls, 2 traces, 2 compiles", "batch was larger"):
        assert part in words
    for part in ("transferred 7 times", "no output fits", "train.py:20", "TPU v4: a ring."):
        assert part in words


def test_what_others_wrote_is_text(opened):
    evil = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    step = dataclasses.replace(
        STEP,
        name=evil,
        place=f"/{evil}:1",
        arguments=(dataclasses.replace(STATE, path=evil, dtype=evil, moved=evil),),
        exchanges=(dataclasses.replace(REDUCE, kind=evil, axes=(evil,), place=f"{evil}:1"),),
    )
    report = AuditReport(
        (step,),
        (ShardRead(evil, evil, 1, 1, evil),),
        (dataclasses.replace(REMARK, message=evil, code=evil),),
        (evil,),
        command=evil,
        skipped=(evil,),
    )

    page = opened(report)

    assert page.complaints() == []
    assert page.value("document.images.length") == 0
    assert page.value("document.querySelectorAll('body script:not([type])').length") == 1
    assert evil in page.value("document.querySelector('#function-0 h2').textContent")


def test_a_mesh_of_two_axes_is_drawn_as_a_matrix(opened):
    leaf = Leaf("x", (4, 6), "float32", (1, 3), (("a",), ("b",)), 12, ("a", "b"))
    step = dataclasses.replace(STEP, axis_sizes={"a": 4, "b": 2}, arguments=(leaf,), outputs=())

    page = opened(dataclasses.replace(REPORT, functions=(step,)))

    places = page.value(
        "[...document.querySelectorAll('.holdings g')].map(g => ["
        "g.querySelector('text').textContent,"
        "Number(g.querySelector('rect').getAttribute('x')) > 10,"
        "Number(g.querySelector('rect').getAttribute('y'))])"
    )
    assert [place[0] for place in places] == list("01234567")
    assert [place[1] for place in places] == [False, True] * 4
    assert [round(place[2]) // 20 for place in places] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("dark", [False, True])
def test_no_picture_reaches_beyond_its_cell_on_a_pod(opened, dark):
    leaf = dataclasses.replace(
        BATCH,
        shape=(4096, 6),
        shard_shape=(1, 6),
        path="state['layers'][11]['attention']['kernel']",
    )
    step = dataclasses.replace(STEP, axis_sizes={"i": 4096}, arguments=(leaf,) * 20)

    page = opened(dataclasses.replace(REPORT, functions=(step,)), dark=dark, height=1600)

    assert page.value(
        "[...document.querySelectorAll('.holdings')].every(e =>"
        "e.getBoundingClientRect().right <= e.parentElement.getBoundingClientRect().right)"
    )
    assert page.value("document.querySelectorAll('#function-0 table.leaves')[0].rows.length") == 13
    page.click("#function-0 button.plain")
    assert page.value("document.querySelectorAll('#function-0 table.leaves')[0].rows.length") == 21


def test_a_program_that_maps_nothing_says_so(opened):
    page = opened(AuditReport((), command="python plain.py", status=0))

    assert "No pmapped functions" in texts(page, "h2")


def test_a_narrow_window_does_not_scroll_sideways(opened):
    page = opened(width=420)

    assert page.value("document.querySelector('#main').scrollWidth") <= 420


def test_a_function_on_more_devices_has_a_table_of_them(opened):
    grown = dataclasses.replace(STEP, scaling=GROWING)
    page = opened(dataclasses.replace(REPORT, functions=(grown,)))

    assert page.complaints() == []
    assert texts(page, ".scaling th")[3:5] == ["sent", "to other slices"]
    assert texts(page, ".scaling tbody tr:last-child td")[:2] == ["1,024", "4x v5e:16x16"]
    assert "all-gather at <b>train.py</b>:14: 4.00 KiB" in texts(page, ".growing li")[0]


def test_what_leaves_a_slice_has_a_column_where_something_does(opened):
    assert "to other slices" not in texts(opened(), ".exchanges th")

    crossing = dataclasses.replace(REDUCE, between=14, slices=2)
    page = opened(
        dataclasses.replace(REPORT, functions=(dataclasses.replace(STEP, exchanges=(crossing,)),))
    )
    assert texts(page, ".exchanges th")[4:6] == ["sent per device", "to other slices"]
    assert texts(page, ".exchanges td")[5] == "14 B"
