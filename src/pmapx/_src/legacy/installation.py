"""``install`` and ``uninstall``: patch JAX for code written for the original pmap, and undo it."""

from __future__ import annotations

import functools
import threading
from typing import Any

from pmapx._src import fastpath
from pmapx._src.legacy import array_operators, pmap_and_flax, pmap_sharding_and_flags, renamed_names
from pmapx._src.legacy.patches import AfterImport, Bindings

_LOCK = threading.RLock()
_current: Installation | None = None


def install(*, indexing: bool = True, oversubscribe: bool = False) -> Installation:
    """Restores what JAX removed with the original pmap, so that code written for it runs unchanged.

    ``jax.pmap`` becomes ``pmapx.pmap``; ``jax.device_put_replicated`` and
    ``jax.device_put_sharded`` exist again; Flax's ``replicate``, ``unreplicate``,
    ``prefetch_to_device`` and ``shard`` become pmapx's faster ones. Modules that already imported
    one of these names from JAX or Flax get the new one; Flax may also be imported later. Related
    names that JAX removed (``jax.tree_map``, ``jax.random.KeyArray``, ``jax.config.config``) exist
    again, and arithmetic between a pmap output and an array on one device runs on that device.
    Functions that are already pmapped do not change. Calling ``install`` again has no effect.

    Examples:
      >>> import jax, pmapx
      >>> with pmapx.install():
      ...     x = jax.device_put_replicated(1.0, jax.devices())
      >>> x.shape == (jax.device_count(),)
      True

    Args:
      indexing: whether ``x[i]``, ``x[i:i+1]`` and iteration over an array with a leading device
        axis return each shard on its own device, without communication.
      oversubscribe: whether ``jax.pmap`` accepts a mapped axis larger than the number of devices.

    Returns:
      A handle that lists the replaced names, undoes the installation, and is a context manager.
    """
    global _current
    with _LOCK:
        if _current is None:
            _current = Installation()
        _current._apply(indexing, oversubscribe)
        return _current


def uninstall() -> None:
    """Undoes ``install``: restores JAX and all patched modules; does nothing if not installed.

    Examples:
      >>> import jax, pmapx
      >>> before = jax.pmap
      >>> _ = pmapx.install()
      >>> pmapx.uninstall()
      >>> jax.pmap is before
      True
    """
    with _LOCK:
        if _current is not None:
            _current.uninstall()


class Installation:
    """A handle to what ``install`` replaced.

    Examples:
      >>> import pmapx
      >>> with pmapx.install() as installed:
      ...     "jax.pmap" in installed.patched
      True
    """

    def __init__(self) -> None:
        self._bindings = Bindings()
        self._imports = AfterImport((*pmap_and_flax.FLAX, *renamed_names.LATER), self._imported)
        self._originals: dict[str, Any] = {}
        self._options: tuple[bool, bool] | None = None
        self._plain_calls = 0
        self._entered = 0

    @property
    def patched(self) -> tuple[str, ...]:
        """The replaced names, e.g. ``jax.pmap``."""
        return self._bindings.names

    def __str__(self) -> str:
        if not self.patched:
            return "pmapx is not installed"
        return "\n".join(["pmapx replaced:", *(f"  {name}" for name in self.patched)])

    def uninstall(self) -> None:
        """Restores JAX and all patched modules, however often ``install`` was called."""
        global _current
        with _LOCK:
            self._undo()
            self._plain_calls = self._entered = 0
            if _current is self:
                _current = None

    def __enter__(self) -> Installation:
        with _LOCK:
            self._plain_calls -= 1
            self._entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Uninstalls after the outermost block, unless ``install`` was also called without one."""
        with _LOCK:
            self._entered -= 1
            if self._entered <= 0 and self._plain_calls <= 0:
                self.uninstall()

    def _apply(self, indexing: bool, oversubscribe: bool) -> None:
        options = (indexing, oversubscribe)
        if self._options != options:
            self._undo()
        try:
            # Repeated even if the options are the same: more modules may be imported by now.
            pmap_and_flax.replace_in_jax(self._bindings, oversubscribe, self._originals)
            if self._options is None:
                self._imports.start()
                pmap_sharding_and_flags.restore(self._bindings)
                renamed_names.restore(self._bindings)
                _patch_operators(self._bindings)
                if indexing:
                    _patch_indexing(self._bindings)
        except BaseException:
            self._undo()
            raise
        self._options = options
        self._plain_calls += 1

    def _undo(self) -> None:
        self._imports.stop()
        self._bindings.undo()
        self._originals.clear()
        self._options = None

    def _imported(self, module: Any) -> None:
        with _LOCK:
            if module.__name__ in renamed_names.LATER:
                renamed_names.restore_in(self._bindings, module)
            else:
                pmap_and_flax.replace_in_flax(self._bindings, module)


def _patch_indexing(bindings: Bindings) -> None:
    array = fastpath.array_type()
    getitem = array_operators.make_getitem(array_operators.make_operator(array.__getitem__))
    bindings.set(array, "__getitem__", getitem, "jax.Array.__getitem__")
    iterate = array_operators.make_iter(array.__iter__)
    bindings.set(array, "__iter__", iterate, "jax.Array.__iter__")


def _patch_operators(bindings: Bindings) -> None:
    array = fastpath.array_type()
    for name in array_operators.NAMES:
        operator = array_operators.make_operator(getattr(array, name))
        functools.update_wrapper(operator, getattr(array, name))
        bindings.set(array, name, operator, f"jax.Array.{name}")
