"""A program of several processes gives each of them, migrated, what it gave them before."""

import pickle
from pathlib import Path

import pytest
from started import finish, start

pytest.importorskip("click", reason="needs pmapx[tools]")

from pmapx._src.codemod.migration import migrate

HERE = Path(__file__).parent


# With how many uses of pmap.
PROGRAMS = {"migrated_program": 10, "kept_pmap_program": 1}


def runs_of(name, root):
    """What each process of a program set RESULTS to, before and after."""
    before, after = HERE / f"{name}.py", root / f"{name}.py"
    (file,) = migrate([str(before)]).files
    assert [each.reason for each in file.outcomes] == [""] * PROGRAMS[name]
    after.write_bytes(file.after)
    found = {}
    for which, program in (("before", before), ("after", after)):
        command = [str(HERE / "migrated_worker.py"), which, str(program), str(root)]
        statuses = finish(start(command, 2, 4, root), 240)
        tails = [(root / f"output.{i}").read_text(errors="replace")[-3000:] for i in range(2)]
        assert statuses == [0, 0], "\n".join(tails)
        found[which] = [dict(pickle.loads((root / f"{which}.{i}").read_bytes())) for i in range(2)]
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return runs_of("migrated_program", tmp_path_factory.mktemp("migrated"))


def assert_equal(before, after):
    assert before.keys() == after.keys()
    for path, value in before.items():
        assert (value.shape, value.dtype) == (after[path].shape, after[path].dtype), path
        if path != "['traces']":
            assert value.tobytes() == after[path].tobytes(), path


@pytest.mark.parametrize("process", [0, 1])
def test_each_process_has_its_own_shards_to_the_bit(runs, process):
    assert_equal(runs["before"][process], runs["after"][process])


@pytest.mark.slow
def test_one_pmap_for_all_maps_of_a_project_is_a_short_function(tmp_path):
    runs = runs_of("kept_pmap_program", tmp_path)
    for before, after in zip(runs["before"], runs["after"], strict=True):
        assert_equal(before, after)
    text = (tmp_path / "kept_pmap_program.py").read_text()
    assert "def on_each_device" not in text
    assert text.count("\n") < (HERE / "kept_pmap_program.py").read_text().count("\n") + 55


def test_processes_differ_where_their_shards_do(runs):
    first, second = runs["after"]
    assert first["['own']"].tobytes() != second["['own']"].tobytes()
    assert first["['total']"] == second["['total']"]


def test_state_that_is_not_stacked_stays_global_between_calls():
    text = migrate([str(HERE / "migrated_program.py")]).files[0].after.decode()
    body = text.partition("def with_state_that_is_not_stacked")[2].partition("\n\n\n")[0]
    assert body.count("w, losses = step(w, batch)") == 2
    # The function that several maps share converts no result with the spec P().
    assert "step = host_local_shard_map(\n" in body
    assert 'out_specs=(jax.P(), jax.P("batch")),' in body


def test_a_map_without_the_name_of_an_axis_is_over_the_devices_of_each_process():
    text = migrate([str(HERE / "migrated_program.py")]).files[0].after.decode()
    body = text.partition("def with_state_that_is_not_stacked")[2].partition("\n\n\n")[0]
    assert "devices_mesh = jax.sharding.Mesh(\n        jax.local_devices(), " in body
    assert "mesh=devices_mesh," in body.partition("jnp.sin")[2]


def test_a_map_that_is_made_in_each_call_is_traced_once(runs):
    assert [each["['traces']"] for each in runs["after"]] == [1, 1]
