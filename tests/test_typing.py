"""A type checker sees the wrapped function's parameters and result."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pmapx

PROGRAM = """
import pmapx

def step(state: float, batch: int) -> str: ...

mapped = pmapx.pmap(step, "i", donate_argnums=0)
reveal_type(mapped(1.0, 2))
reveal_type(mapped.cache_info().calls)
mapped("no float", 2)
mapped(1.0)

@pmapx.pmap
def decorated(x: float) -> float: ...

reveal_type(decorated(1.0))
"""


@pytest.mark.slow
def test_a_type_checker_sees_the_parameters_and_the_result(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "program.py").write_text(PROGRAM)
    source = str(Path(pmapx.__file__).parents[1])

    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": "" if "site-packages" in source else source},
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout

    assert 'program.py:7: note: Revealed type is "str"' in checked.replace("builtins.", "")
    assert 'program.py:8: note: Revealed type is "int"' in checked.replace("builtins.", "")
    assert 'program.py:9: error: Argument 1 to "__call__"' in checked
    assert 'program.py:10: error: Missing positional argument "batch"' in checked
    assert 'program.py:15: note: Revealed type is "float"' in checked.replace("builtins.", "")
