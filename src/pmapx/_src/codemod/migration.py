"""From paths to rewritten files, without the command line."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence

from pmapx._src.codemod.comments import with_shard_map
from pmapx._src.codemod.current_names import with_current_names
from pmapx._src.codemod.evidence.evidence import Evidence
from pmapx._src.codemod.evidence.proof_run import prove
from pmapx._src.codemod.program import Migration, Program, Progress
from pmapx._src.codemod.to_jit.conversion import convert
from pmapx._src.codemod.write.shared_module import SharedModule
from pmapx._src.source import gc_paused
from pmapx._src.source.command_error import CommandError
from pmapx._src.source.rewriting import atomic_write
from pmapx._src.watch.run_in_copy import Command
from pmapx._src.watch.tree_copies import tree_around_paths

NEEDS_COMMAND = (
    "to='jit' needs a command that runs the program for some steps, as "
    "command=['python', 'train.py', '--steps', '3']: a run shows what each step computes"
)


def migrate(
    paths: Sequence[str],
    *,
    exclude: Sequence[str] = (),
    to: str = "shard_map",
    style: str = "global",
    evidence: Evidence | None = None,
    named: Sequence[str] = (),
    command: Command | Sequence[str] | None = None,
    mesh: str = "auto",
    fsdp: bool = False,
    helpers: str | None = None,
    topology: str | None = None,
    progress: Progress | None = None,
) -> Migration:
    r"""Returns every file below the paths as it would be; nothing is written.

    Nothing is imported or run either, except for a ``command``, in copies of the tree.

    Examples:
      >>> import pathlib, tempfile, pmapx
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (folder / "train.py").write_text("import jax\nstep = jax.pmap(lambda x: x + 1)\n")
      >>> [file] = pmapx.migrate([str(folder)]).files
      >>> "shard_map" in file.after.decode()
      True

    Args:
      paths: files and folders.
      exclude: patterns of files and folders to leave out.
      to: ``shard_map``, plain JAX; ``pmapx``, the same code with pmapx's functions; or ``jit``,
        ``jax.jit`` over the global batch for each map that is proven to be batch-parallel, and
        ``shard_map`` for the others.
      style: ``global`` drops the leading device axis from what is proven equal on all devices, and
        merges batches into global ones; ``replicated`` does the first alone; ``stacked`` neither.
      evidence: what a run of the program showed.
      named: what the user calls replicated, as ``function:argument``.
      command: the program and its arguments, as ``["python", "train.py"]``, which ``jit`` needs.
      mesh: with ``jit``: the type of the mesh's axes, ``auto``, or ``explicit`` where JAX accepts
        all steps with it.
      fsdp: with ``jit``: shards parameters and optimizer state over the data axis, each array along
        its largest dimension that the number of devices divides; arrays of fewer than 1,024
        elements stay replicated.
      helpers: a module of the project, created if it is not there, for the functions that
        migrated files call and the meshes that several need. Without it, each file has its own, but
        for a mesh that files can have from a module which they import already.
      topology: with ``jit``: a target, as ``v5e:4x4``, for which both forms are audited too.
      progress: called with the number of files read, and of all.

    Raises:
      CommandError: if ``helpers`` cannot be written, or imported by a file that needs it.
      NamingError: if a name in ``named`` leads to nothing.
      CannotRunError: if the command cannot be started.
      ProofError: if it fails.
      ValueError: if ``to`` is ``jit`` and there is no command, or options need ``jit``.
    """
    _check_options(to, command, mesh, fsdp, topology)
    if to == "jit":
        command = command if isinstance(command, Command) else Command(command or ())
        root = tree_around_paths(paths)
        evidence = prove(command, root) if evidence is None else evidence

    def read() -> Program:
        program = Program.read(paths, exclude, progress)
        if helpers is not None and to != "pmapx":
            program.shared = shared_module(helpers, paths, has_meshes=mesh == "auto")
        program.is_last_form = to == "shard_map"
        return program

    form = "shard_map" if to == "jit" else to
    program, done = _in_style(read, form, style, evidence or Evidence(), named)
    if to == "jit" and isinstance(command, Command):
        files, forms = convert(
            paths, exclude, done.files, command, root,
            mesh=mesh, with_fsdp=fsdp, topology=topology,
        )  # fmt: skip
        found = dataclasses.replace(done, files=tuple(files), forms=tuple(forms), global_form=done)
        done = program.tidied(found)
    return done if to == "pmapx" else _with_comments(done)


def _check_options(to: str, command: object, mesh: str, fsdp: bool, topology: str | None) -> None:
    if fsdp and (to != "jit" or mesh != "auto"):
        raise ValueError("fsdp=True needs to='jit' and mesh='auto'")
    if topology is not None and to != "jit":
        raise ValueError("topology needs to='jit'")
    if to == "jit" and command is None:
        raise ValueError(NEEDS_COMMAND)


def _in_style(
    read: Callable[[], Program], to: str, style: str, evidence: Evidence, named: Sequence[str]
) -> tuple[Program, Migration]:
    with gc_paused.left_alone():
        program = read()
        try:
            return program, _with_current_names(program, to, style, evidence, named)
        except CommandError:
            raise
        except Exception as error:
            if style == "stacked" or to == "pmapx":
                raise
            # A bug in pmapx: the stacked style needs little of the analysis.
            program = read()
            done = _with_current_names(program, to, "stacked", Evidence(), ())
            return program, dataclasses.replace(done, failure=error)


def _with_current_names(
    program: Program, to: str, style: str, evidence: Evidence, named: Sequence[str]
) -> Migration:
    # The places of a run are those of the files.
    is_as_it_is = to == "pmapx" or evidence.has_run
    edits = {} if is_as_it_is else program.spelled_out()
    if edits:
        done = _migrated(program.changed(edits), to, style, evidence, named)
        done = program.with_places(done, edits)
    else:
        done = _migrated(program, to, style, evidence, named)
    done = program.tidied(_renamed(program, done), has_notebooks=to != "pmapx")
    return done if to == "pmapx" else program.with_shared_module(done)


def _migrated(
    program: Program, to: str, style: str, evidence: Evidence, named: Sequence[str]
) -> Migration:
    if style == "stacked" or (style == "global" and to == "pmapx"):
        return program.migration(program.rewritten(to))
    is_merging = style == "global"
    while True:
        known = len(program.refused)
        restyled = program.restyled(evidence, named, to, is_merging=is_merging)
        files = program.rewritten_after(restyled, to)
        if files is not None:
            return program.migration(files, restyled.gains, restyled.stays)
        # Again without what was refused; or else without merged batches.
        if len(program.refused) == known and not is_merging:
            break
        is_merging = is_merging and len(program.refused) > known
    return program.migration(program.rewritten(to))


def _renamed(program: Program, done: Migration) -> Migration:
    """Replaces the names that JAX removed in what was rewritten and in all other files."""
    files, count = with_current_names(program.paths, done.files)
    return dataclasses.replace(done, files=tuple(files), renamed=count)


def _with_comments(done: Migration) -> Migration:
    """Renames pmap in the comments beside what was rewritten."""
    files, left = [], []
    for file in done.files:
        if file.is_changed and file.outcomes:
            after, lines = with_shard_map(file.path, file.before, file.after)
            file = dataclasses.replace(file, after=after)
            left += [(file.path, line) for line in lines]
        files.append(file)
    return dataclasses.replace(done, files=tuple(files), old_comments=tuple(left))


def shared_module(path: str, paths: Sequence[str], *, has_meshes: bool = True) -> SharedModule:
    """Returns the module of what files share, in the current folder or in that of the files.

    Raises:
      CommandError: if it cannot be there.
    """
    given = [os.path.realpath(each) for each in paths]
    root = os.path.commonpath([p if os.path.isdir(p) else os.path.dirname(p) for p in given])
    here = os.path.realpath(os.curdir)
    atomic_write.check(path)
    is_inside = os.path.commonpath([here, root]) == here
    return SharedModule(path, here if is_inside else root, has_meshes=has_meshes)
