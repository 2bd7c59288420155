"""What the source alone shows to be equal on all devices is equal by the traced program, too."""

import importlib.util
import itertools
import sys
from pathlib import Path

import pytest

pytest.importorskip("click", reason="needs pmapx[tools]")

import bodies
from example_programs import PROGRAMS
from state_programs import BOUNDARIES, BY_FIELD, HEAD, REPLICATED, STACKED
from trainer_programs import HEAD as TRAINER_HEAD
from trainer_programs import STAYS, TRAINERS

from pmapx._src.analysis.project import Project
from pmapx._src.codemod.evidence.proof_run import prove
from pmapx._src.codemod.replicated.groups import SINGLE
from pmapx._src.codemod.replicated.maps import Maps
from pmapx._src.codemod.varying.proof import SourceProof
from pmapx._src.codemod.varying.values import Cause, Value
from pmapx._src.source.discovery import files_below
from pmapx._src.watch.run_in_copy import Command

IDIOMS = Path(__file__).parents[1] / "idioms" / "programs"
RUNNER = """
import contextlib, io, runpy, sys
from pathlib import Path
import jax
jax.config.update("jax_cpu_enable_async_dispatch", False)
for name in sys.argv[1:]:
    path = Path(name)
    main = path / "main.py" if path.is_dir() else path
    known = set(sys.modules)
    sys.path.insert(0, str(main.parent))
    with contextlib.redirect_stdout(io.StringIO()):
        names = runpy.run_path(str(main), run_name="program")
        if "main" in names and "RESULT" not in names:
            names["main"]()
    sys.path.remove(str(main.parent))
    for each in set(sys.modules) - known:
        if str(path) in str(getattr(sys.modules[each], "__file__", "")):
            del sys.modules[each]
"""


def state_programs():
    others = {name: text for name, (text, _) in {**STACKED, **BOUNDARIES, **BY_FIELD}.items()}
    texts = {**REPLICATED, **others}
    return {name: HEAD + text for name, text in texts.items()}


def trainers():
    texts = {name: text for name, (text, _) in {**TRAINERS, **STAYS}.items()}
    return {n: TRAINER_HEAD + t if isinstance(t, str) else t for n, t in texts.items()}


def written(folder, texts):
    """Write programs, each a text or a dict of files; return their paths."""
    for name, text in texts.items():
        files = {f"{name}.py": text} if isinstance(text, str) else text
        within = folder if isinstance(text, str) else folder / name
        within.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (within / file).write_text(content)
    return sorted(folder.iterdir())


def is_runnable(program):
    return all(importlib.util.find_spec(name) for name in program.libraries)


def claims(folder, paths):
    """Yield each claim of the source's proof with what the traced program has against it."""
    runner = folder / "runner.py"
    runner.write_text(RUNNER)
    command = [sys.executable, str(runner), *map(str, paths)]
    evidence = prove(Command(command, devices=8, timeout=500))
    for path in paths:
        files = [each for each in files_below([str(path)]) if isinstance(each, str)]
        project = Project(files, others=40, has_definitions=True)
        for file in files:
            project.module(file, data=Path(file).read_bytes())
        modules = [module for module in project.modules.values() if module is not None]
        maps, proof = Maps(modules, evidence), SourceProof(modules)
        for each in maps:
            if each.record is not None and not each.record.problem:
                yield from of_map(path, maps, proof, each)


def of_map(path, maps, proof, each):
    record = each.record
    positions = sorted(int(name) for name in record.names if name.isdigit())
    count = max(positions, default=-1) + 1
    mapped = [i for i in range(count) if i not in each.static and each.in_axis(i) is not None]
    chosen = [set(), set(mapped), *({i} for i in mapped), *(set(mapped) - {i} for i in mapped)]
    for taken in chosen:
        names = [*each.parameters, *map(str, range(len(each.parameters), count))]
        arguments = [
            Cause(f"`{names[i]}`") if i in mapped and i not in taken else None for i in range(count)
        ]
        has_keywords = any(not name.isdigit() for name in record.names)
        rest = Value() if each.static else None
        if has_keywords:
            rest = Value(Cause("`keyword`"))
        functions = maps.functions_of(each)
        results = proof.varying(each.module, functions, each.axis, arguments, rest)
        indices = [SINGLE] if record.arity is None else range(record.arity)
        for index in indices:
            key = "single" if index == SINGLE else str(index)
            against = [record.varies[key]] if key in record.varies else []
            against += [
                outputs[key]
                for argument, outputs in record.with_.items()
                if key in outputs and each.index_of(argument) not in taken
            ]
            where = f"{path.name}:{each.made_at.line} {each.name} {key} given {sorted(taken)}"
            yield where, results.reason(index), against


def checked(folder, paths):
    """Return wrong claims, and the numbers of claims and of what the traced program shows."""
    found = list(claims(folder, paths))
    wrong = [f"{where}: {against}" for where, reason, against in found if against and not reason]
    made = sum(not reason for _, reason, _ in found)
    missed = [f"{where}: {reason}" for where, reason, against in found if reason and not against]
    return wrong, made, missed


@pytest.fixture(scope="module")
def of_bodies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bodies")
    texts = {n: bodies.HEAD + text + bodies.TAIL for n, (text, _) in bodies.BODIES.items()}
    return list(claims(folder, written(folder / "programs", texts)))


def test_no_claim_about_a_body_is_wrong(of_bodies):
    assert [
        (where, against) for where, reason, against in of_bodies if against and not reason
    ] == []


@pytest.mark.parametrize("name", bodies.BODIES)
def test_results_of_a_body_differ_as_expected(of_bodies, name):
    found = {
        int(where.split()[2]): reason
        for where, reason, _ in of_bodies
        if where.startswith(f"{name}.py") and where.endswith("given [0]")
    }
    assert found
    differing = {index for index, reason in found.items() if reason}
    assert differing == bodies.BODIES[name][1], found


def test_a_reason_names_what_it_depends_on_and_where(of_bodies):
    reasons = [r for where, r, _ in of_bodies if where.startswith("the_index_of_the_device.py")]
    assert (
        "`state['w'] + noise` depends on axis_index(...) (line 13) "
        "and is never reduced over 'batch'"
    ) in reasons


def test_small_programs(tmp_path):
    paths = written(tmp_path / "programs", state_programs())
    wrong, made, missed = checked(tmp_path, paths)
    assert wrong == []
    assert made > 100
    assert len(missed) < made / 4, missed


@pytest.mark.slow
def test_trainers(tmp_path):
    wrong, made, missed = checked(tmp_path, written(tmp_path / "programs", trainers()))
    assert wrong == []
    assert made > 60
    assert len(missed) < made / 4, missed


CHUNKS = list(itertools.batched(sorted(PROGRAMS), 16)) if hasattr(itertools, "batched") else [
    sorted(PROGRAMS)[start : start + 16] for start in range(0, len(PROGRAMS), 16)
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("names", CHUNKS, ids=lambda names: names[0])
def test_whole_programs(tmp_path, names):
    paths = [PROGRAMS[name].path for name in names if is_runnable(PROGRAMS[name])]
    wrong, made, _ = checked(tmp_path, paths)
    assert wrong == []
    assert made


@pytest.mark.slow
def test_idioms(tmp_path):
    paths = sorted(path for path in IDIOMS.iterdir() if "_by_hand" not in path.name)
    wrong, made, _ = checked(tmp_path, [path for path in paths if "__" not in path.name])
    assert wrong == []
    assert made
