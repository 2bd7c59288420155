"""Random changes to real Python files: migrate ends, and what it writes parses and stays."""

import ast
import random

import pytest
from test_fuzz import FILES, changed

migration = pytest.importorskip("pmapx.migrate.migration", reason="needs pmapx[tools]")

USES = (
    "f = jax.pmap(f)", "x = jax.pmap(x, 'i', donate_argnums=(0,))(x)", "f = jax.pmap",
    "f = partial(jax.pmap, axis_name='i')(f)", "x = [jax.pmap(g)(y) for y in x]",
    "x = jax.device_put_replicated(x, jax.devices())", "x = jax.pmap(lambda x: (\n  x), 'i')",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_what_is_written_parses_and_a_second_run_changes_nothing(tmp_path, seed):
    draw = random.Random(seed)
    for number in range(8):
        lines = changed(draw.choice(FILES).read_text("utf-8"), draw).splitlines()
        for _ in range(3):
            at = draw.randrange(len(lines))
            indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
            lines.insert(at, indent + draw.choice(USES))
        (tmp_path / f"{number}.py").write_text("import jax\n" + "\n".join(lines), "utf-8")
    done = migration.migrate([str(tmp_path)])
    for file in done.changed:
        ast.parse(file.after)
        (tmp_path / file.path).write_bytes(file.after)
    again = migration.migrate([str(tmp_path)])
    assert not again.changed
    # Otherwise the parser is tested and nothing else.
    assert len(done.changed) > 1
