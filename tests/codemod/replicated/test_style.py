"""State that is equal on all devices becomes replicated, and nothing else does."""

import sys

import pytest

pytest.importorskip("click", reason="needs pmapx[tools]")

from running import Runs
from state_programs import (
    BOUNDARIES,
    BY_FIELD,
    FEWER_SHARDS,
    HEAD,
    OPTIONS_ELSEWHERE,
    REPLICATED,
    RUN,
    SEVERAL_FILES,
    STACKED,
)

from pmapx._src.codemod.evidence.proof_run import prove
from pmapx._src.codemod.migration import migrate
from pmapx._src.watch.run_in_copy import Command


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    others = {name: text for name, (text, _) in {**STACKED, **BOUNDARIES, **BY_FIELD}.items()}
    texts = {**REPLICATED, **RUN, **FEWER_SHARDS, **OPTIONS_ELSEWHERE, **others}
    texts = {name: HEAD + text for name, text in texts.items()}
    return Runs(tmp_path_factory.mktemp("replicated"), {**texts, **SEVERAL_FILES})


VERSIONS = ("new", "source")
ALL = [
    *REPLICATED,
    *STACKED,
    *BOUNDARIES,
    *RUN,
    *BY_FIELD,
    *SEVERAL_FILES,
    *FEWER_SHARDS,
    *OPTIONS_ELSEWHERE,
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ALL)
def test_a_program_gives_the_same_to_the_bit(runs, name, version):
    assert runs.differences(version, name) == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [*REPLICATED, *BOUNDARIES, *SEVERAL_FILES])
def test_state_is_replicated(runs, name, version):
    before, after = runs.state("old", name), runs.state(version, name)
    assert [shape[0] for shape, _, _ in before] == [8] * len(before)
    assert after == [(shape[1:], 8, True) for shape, _, _ in before], runs.done[version, name].stays
    if name in REPLICATED and version == "new":
        assert runs.done[version, name].stays == ()


@pytest.mark.parametrize("name", OPTIONS_ELSEWHERE)
def test_options_that_are_written_elsewhere_are_read(runs, name):
    before, after = runs.state("old", name), runs.state("source", name)
    assert after == [(shape[1:], 8, True) for shape, _, _ in before]


@pytest.mark.parametrize("name", RUN)
def test_a_run_shows_what_the_source_does_not(runs, name):
    before, after = runs.state("old", name), runs.state("new", name)
    assert after == [(shape[1:], 8, True) for shape, _, _ in before]
    assert "# The shards that train_step takes here were equal in a run" in runs.text("new", name)
    assert runs.state("source", name)[0][0] == before[0][0]


@pytest.mark.parametrize("name", BOUNDARIES)
def test_what_is_not_followed_gets_a_stacked_copy(runs, name):
    assert BOUNDARIES[name][1] in runs.text("source", name)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", BY_FIELD)
def test_a_field_that_differs_keeps_its_axis_and_the_others_lose_it(runs, name, version):
    before, after = runs.state("old", name), runs.state(version, name)
    text = BY_FIELD[name][1]
    if not text:
        assert [shape for shape, _, _ in after] == [shape for shape, _, _ in before]
        return
    *params, field = [(shape[1:], 8, True) for shape, _, _ in before]
    assert after[:-1] == params, runs.done["source", name].stays
    assert after[-1][0] == (8, *field[0])
    assert text in runs.text("source", name)


@pytest.mark.parametrize("name", REPLICATED)
def test_what_stood_around_the_state_is_gone(runs, name):
    after = runs.text("new", name)
    assert "check_vma=False" in after
    # What the program takes the first shard by, where it still does.
    after = after.replace("def first(tree):\n    return jax.tree.map(lambda x: x[0], tree)\n", "")
    assert "device_put_replicated(" not in after
    assert "stack([x]" not in after
    assert "= jax.tree.map(lambda x: x[0], state" not in after
    assert "jax.pmap(" not in after


@pytest.mark.parametrize("name", STACKED)
def test_what_has_no_proof_stays_stacked_with_its_reason(runs, name):
    before, after = runs.state("old", name), runs.state("new", name)
    assert [shape for shape, _, _ in before] == [shape for shape, _, _ in after]
    reasons = [stay.reason for stay in runs.done["new", name].stays]
    assert not STACKED[name][1] or any(STACKED[name][1] in reason for reason in reasons), reasons


@pytest.mark.parametrize("name", [*STACKED, *BY_FIELD])
def test_no_run_is_suggested_after_a_run(runs, name):
    reasons = [stay.reason for stay in runs.done["new", name].stays]
    assert not any("a run may show more" in reason for reason in reasons), reasons


def test_a_second_run_changes_nothing(runs):
    for name in REPLICATED:
        assert not migrate([str(runs.path("new", name))], style="replicated").changed


def test_sites_are_reported_where_they_stood(runs):
    for name in REPLICATED:
        lines = runs.text("old", name).splitlines()
        for outcome in runs.done["new", name].files[0].outcomes:
            place = outcome.place
            assert lines[place.line - 1][place.column : place.end_column] == "jax.pmap"


def test_a_tree_that_differs_in_part_stays_stacked(runs):
    done = runs.done["new", "partly_varying_and_never_fed_back"]
    assert [gain.what for gain in done.gains] == ["step: state, return[0]"]


@pytest.mark.parametrize("result", ["jax.lax.pmean(x, 'i')", "(x.sum(), x)"])
def test_an_index_on_the_host_is_a_shard_if_a_run_showed_an_array(tmp_path, result):
    path = tmp_path / "main.py"
    path.write_text(
        "import jax, jax.numpy as jnp\n"
        f"step = jax.pmap(lambda x: {{'loss': {result}}}, axis_name='i')\n"
        "metrics = step(jnp.ones((jax.device_count(), 2)))\n"
        "print(jax.device_get(metrics['loss'])[0])\n"
    )
    evidence = prove(Command([sys.executable, str(path)], devices=8, timeout=300))
    (file,) = migrate([str(path)], evidence=evidence).files
    shown = file.after.decode().splitlines()[-1]
    is_array = result.startswith("jax.lax")
    assert shown == f"print(jax.device_get(metrics['loss']){'' if is_array else '[0]'})"
