"""Where in the user's files a map of the rewritten files is reported."""

import pytest

pytest.importorskip("pmapx._src.codemod.migration", reason="needs pmapx[tools]")

from pmapx._src.codemod.to_jit.original_lines import OriginalLines
from pmapx._src.codemod.write.rewrite import Outcome, Rewriting
from pmapx._src.source.location import Place

BEFORE = b"state = jax.device_put_replicated(w, d)\nf = jax.pmap(step)\ng = jax.pmap(other)\n"
AFTER = b"state = jax.device_put(w, s)\nf = jax.jit(step)\ng = jax.jit(other)\n"


def at(line, column):
    return Place("train.py", line, column, line, column + 8)


def test_maps_beside_a_rewritten_device_put_replicated_are_reported_at_their_own_pmap():
    uses = [at(2, 4), at(3, 4)]
    outcomes = [Outcome(use, "jax.pmap (call)") for use in uses]
    outcomes.insert(0, Outcome(at(1, 8), "jax.device_put_replicated"))
    file = Rewriting("train.py", BEFORE, AFTER, tuple(outcomes))
    maps = [at(2, 4), at(3, 4)]
    lines = OriginalLines([file], maps)
    assert [lines.place(each) for each in maps] == uses
