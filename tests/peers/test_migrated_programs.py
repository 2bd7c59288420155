"""Programs with Flax, optax, Haiku and Equinox, migrated and run: what they give stays the same."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "codemod"))

from migrated_programs import chunks, of_libraries, wrong_after_migration

CHUNKS = chunks(of_libraries(True))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_migrated_programs_give_the_same(tmp_path, chunk):
    for library in sorted({name for program in CHUNKS[chunk] for name in program.libraries}):
        pytest.importorskip(library)
    wrong = wrong_after_migration(CHUNKS[chunk], tmp_path)
    assert not wrong, "\n".join(map(": ".join, wrong.items()))
