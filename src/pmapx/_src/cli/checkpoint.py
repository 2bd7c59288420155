"""``pmapx checkpoint``: removes the device axis from checkpoints, or adds it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from pmapx._src.cli._command_line import options
from pmapx._src.cli._terminal import Progress, next_step
from pmapx._src.pages.formatting import first, in_bytes
from pmapx._src.source.command_error import CommandError

if TYPE_CHECKING:
    from pmapx._src.checkpoint.conversion import Conversion

# More leaves than this are counted.
_SHOWN = 8
# Reading this much takes seconds in which nothing would be shown.
_LARGE = 2**28


@click.group("checkpoint", short_help="Remove the device axis from a checkpoint, or add it.")
def command() -> None:
    """Remove the device axis of pmap's replicated state from a checkpoint, or add it.

    A checkpoint is a pickle, a Flax msgpack file, an .npz file or an Orbax folder; which one is
    detected from its content. OLD is never changed, and NEW is written complete or not at all.
    Exits with 0 if NEW is written, 1 if leaves differ between devices, 2 on an error.

    \b
    Examples:
      pmapx checkpoint unstack old.msgpack new.msgpack
      pmapx checkpoint stack new.msgpack old.msgpack -n 8
    """


_paths_and_options = options(
    click.argument("old", type=click.Path()),
    click.argument("new", type=click.Path()),
    click.option(
        "--keep",
        multiple=True,
        metavar="PATTERN",
        help="Copy these leaves as they are: a path as printed, such as \"params['dense']\", or a "
        "prefix of it; * matches any text.",
    ),
    click.option(
        "--trust-pickle", is_flag=True, help="Load a pickle, which can run arbitrary code."
    ),
    click.option("--force", is_flag=True, help="Overwrite NEW."),
    click.option("--dry-run", is_flag=True, help="Check everything, and write nothing."),
)


@command.command("unstack")
@click.option(
    "-n",
    type=click.IntRange(1),
    metavar="N",
    help="The number of devices; by default the leading size that all arrays share.",
)
@click.option(
    "--first",
    multiple=True,
    metavar="PATTERN",
    help="Take device 0's copy of these leaves, even where the others differ.",
)
@_paths_and_options
@click.pass_context
def unstack(ctx: click.Context, /, old: str, new: str, dry_run: bool, **options: Any) -> None:
    """Write OLD to NEW without the leading device axis.

    All copies of a leaf must be equal to the bit. A leaf whose copies differ, such as a PRNG key
    per device, is an error, unless --keep leaves it stacked or --first takes device 0's copy.
    Scalars and arrays without the axis stay as they are.

    \b
    Examples:
      pmapx checkpoint unstack old.npz new.npz --dry-run
      pmapx checkpoint unstack runs/old runs/new --keep rng
      pmapx checkpoint unstack old.pkl new.pkl --trust-pickle --first "*.rng"
      pmapx checkpoint unstack old.msgpack new.msgpack -n 8
    """
    done = _convert(ctx, "unstack", old, new, dry_run=dry_run, **options)
    _show(done, "unstacked", f"from {done.n} copies to one", dry_run)
    if not dry_run:
        click.echo(
            f"Wrote {new} ({done.kind}): restore it in place of {old}, "
            "without unreplicate or x[0].\nNext: place it on all devices: "
            "jax.device_put(state, NamedSharding(mesh, P()))"
        )


@command.command("stack", short_help="Write OLD to NEW with N copies of every array.")
@click.option(
    "-n", required=True, type=click.IntRange(1), metavar="N", help="The number of devices."
)
@_paths_and_options
@click.pass_context
def stack(ctx: click.Context, /, old: str, new: str, dry_run: bool, **options: Any) -> None:
    """Write OLD to NEW with N copies of every array along a leading device axis.

    Scalars of Python and NumPy stay as they are.

    \b
    Examples:
      pmapx checkpoint stack new.npz old.npz -n 8
      pmapx checkpoint stack new.msgpack old.msgpack -n 8 --keep step
    """
    done = _convert(ctx, "stack", old, new, dry_run=dry_run, **options)
    _show(done, "stacked", f"to {done.n} copies each", dry_run)
    if not dry_run:
        click.echo(f"Wrote {new} ({done.kind}).")
        next_step(f"restore it in a program that maps over {done.n} devices.")


def _convert(ctx: click.Context, operation: str, old: str, new: str, **options: Any) -> Conversion:
    if "jax" not in sys.modules:
        # Arrays go from disk to disk: an accelerator has nothing to do, and may not hold them.
        os.environ["JAX_PLATFORMS"] = "cpu"
    if options["trust_pickle"]:
        # As under python -m: the classes in a pickle are often in modules of the current folder.
        sys.path.append(os.getcwd())
    from pmapx._src.checkpoint import conversion
    from pmapx._src.checkpoint.base import LeavesDifferError

    convert = conversion.stack if operation == "stack" else conversion.unstack
    if os.path.isfile(old) and os.path.getsize(old) > _LARGE and sys.stderr.isatty():
        click.echo(f"Reading {old} ({in_bytes(os.path.getsize(old))})", err=True)
    try:
        with Progress(f"{operation.capitalize()}ing") as progress:
            return convert(old, new, progress=progress.advance, **options)
    except LeavesDifferError as error:
        lines = [f"pmapx: {error.summary}; nothing is written:"]
        lines += [f"  {line}" for line in first(error.leaves, _SHOWN)]
        click.echo("\n".join([*lines, error.advice]), err=True)
        ctx.exit(1)
    except OSError as error:
        raise CommandError(f"cannot convert {old}: {error}") from None


def _show(done: Conversion, verb: str, how: str, is_dry: bool) -> None:
    """One line for leaves that are as they were, one with the totals."""
    for label, leaves in (
        ("kept as they are: ", list(done.kept)),
        ("left alone, no device axis: ", [f"{path} ({kind})" for path, kind in done.left]),
    ):
        if leaves:
            more = f" and {len(leaves) - _SHOWN} more" if len(leaves) > _SHOWN else ""
            click.echo(label + ", ".join(leaves[:_SHOWN]) + more)
    would = "would be " if is_dry else ""
    count = f"{len(done.changed)} {'leaf' if len(done.changed) == 1 else 'leaves'}"
    sizes = f"arrays: {in_bytes(done.bytes_before)} before, {in_bytes(done.bytes_after)} after"
    click.echo(
        f"{count} {would}{verb} {how}, {len(done.kept)} kept, {len(done.left)} left alone; {sizes}"
    )
    if is_dry:
        next_step("run it again without --dry-run.")
