"""State that is replicated in a program of several processes gives what it gave when stacked."""

import pickle
from pathlib import Path

import pytest
from started import finish, start

pytest.importorskip("click", reason="needs pmapx[tools]")

from pmapx._src.codemod.migration import migrate

HERE = Path(__file__).parent


@pytest.mark.slow
def test_replicated_state_in_two_processes(tmp_path):
    before, after = HERE / "replicated_program.py", tmp_path / "after.py"
    done = migrate([str(before)], style="replicated")
    gains = ["train_step: state, return[0], return[1]", "<lambda>: state, return"]
    assert [gain.what for gain in done.gains] == gains
    after.write_bytes(done.files[0].after)
    found = {}
    for which, program in (("before", before), ("after", after)):
        command = [str(HERE / "migrated_worker.py"), which, str(program), str(tmp_path)]
        statuses = finish(start(command, 2, 4, tmp_path), 240)
        tails = [(tmp_path / f"output.{i}").read_text(errors="replace")[-3000:] for i in range(2)]
        assert statuses == [0, 0], "\n".join(tails)
        found[which] = [pickle.loads((tmp_path / f"{which}.{i}").read_bytes()) for i in range(2)]
    for old, new in zip(found["before"], found["after"], strict=True):
        assert [path for path, _ in old] == [path for path, _ in new]
        for (path, one), (_, other) in zip(old, new, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape), path
            assert one.tobytes() == other.tobytes(), path
