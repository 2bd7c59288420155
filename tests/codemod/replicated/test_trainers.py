"""The shapes that real trainers have: by a run and by names, before and after, to the bit."""

import pytest

pytest.importorskip("click", reason="needs pmapx[tools]")

from running import Runs
from trainer_programs import HEAD, STAYS, TRAINERS

from pmapx._src.codemod.report import page

# Some of these shapes are in `state_programs.py` too, which is run every time.
pytestmark = pytest.mark.slow
VERSIONS = ("new", "named")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    texts = {name: text for name, (text, _) in {**TRAINERS, **STAYS}.items()}
    texts = {name: HEAD + t if isinstance(t, str) else t for name, t in texts.items()}
    named = {name: names for name, (_, names) in TRAINERS.items()}
    return Runs(tmp_path_factory.mktemp("trainers"), texts, named)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_gives_the_same_to_the_bit(runs, name, version):
    assert runs.differences(version, name) == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", TRAINERS)
def test_its_state_is_replicated(runs, name, version):
    before, after = runs.state("old", name), runs.state(version, name)
    assert [shape[0] for shape, _, _ in before] == [8] * len(before)
    assert after == [(shape[1:], 8, True) for shape, _, _ in before], runs.done[version, name].stays


@pytest.mark.parametrize("name", STAYS)
def test_what_is_not_followed_stays_stacked_with_its_reason(runs, name):
    assert runs.differences("new", name) == []
    before, after = runs.state("old", name), runs.state("new", name)
    assert [shape for shape, _, _ in before] == [shape for shape, _, _ in after]
    reasons = [stay.reason for stay in runs.done["new", name].stays]
    assert any(STAYS[name][1] in reason for reason in reasons), reasons


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", TRAINERS)
def test_no_pmap_is_left(runs, name, version):
    assert not runs.done[version, name].left
    assert "jax.pmap(" not in runs.text(version, name)


def test_what_one_user_of_a_wrapper_proves_is_not_proven_for_another(runs):
    done = runs.done["new", "a_wrapper_used_for_what_stays"]
    assert [gain.what for gain in done.gains] == ["train_step: state, return[0], return[1]"]
    assert [stay.what for stay in done.stays] == ["<lambda>: position, return"]


def test_a_wrapper_gets_parameters_for_what_its_users_need(runs):
    text = runs.text("new", "a_wrapper_without_options")
    assert 'def over_devices(function, name="batch", in_axes=0, out_axes=0):' in text
    assert "over_devices(train_step, in_axes=(None, 0), out_axes=None)" in text


def test_keywords_of_what_is_replicated_become_positions(runs):
    assert "step(state, batch)" in runs.text("new", "keywords_in_another_order")
    assert "step(batch=batch" not in runs.text("new", "keywords_in_another_order")


def test_only_the_part_of_a_result_that_is_named_is_vouched_for(tmp_path):
    from pmapx._src.codemod.migration import migrate

    path = tmp_path / "train.py"
    path.write_text(
        HEAD
        + """
def step(state, batch):
    out = (state + lax.pmean(batch, "batch"), batch)
    return out
p_step = jax.pmap(step, axis_name="batch")
use = jax.pmap(lambda own, x: own + x)
state = replicate(INIT["w"])
for batch in ROWS:
    state, own = p_step(state, batch)
    used = use(own, batch)
"""
    )
    done = migrate([str(path)], style="replicated", named=["step:state"])
    assert not done.gains
    assert any("--replicated step:return" in stay.reason for stay in done.stays), done.stays


def test_the_report_has_what_became_replicated_at_the_pmap_that_made_it(runs):
    shown = page.report(runs.done["new", "a_wrapper_used_for_what_stays"])
    (site,) = [s for file in shown.files for s in file.sites if s.what.startswith("jax.pmap")]
    assert site.replicated == ("train_step: state, return[0], return[1] (line 20)",)
    ((what, why),) = site.stacked
    assert what == "<lambda>: position, return (line 21)"
    assert "differs" in why


def test_the_report_of_a_package_names_the_file_of_the_user(runs):
    shown = page.report(runs.done["new", "a_package"])
    sites = [s for file in shown.files for s in file.sites if s.replicated]
    (text,) = sites[0].replicated
    assert text.startswith("train_step: state, return[0], return[1] (")
    assert text.endswith("main.py:7)")
    assert "1 with values that become replicated, 0 with values that stay stacked" in page.render(
        shown
    )
