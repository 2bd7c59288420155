"""``install`` and ``uninstall``: JAX as code for the old pmap expects it, and back."""

from __future__ import annotations

import functools
import threading
from types import TracebackType
from typing import Any

from pmapx._src import fastpath
from pmapx._src.legacy import mixed_device_operators, pmap_names, removed_names, restored_names
from pmapx._src.legacy import shard_indexing as indexing
from pmapx._src.legacy.import_hooks import AfterImport
from pmapx._src.legacy.patches import Bindings

_LOCK = threading.RLock()
_current: Installation | None = None


def install(*, indexing: bool = True, oversubscribe: bool = False) -> Installation:
    """Puts back what JAX removed with the old pmap, so that code written for it runs unchanged.

    ``jax.pmap`` becomes ``pmapx.pmap``, ``jax.device_put_replicated`` and
    ``jax.device_put_sharded`` are there again, and ``replicate``, ``unreplicate``,
    ``prefetch_to_device`` and ``shard`` of Flax become the fast ones. Modules that took one of
    these names from JAX or Flax before are given the new one; Flax may also be imported later.
    Names around pmap that later releases removed (``jax.tree_map``, ``jax.random.KeyArray``,
    ``jax.config.config``) are back too, and arithmetic between a result of pmap and an array on
    one device is computed there.
    Functions that were mapped before the call stay as they are. Calling it again changes nothing.

    Example:
      >>> import jax, pmapx
      >>> with pmapx.install():
      ...     rows = jax.device_put_replicated(1.0, jax.devices())
      >>> rows.shape == (jax.device_count(),)
      True

    Args:
      indexing: whether ``x[i]``, ``x[i:i+1]`` and iteration over an array with one row a device
        give each row on its own device, without communication.
      oversubscribe: whether ``jax.pmap`` may run more elements than there are devices.

    Returns:
      A handle to print (what was replaced), to undo, or to use as a context manager.
    """
    global _current
    with _LOCK:
        if _current is None:
            _current = Installation()
        _current._apply(indexing, oversubscribe)
        return _current


def uninstall() -> None:
    """Leaves JAX and all modules as they were before ``install``; does nothing without one.

    Example:
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
    """What ``install`` replaced.

    Example:
      >>> import pmapx
      >>> with pmapx.install() as installed:
      ...     "jax.pmap" in installed.patched
      True
    """

    def __init__(self) -> None:
        """Replaces nothing yet."""
        self._bindings = Bindings()
        self._imports = AfterImport((*pmap_names.FLAX, *restored_names.LATER), self._imported)
        self._originals: dict[str, Any] = {}
        self._options: tuple[bool, bool] | None = None
        self._plain_calls = 0
        self._entered = 0

    @property
    def patched(self) -> tuple[str, ...]:
        """The names that are replaced, e.g. ``jax.pmap``."""
        return self._bindings.names

    def __str__(self) -> str:
        """Lists the replaced names, one a line."""
        if not self.patched:
            return "pmapx is not installed"
        return "\n".join(["pmapx replaced:", *(f"  {name}" for name in self.patched)])

    def uninstall(self) -> None:
        """Leaves JAX and all modules as they were, however often it was installed."""
        global _current
        with _LOCK:
            self._undo()
            self._plain_calls = self._entered = 0
            if _current is self:
                _current = None

    def __enter__(self) -> Installation:
        """Stays installed until the block ends."""
        with _LOCK:
            self._plain_calls -= 1
            self._entered += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Uninstalls with the last block that needs it, unless it was installed for good."""
        with _LOCK:
            self._entered -= 1
            if self._entered <= 0 and self._plain_calls <= 0:
                self.uninstall()

    def _apply(self, index_rows: bool, oversubscribe: bool) -> None:
        options = (index_rows, oversubscribe)
        if self._options != options:
            self._undo()
        try:
            # Again even if nothing changed: modules may have been imported since.
            pmap_names.take_over_jax(self._bindings, oversubscribe, self._originals)
            if self._options is None:
                self._imports.start()
                removed_names.put_back(self._bindings)
                restored_names.put_back(self._bindings)
                _compute_on_one_device(self._bindings)
                if index_rows:
                    _index_rows(self._bindings)
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
            if module.__name__ in restored_names.LATER:
                restored_names.put_back_in(self._bindings, module)
            else:
                pmap_names.take_over_flax(self._bindings, module)


def _index_rows(bindings: Bindings) -> None:
    array = fastpath.array_type()
    getitem, iterate = mixed_device_operators.make_operator(array.__getitem__), array.__iter__
    bindings.set(array, "__getitem__", indexing.make_getitem(getitem), "jax.Array.__getitem__")
    bindings.set(array, "__iter__", indexing.make_iter(iterate), "jax.Array.__iter__")


def _compute_on_one_device(bindings: Bindings) -> None:
    array = fastpath.array_type()
    for name in mixed_device_operators.NAMES:
        operator = mixed_device_operators.make_operator(getattr(array, name))
        functools.update_wrapper(operator, getattr(array, name))
        bindings.set(array, name, operator, f"jax.Array.{name}")
