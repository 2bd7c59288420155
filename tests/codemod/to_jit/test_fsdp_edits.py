"""What ``--fsdp`` changes in a file in the jit form, and which state it finds in a call."""

import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("pmapx._src.codemod.migration", reason="needs pmapx[tools]")

from pmapx._src.codemod.to_jit.placement import fsdp_edits, process_batches
from pmapx._src.codemod.to_jit.placement.fsdp_function import CannotShardError
from pmapx._src.codemod.to_jit.placement.step_state import StepState
from pmapx._src.codemod.to_jit.placement.version import CannotEditError, Version
from pmapx._src.source.rewriting.edits import Edit

MESH = """\
mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
replicated = jax.NamedSharding(mesh, jax.P())
sharded = jax.NamedSharding(mesh, jax.P("batch"))
"""
JIT = """\
p_step = jax.jit(
    step, in_shardings=(replicated, sharded), out_shardings=replicated, donate_argnums=0
)
"""
STATE = {"arguments": 2, "held": [0], "parts": 2, "outputs": [[0, 0]]}


def sites(data, line):
    """Returns the site of the jitted function whose first line is this one."""
    for path, text in data.items():
        for number, each in enumerate(text.splitlines(), start=1):
            if each.strip() == line.strip():
                count = 1 if each.count("(") == each.count(")") else 3
                return [{"file": path, "line": number, "end_line": number + count - 1, "name": "a"}]
    raise AssertionError(line)


def edited(files, facts=STATE, line="p_step = jax.jit("):
    if isinstance(files, str):
        files = {"train.py": files}
    data = {f"/project/{path}": text.encode() for path, text in files.items()}
    version = Version(Path("/project"), data, sites(files, line))
    new = version.edited(fsdp_edits.edits(version, [facts], "batch")).without_unused(version)
    for path, text in new.data.items():
        compile(text, path, "exec")
    # The site is where the function is made now.
    assert "jax.jit" in new.data[new.path(new.sites[0])].decode().splitlines()[
        new.sites[0]["line"] - 1
    ]  # fmt: skip
    return {path.removeprefix("/project/"): text.decode() for path, text in new.data.items()}


def program(body, after=""):
    step = f"def step(w, x):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
    return f"import jax\n\n\n{step}\n\n{MESH}{JIT}{after}"


PLACED = "w = jax.device_put(w, replicated)\n"


def test_names_in_a_return_are_constrained_together():
    facts = {"arguments": 3, "held": [0, 1], "parts": 3, "outputs": [[0, 0], [1, 1]]}
    text = program("return w, v, loss", PLACED).replace("(w, x)", "(w, v, x)")
    text = text.replace("(replicated, sharded)", "(replicated, replicated, sharded)")
    [after] = edited(text, facts).values()
    assert (
        "    w, v = jax.lax.with_sharding_constraint((w, v), fsdp_shardings((w, v)))\n"
        "    return w, v, loss\n"
    ) in after
    assert "in_shardings=(None, None, sharded)" in after
    assert "w = jax.device_put(w, fsdp_shardings(w))\n" in after


def test_an_expression_in_a_return_is_named_first():
    [after] = edited(program("return w - 0.1 * x, x.mean()", PLACED)).values()
    assert (
        "    new_w = w - 0.1 * x\n"
        "    new_w = jax.lax.with_sharding_constraint(new_w, fsdp_shardings(new_w))\n"
        "    return new_w, x.mean()\n"
    ) in after
    assert "in_shardings=(None, sharded)" in after
    assert "out_shardings=(None, replicated)" in after
    assert "donate_argnums=0" in after


def test_a_name_that_is_taken_is_not_used():
    [after] = edited(program("new_w = x\nreturn w - new_w, x.mean()", PLACED)).values()
    assert "new_w_ = w - new_w\n" in after


def test_what_a_call_returns_is_taken_apart():
    [after] = edited(program("return update(w, x)", PLACED)).values()
    assert "    new_w, result_1 = update(w, x)\n" in after
    assert "    return new_w, result_1\n" in after


def test_state_alone_is_the_result():
    facts = {**STATE, "parts": None}
    [after] = edited(program("return update(w, x)", PLACED), facts).values()
    assert "    new_w = update(w, x)\n" in after
    assert "    return new_w\n" in after
    assert "out_shardings" not in after


def test_every_return_statement_is_constrained():
    [after] = edited(
        program(
            "if x is None:\n    return w, x\ndef inner():\n    return w, x\nreturn w, x", PLACED
        )
    ).values()
    assert after.count("w = jax.lax.with_sharding_constraint(w, fsdp_shardings(w))") == 2
    assert "    def inner():\n        return w, x\n" in after


def test_what_is_placed_is_evaluated_once():
    placed = "def main():\n    w = jax.device_put(init(), replicated)\n"
    [after] = edited(program("return w, x", f"\n\n{placed}")).values()
    assert "    w = init()\n    w = jax.device_put(w, fsdp_shardings(w))\n" in after


def test_a_body_no_longer_replicates_its_state():
    text = program(
        """
        mesh = jax.make_mesh((8,), ("batch",))
        w = jax.lax.with_sharding_constraint(w, jax.NamedSharding(mesh, jax.P()))
        x = jax.lax.with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P("batch")))
        return w, x.mean()
        """,
        PLACED,
    ).replace(JIT, "p_step = jax.jit(step, donate_argnums=0)\n")
    [after] = edited(text, line="p_step = jax.jit(step, donate_argnums=0)").values()
    assert "with_sharding_constraint(w, jax.NamedSharding" not in after
    assert 'with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P("batch")))' in after


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("import steps", "steps.fsdp_shardings(w)"),
        ("import steps as s", "s.fsdp_shardings(w)"),
        ("from steps import p_step", "fsdp_shardings(w)"),
    ],
)
def test_another_file_calls_the_one_function(line, call):
    train = f"import jax\n{line}\n\n{MESH}{PLACED}"
    after = edited({"train.py": train, "steps.py": program("return w, x")})
    assert f"w = jax.device_put(w, {call})\n" in after["train.py"]
    assert "def fsdp_shardings" in after["steps.py"]
    assert "def fsdp_shardings" not in after["train.py"]
    assert ("from steps import fsdp_shardings\n" in after["train.py"]) == line.startswith("from")
    # Meshes and shardings that lost their last use are gone.
    assert "replicated" not in after["train.py"]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (program("return w, x"), "no jax.device_put places its state"),
        (program("return w, x", "f(jax.device_put(init(), replicated))\n"), "another expression"),
        (program("if x: return w, x", PLACED), "on the line of another statement"),
        (
            program("return w, x", PLACED).replace("def step", "def other").replace(
                "    step, in", "    lambda w, x: (w, x), in"
            ),
            "not defined by a def statement",
        ),
        (
            {"train.py": f"import jax\n{MESH}{PLACED}", "steps.py": program("return w, x")},
            "neither imports the other",
        ),
    ],
)  # fmt: skip
def test_state_stays_replicated_with_a_reason(files, why):
    with pytest.raises(CannotShardError, match=why):
        edited(files)


def test_edits_that_do_not_fit_together_change_nothing():
    text = program("return w, x", PLACED)
    version = Version(Path("/project"), {"/project/train.py": text.encode()}, [])
    with pytest.raises(CannotEditError, match=r"train\.py: two changes overlap"):
        version.edited({"/project/train.py": [Edit(1, 0, 1, 6, "a"), Edit(1, 3, 1, 8, "b")]})
    with pytest.raises(CannotEditError, match="would not parse"):
        version.edited({"/project/train.py": [Edit(1, 0, 1, 6, "import import")]})


needs_devices = pytest.mark.skipif(jax.device_count() < 2, reason="needs 2 devices")


def on_mesh():
    """Returns a function that places an array, and a replicated state."""
    n = jax.device_count()
    mesh = jax.make_mesh((n,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    put = lambda x, spec: jax.device_put(x, jax.NamedSharding(mesh, spec))
    return put, {"w": put(np.ones((16 * n, 128)), jax.P()), "count": put(np.int32(0), jax.P())}


@needs_devices
def test_state_is_what_replicated_arguments_become():
    put, state = on_mesh()
    batch = put(np.ones((8 * jax.device_count(), 128)), jax.P("batch"))
    facts = StepState([state, batch, 0.1], {}, (state, np.float32(0))).facts
    assert facts["held"] == [0]
    assert facts["outputs"] == [(0, 0)]
    assert (facts["arguments"], facts["parts"]) == (3, 2)
    assert StepState([state], {"x": batch}, state).facts["parts"] is None
    host = {"w": np.ones((jax.device_count(), 1024))}
    assert StepState([host], {}, host).facts["is_unplaced"]
    odd = {"w": put(np.ones((1, 1)), jax.P())}
    assert not StepState([odd], {}, odd).facts["held"]


@needs_devices
def test_state_that_does_not_come_back_as_it_was_sharded_is_refused():
    put, whole = on_mesh()
    parts = {"w": put(np.asarray(whole["w"]), jax.P("batch")), "count": whole["count"]}
    assert StepState([parts], {}, parts).why_not_sharded([0]) == ""
    assert "has another sharding" in StepState([parts], {}, whole).why_not_sharded([0])
    assert "is replicated before the call" in StepState([whole], {}, parts).why_not_sharded([0])
    host = {"w": np.asarray(whole["w"]), "count": whole["count"]}
    assert "not placed on the mesh" in StepState([host], {}, parts).why_not_sharded([0])


def test_batches_of_processes_are_named_and_folded():
    text = """\
import jax
from jax.experimental import multihost_utils


def main():
    mesh = jax.make_mesh((8,), ("batch",))
    for x, y in batches:
        w, loss = step(
            w,
            *multihost_utils.host_local_array_to_global_array(
                (x, y), mesh, jax.P("batch")
            ),
        )
"""
    version = Version(Path("/project"), {"/project/train.py": text.encode()}, [])
    [after] = process_batches.placed(version, [], lambda chosen, new: True).data.values()
    assert after.decode() == """\
import jax


def main():
    mesh = jax.make_mesh((8,), ("batch",))
    sharded = jax.NamedSharding(mesh, jax.P("batch"))
    for x, y in batches:
        w, loss = step(
            w, *jax.make_array_from_process_local_data(sharded, (x, y))
        )
"""  # fmt: skip
    refused = process_batches.placed(version, [], lambda chosen, new: False)
    assert refused is version


def test_shardings_that_have_a_name_are_not_named_again():
    text = """\
import jax
from jax.experimental import multihost_utils


def main():
    mesh = jax.make_mesh((8,), ("batch",))
    by_example = jax.NamedSharding(mesh, jax.P('batch'))
    w, x = step(
        multihost_utils.host_local_array_to_global_array(w, mesh, jax.P()),
        multihost_utils.host_local_array_to_global_array(x, mesh, jax.P("batch")),
    )
"""
    version = Version(Path("/project"), {"/project/train.py": text.encode()}, [])
    [after] = process_batches.placed(version, [], lambda chosen, new: True).data.values()
    shardings = [line for line in after.decode().splitlines() if "NamedSharding" in line]
    assert shardings == [
        "    replicated = jax.NamedSharding(mesh, jax.P())",
        "    by_example = jax.NamedSharding(mesh, jax.P('batch'))",
    ]
    assert b"local_data(replicated, w)" in after
    assert b"local_data(by_example, x)" in after
