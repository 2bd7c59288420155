"""Each finding is reported for a program with its fault, and not for the fixed program."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import pmapx
from pmapx._src import fastpath
from pmapx._src.audit.findings import Finding, all_findings
from pmapx._src.audit.subject import Subject

pytestmark = pytest.mark.needs_devices(8)
N = 8
ROWS = np.arange(N * 4, dtype=np.float32).reshape(N, 4)
P = PartitionSpec


def pmapped(fun=None, /, **options):
    if fun is None:
        return functools.partial(pmapped, **options)
    return pmapx.pmap(fun, "i", **options)


def over_devices(fun, in_specs, out_specs):
    mesh = Mesh(np.array(jax.devices()[:N]), ("i",))
    mapped = jax.shard_map(fun, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return jax.jit(mapped)


def step(w, x):
    return w - lax.pmean(x * w, "i")


def called_with(f, *calls):
    for args in calls:
        f(*args)
    return f, *calls[-1]


def weights():
    return pmapx.replicate(np.ones(4, np.float32))


def two_reductions(x):
    return lax.psum(x, "i"), lax.psum(jnp.int32(x), "i")


def one_reduction(x):
    return lax.psum((x, x * x), "i")


def chained_reductions(x):
    return lax.psum(x / lax.psum(x, "i"), "i")


def update_means(x, state):
    new = {"mean": 0.9 * state["mean"] + x, "count": state["count"] + lax.psum(1.0, "i")}
    return new, lax.psum(x, "i")


def update_reduced_means(x, state):
    return update_means(lax.pmean(x, "i"), state)


def means():
    return pmapx.replicate({"mean": np.ones(4, np.float32), "count": np.float32(0)})


def index_outside(x):
    mapped = over_devices(lambda x: 2 * x, P("i"), P("i"))
    return mapped(x)[3]


def sort_outside(x):
    return jnp.sort(over_devices(lambda x: 2 * x, P("i"), P("i"))(x), axis=0)


def sum_outside(x):
    return over_devices(lambda x: 2 * x, P("i"), P("i"))(x).sum(0)


def global_step(w, x):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.1 * grads, loss


def sharded_batch():
    over = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    return jax.device_put(np.ones((2 * N, 4), np.float32), jax.sharding.NamedSharding(over, P("i")))


MIB = np.ones((N, 2**18), np.float32) * np.arange(N, dtype=np.float32)[:, None]

# For each code: calls that have the fault, calls that have not.
PROGRAMS = {
    "PMX601": (
        [lambda: (pmapped(step), weights(), ROWS)],
        [
            lambda: (pmapped(step, in_axes=(None, 0), out_axes=None), np.ones(4, "float32"), ROWS),
            lambda: (pmapped(lambda x: 2 * x), np.ones((N, 4), np.float32)),
            lambda: (pmapped(lambda x, y: x * y), ROWS, ROWS + 1),
        ],
    ),
    "PMX602": (
        [lambda: (jax.jit(index_outside), ROWS)],
        [lambda: (jax.jit(lambda x: pmapped(lambda x: x)(x)), ROWS)],
    ),
    "PMX603": (
        [lambda: (pmapped(two_reductions), ROWS)],
        [
            lambda: (pmapped(one_reduction), ROWS),
            lambda: (pmapped(chained_reductions), ROWS),
            lambda: (pmapped(lambda x: (lax.psum(x, "i"), lax.pmax(jnp.int32(x), "i"))), ROWS),
        ],
    ),
    "PMX604": (
        [
            lambda: (pmapped(lambda x: x + 1), jax.device_put(ROWS, jax.devices()[0])),
            lambda: (pmapped(lambda x: x + 1), jnp.asarray(ROWS)),
            lambda: called_with(
                pmapped(lambda x: x + 1), *[(jax.device_put(ROWS, jax.devices()[0]),)] * 3
            ),
        ],
        [
            lambda: (pmapped(lambda x: x + 1), ROWS),
            lambda: (pmapped(lambda x: x + 1), pmapx.shard_batch(ROWS)[:, 0]),
        ],
    ),
    "PMX605": (
        [
            lambda: called_with(pmapped(lambda x: x + 1), (ROWS,), (ROWS[:, :2],)),
            lambda: called_with(
                pmapped(lambda x, s: x * s, in_axes=(0, None)), (ROWS, 2.0), (ROWS, jnp.float32(2))
            ),
        ],
        [lambda: called_with(pmapped(lambda x: x + 1), (ROWS,), (ROWS,))],
    ),
    "PMX606": (
        [
            lambda: (pmapped(lambda w, x: lax.all_gather(w, "i") @ x), ROWS, ROWS),
            lambda: (over_devices(lambda w: lax.all_gather(w, "i"), P("i"), P()), ROWS),
        ],
        [lambda: (pmapped(lambda w, x: lax.all_gather(jnp.sin(w) @ x, "i")), ROWS, ROWS)],
    ),
    "PMX607": (
        [lambda: (pmapped(lambda x: x.sum(), donate_argnums=0), ROWS)],
        [lambda: (pmapped(lambda x: x + 1, donate_argnums=0), ROWS)],
    ),
    "PMX608": (
        [
            lambda: (jax.jit(sort_outside), ROWS),
            lambda: (jax.jit(sum_outside), ROWS),
            lambda: (jax.jit(lambda x: jnp.sort(x, axis=0)), sharded_batch()),
        ],
        [
            lambda: (over_devices(lambda x: lax.psum(x, "i"), P("i"), P()), ROWS),
            lambda: (jax.jit(global_step), np.ones((4, 2), np.float32), sharded_batch()),
        ],
    ),
    "PMX609": (
        [lambda: (pmapped(update_means), ROWS, means())],
        [lambda: (pmapped(update_reduced_means), ROWS, means())],
    ),
    "PMX610": (
        [lambda: (pmapped(lambda s, x: (s + lax.pmean(x, "i"), x.sum())), MIB, MIB)],
        [
            lambda: (pmapped(lambda s, x: (s + x, x.sum()), donate_argnums=0), MIB, MIB),
            lambda: (pmapped(step), weights(), ROWS),
            # A copy is made to keep both.
            lambda: (pmapped(jnp.copy), MIB),
            lambda: (jax.jit(lambda s: jnp.copy(s)), pmapped(jnp.copy)(MIB)),
        ],
    ),
    "PMX611": (
        [lambda: (pmapped(lambda x: lax.all_gather(x, "i").max(0)), ROWS)],
        [lambda: (pmapped(step), weights(), ROWS)],
    ),
    "PMX612": (
        [lambda: (pmapped(lambda x: x + 1), MIB)],
        [lambda: (pmapped(lambda x: x + 1), ROWS)],
    ),
}
OPTIONS = {"PMX611": {"scaling": "cpu:2,8"}}


def codes(code, make):
    if code in OPTIONS and N < 8 and fastpath.more_cpu_devices(1) is None:
        pytest.skip("public JAX makes its CPU devices once")
    f, *args = make()
    if code == "PMX612":  # Virtual CPU devices have no memory of their own.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Subject, "capacity", 2**20)
            return {remark.code for remark in pmapx.audit(f, *args).findings}
    return {remark.code for remark in pmapx.audit(f, *args, **OPTIONS.get(code, {})).findings}


def cases(which):
    return [
        pytest.param(code, make, id=f"{code}-{number}")
        for code, programs in PROGRAMS.items()
        for number, make in enumerate(programs[which])
    ]


@pytest.mark.parametrize(("code", "make"), cases(0))
@pytest.mark.filterwarnings("ignore::pmapx.PmapxWarning")
def test_a_program_with_the_fault_is_reported(code, make):
    assert code in codes(code, make)


@pytest.mark.parametrize(("code", "make"), cases(1))
@pytest.mark.filterwarnings("ignore::pmapx.PmapxWarning")
def test_a_program_without_it_is_not(code, make):
    assert code not in codes(code, make)


def test_there_is_a_program_for_every_code():
    assert PROGRAMS.keys() == all_findings().keys()


@pytest.mark.parametrize("code", sorted(all_findings()))
def test_every_finding_has_a_page_with_what_to_do(code):
    kind = all_findings()[code]

    assert issubclass(kind, Finding)
    assert "What to do:" in inspect.getdoc(kind)
    assert kind.page().startswith(f"{code} {kind.__name__}: ")


def test_two_reductions_name_their_lines_and_bytes():
    report = pmapx.audit(pmapped(two_reductions), ROWS)

    (remark,) = [remark for remark in report.findings if remark.code == "PMX603"]
    assert "2 all-reduces over i (" in remark.message
    assert "16 B f32" in remark.message
    assert "16 B s32" in remark.message
    assert "cast them to one dtype" in remark.fix
    assert f"test_findings.py:{two_reductions.__code__.co_firstlineno + 1}" in remark.message


def test_a_weak_type_is_named_as_the_reason_and_in_the_fix():
    f = pmapped(lambda x, s: x * s, in_axes=(0, None))
    f(ROWS, 2.0)
    f(ROWS, jnp.float32(2))

    report = pmapx.audit(f, ROWS, 2.0)

    (remark,) = [remark for remark in report.findings if remark.code == "PMX605"]
    assert "weak type changed" in remark.message
    assert "jnp.float32(0)" in remark.fix


def test_state_that_drifts_names_the_line_that_lacks_a_pmean():
    report = pmapx.audit(pmapped(update_means), ROWS, means())

    (remark,) = [remark for remark in report.findings if remark.code == "PMX609"]
    line = f"test_findings.py:{update_means.__code__.co_firstlineno + 1}"
    assert f"varies since x, no pmean before {line}" in remark.message


def test_a_program_that_the_compiler_refuses_names_its_largest_arrays(monkeypatch):
    def refuse(lowered):
        raise RuntimeError("RESOURCE_EXHAUSTED: it needs 18.64G and there are 15.75G.")

    monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    report = pmapx.audit(pmapped(step), weights(), MIB[:, :4], topology="cpu:8")

    (remark,) = [remark for remark in report.findings if remark.code == "PMX612"]
    assert remark.message.startswith("it needs 18.64G and there are 15.75G; the largest arrays")
    assert "w float32[8,4] 16 B" in remark.message
    assert "RESOURCE_EXHAUSTED" in str(report)
