"""With PMAPX_PUBLIC_ONLY=1 nothing private of JAX is used, and nothing else changes."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]

KEY_TESTS = [
    "map/test_map.py::test_the_function_sees_one_shard_without_the_mapped_axis",
    "map/test_map.py::test_a_negative_out_axis_counts_from_the_end",
    "map/test_map.py::test_typed_keys_go_in_and_come_out",
    "map/test_map.py::test_static_arguments_that_are_equal_share_a_program",
    "map/test_map.py::test_one_function_serves_32_and_64_bits_in_turn",
    "spmd/test_collectives.py::test_a_training_step_keeps_replicas_equal_to_one_big_batch",
    "map/test_transformations.py::test_jit_of_a_pmap_traces_it_once",
    "map/test_transformations.py::test_debug_nans_raises",
    "map/test_transformations.py::test_disable_jit_gives_the_same_result",
    "map/test_one_program.py",
    "mesh/test_placement.py::test_calls_work_inside_the_old_mesh_context",
    "mesh/test_placement.py::test_placed_inputs_pass_under_the_transfer_guard",
    "map/test_stages.py::test_a_donated_input_is_reused_and_reads_as_deleted",
    "map/test_threads_and_garbage.py::test_threads_that_make_the_first_call_together_compile_once",
    "map/test_threads_and_garbage.py::test_a_pmapped_method_frees_its_object",
]


PIECES = """
from pmapx._src import fastpath as _fastpath
print(_fastpath.probed_pieces())
"""


def test_no_private_piece_is_used_on_public_jax_alone(run_python):
    pieces = ast.literal_eval(run_python(PIECES, PMAPX_PUBLIC_ONLY="1"))

    assert pieces.pop("public only")
    assert set(pieces.values()) == {"PMAPX_PUBLIC_ONLY is set"}


def test_this_jax_passes_every_probe(run_python):
    pieces = ast.literal_eval(run_python(PIECES, PMAPX_PUBLIC_ONLY=""))

    assert not pieces.pop("public only")
    assert set(pieces.values()) == {True}


def test_the_key_tests_pass_on_public_jax_alone():
    if os.environ.get("PMAPX_PUBLIC_ONLY", "") not in ("", "0"):
        pytest.skip("the whole run is on public JAX alone")

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *KEY_TESTS],
        cwd=HERE,
        env={**os.environ, "PMAPX_PUBLIC_ONLY": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
