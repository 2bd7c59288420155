"""The program that a call is recorded into: its devices, and errors when it is lowered.

A program of XLA has one set of devices in one order. When several pmapped functions of different
sizes or device orders are called in one ``jit``, the first one decides, and the others run on its
devices. The decision is kept for as long as the outermost trace lives.

``jax.eval_shape`` and ``jax.make_jaxpr`` only trace, and a pmap that needs more devices than there
are can be traced. A trace cannot know whether its program will run, so the error becomes part of
it: an identity on the results that cannot be lowered.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import Mesh

from pmapx._src.mesh import device_mesh
from pmapx._src.mesh.context_mesh import mesh_in_type

try:
    from jax.extend.core import take_current_trace
except ImportError:  # Before JAX 0.8.2.
    from jax.core import take_current_trace  # type: ignore[attr-defined, no-redef]

# A mesh axis that nothing refers to: a pmap sees the devices along its own axis.
_DEVICES = "pmapx_devices"

_meshes: weakref.WeakKeyDictionary[Any, Mesh] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _outermost() -> Any:
    """Returns the outermost trace under way that records a program, None if there is none."""
    with take_current_trace() as trace:
        outermost = None
        while trace is not None:
            if hasattr(trace, "frame"):
                outermost = trace
            trace = getattr(trace, "parent_trace", None)
        return outermost


def mesh_to_share(
    mesh: Mesh, leaves: Sequence[Any], available: Sequence[jax.Device]
) -> Mesh | None:
    """Returns the devices to use in place of those of ``mesh``; None if it can have its own.

    ``leaves`` are the arguments: one that has a mesh in its type is committed to as many devices.
    """
    outermost = _outermost()
    if outermost is None:
        return None
    with _lock:
        shared = _meshes.get(outermost)
        if shared is None:
            devices = list(mesh.devices.flat)
            in_types = filter(None, map(mesh_in_type, leaves))
            count = next((each.size for each in in_types), len(devices))
            if len(devices) != count <= len(available):
                devices = list(available[:count])
            shared = device_mesh.make_mesh(devices, [(_DEVICES, len(devices))])
            _meshes[outermost] = shared
    return None if list(shared.devices.flat) == list(mesh.devices.flat) else shared


@contextlib.contextmanager
def undone_on_error() -> Iterator[None]:
    """Drops a decision made inside on an error: the pmap may be recorded again on more devices."""
    outermost = _outermost()
    is_decided = outermost is None or outermost in _meshes
    try:
        yield
    except BaseException:
        if not is_decided:
            with _lock:
                _meshes.pop(outermost, None)
        raise


_refused = Primitive("pmapx_refused")


def refused(result: Any, error: Exception) -> Any:
    """Returns a traced result whose program raises ``error`` when it is lowered."""
    error.__traceback__ = None  # It would keep the frames of this trace alive.
    return jax.tree.map(lambda leaf: _refused.bind(leaf, error=error), result)


def _refuse(*_: Any, error: Exception) -> Any:
    raise error


def _transpose(cotangent: Any, x: Any, *, error: Exception) -> list[Any]:
    if type(cotangent) is ad.Zero:
        return [ad.Zero(x.aval)]
    return [_refused.bind(cotangent, error=error)]


_refused.def_impl(_refuse)
_refused.def_abstract_eval(lambda x, *, error: x)
ad.deflinear2(_refused, _transpose)
batching.primitive_batchers[_refused] = lambda args, dimensions, *, error: (
    _refused.bind(args[0], error=error),
    dimensions[0],
)
mlir.register_lowering(_refused, _refuse)
