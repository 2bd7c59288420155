"""The public names: what is added to or taken from this list is seen by every user."""

import inspect
import pkgutil

import pytest

import pmapx
import pmapx._src.cli

PUBLIC = {
    "AUTO": None,
    "AuditReport": None,
    "CacheInfo": None,
    "Cluster": None,
    "Installation": None,
    "Move": None,
    "Pmapped": None,
    "PmapxError": None,
    "PmapxWarning": None,
    "__version__": None,
    "audit": (
        "(f=None, *args, topology=None, scaling=(), scale=None, build=None, what_if=None, **kwargs)"
    ),
    "check": "(paths, settings=None, *, processes=1, progress=None)",
    "barrier": "(name, timeout=300)",
    "device_put_replicated": "(x, devices)",
    "device_put_sharded": "(shards, devices)",
    "errors": None,
    "initialize": "(coordinator_address=None, num_processes=None, process_id=None, *, "
    "timeout=300, heartbeat_timeout=100, **options)",
    "install": "(*, indexing=True, oversubscribe=False)",
    "launch": "(n, devices_per_process, argv, *, env=None, grace=5.0, logs=None, "
    "stall_report=None)",
    "local_slice": "(x, i)",
    "migrate": "(paths, *, exclude=(), to='shard_map', style='global', evidence=None, named=(), "
    "command=None, mesh='auto', fsdp=False, helpers=None, topology=None, progress=None)",
    "pmap": "(fun, axis_name=None, *, in_axes=0, out_axes=0, static_broadcasted_argnums=(), "
    "devices=None, backend=None, axis_size=None, donate_argnums=(), reshard='allow', "
    "oversubscribe=False, compiler_options=None, view='local', check_replicas=False, "
    "global_arg_shapes=None)",
    "prefetch": "(iterator, size=2, devices=None)",
    "replicate": "(tree, devices=None)",
    "reports": None,
    "shard_batch": "(tree, devices=None)",
    "testing": None,
    "stitch": "(local_tree, mesh_or_devices, spec=None, *, check=True)",
    "to_host": "(tree)",
    "uninstall": "()",
    "unreplicate": "(tree)",
    "unstitch": "(global_tree)",
    "verify": "(command, before, after, *, below='.', changed=None, devices=None, calls=50, "
    "tolerance=None, timeout=3600.0, exclude=(), only=None, env=None, progress=None)",
}
MEMBERS = {
    "CacheInfo": {"traces", "compiles", "calls", "moved", "reasons"},
    "Cluster": {"kind", "found_by", "coordinator", "process", "processes"},
    "Installation": {"patched", "uninstall"},
    "Move": {"argument", "reason", "count"},
    "Pmapped": {"cache_info", "clear_cache", "eval_shape", "lower", "trace"},
}
COMMANDS = {
    "audit",
    "check",
    "checkpoint",
    "completion",
    "explain",
    "info",
    "migrate",
    "run",
    "verify",
}


def signature(function):
    """A signature without its annotations."""
    found = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=found.empty))


def test_the_public_names_are_these():
    assert set(pmapx.__all__) == PUBLIC.keys()


@pytest.mark.parametrize("name", MEMBERS)
def test_what_a_class_shows_is_this(name):
    shown = {*vars(getattr(pmapx, name)), *inspect.get_annotations(getattr(pmapx, name))}
    assert {member for member in shown if not member.startswith("_")} == MEMBERS[name]


def test_the_commands_are_these():
    found = pkgutil.iter_modules(pmapx._src.cli.__path__)
    assert {module.name for module in found if not module.name.startswith("_")} == COMMANDS


@pytest.mark.parametrize("name", [name for name, wanted in PUBLIC.items() if wanted])
def test_the_signature_is_this(name):
    assert signature(getattr(pmapx, name)) == PUBLIC[name]
