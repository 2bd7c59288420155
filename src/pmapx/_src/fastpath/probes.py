"""A piece of private JAX: probed at its first use, replaced by its public twin if that fails."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from pmapx._src import errors
from pmapx._src.fastpath.jax_src import PUBLIC_ONLY
from pmapx._src.mesh.context_mesh import without_context_mesh

PIECES: list[Piece] = []
_pending: list[errors.PmapxWarning] = []


class Unlike(Exception):
    """A piece does not do what its twin does."""


class Piece:
    """A piece that works as its twin does, as far as a probe can tell; else the twin is used.

    ``probe`` runs once, at first use, with the arguments of that ``is_usable`` or none, and may
    raise anything. An optional piece may fail on supported releases, where another one passes:
    that gives no warning.
    """

    def __init__(
        self, name: str, probe: Callable[..., None], cost: str, *, is_optional: bool = False
    ) -> None:
        """Registers a piece under ``name``; ``cost`` is what users pay for its absence."""
        self.name = name
        self.reason: str | None = "PMAPX_PUBLIC_ONLY is set" if PUBLIC_ONLY else None
        self.is_optional = is_optional
        self._cost = cost
        self._probe = probe
        self._usable: bool | None = False if PUBLIC_ONLY else None
        self._lock = threading.RLock()
        self._is_probing = False
        PIECES.append(self)

    def is_usable(self, *args: Any) -> bool:
        """Whether to use the piece, and not its twin."""
        usable = self._usable
        return self._probed(*args) if usable is None else usable

    @property
    def is_given_up(self) -> bool:
        """Whether the twin is used for good."""
        return self._usable is False

    def fail(self, error: Exception, *, quietly: bool = False) -> None:
        """Uses the twin from now on; warns once."""
        with self._lock:
            was_given_up, self._usable = self._usable is False, False
            if was_given_up:
                return
            self.reason = f"{type(error).__name__}: {error}"
        if not quietly:
            _warn(errors.FastPathUnavailable(self.name, self.reason, self._cost, jax.__version__))

    def _probed(self, *args: Any) -> bool:
        with self._lock:
            if self._is_probing:
                return True  # What the probe itself uses.
            self._is_probing = True
            try:
                if self._usable is None:
                    with _undisturbed():
                        self._probe(*args)
                    self._usable = True
            except Exception as error:
                self.fail(error, quietly=self.is_optional)
            finally:
                self._is_probing = False
            return bool(self._usable)


def passes(probe: Callable[..., None], *args: Any) -> bool:
    """Whether a probe of an optional piece raises nothing."""
    try:
        with _undisturbed():
            probe(*args)
    except Exception:
        return False
    return True


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keeps what surrounds a first use, such as a trace or debug_nans, away from its probe."""
    with (
        jax.ensure_compile_time_eval(),
        without_context_mesh(),
        jax.transfer_guard("allow"),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.disable_jit(False),
        jax.check_tracer_leaks(False),
    ):
        yield


def _warn(warning: errors.PmapxWarning) -> None:
    """Warns now, or at the next call where warnings are errors: this one may have run already."""
    try:
        errors.warn(warning)
    except errors.PmapxWarning:
        _pending.append(warning)


def warn_of_pending() -> None:
    """Issues a warning that could not be raised after a call had run."""
    if _pending:
        errors.warn(_pending.pop())


def probed_pieces() -> dict[str, bool | str]:
    """Probes every piece; returns True for each that is in use, and why for each that is not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FastPathUnavailable)
        in_use = {piece: piece.is_usable() or str(piece.reason) for piece in PIECES}
    # Optional ones stand in for each other.
    is_replaced = any(piece.is_optional and found is True for piece, found in in_use.items())
    shown = {
        piece.name: found
        for piece, found in in_use.items()
        if found is True or not (piece.is_optional and is_replaced)
    }
    return {"public only": PUBLIC_ONLY, **shown}


def check_alike(private: Any, public: Any) -> None:
    """Raises ``Unlike`` unless two trees of arrays are the same in all that a user can see."""
    found, wanted = str(jax.tree.structure(private)), str(jax.tree.structure(public))
    if found != wanted:
        raise Unlike(f"{found} in place of {wanted}")
    for x, y in zip(jax.tree.leaves(private), jax.tree.leaves(public), strict=True):
        for attribute in ("shape", "dtype", "weak_type", "sharding", "committed"):
            found, wanted = getattr(x, attribute), getattr(y, attribute)
            if found != wanted:
                raise Unlike(f"{attribute} {found} in place of {wanted}")
        if not np.array_equal(np.asarray(x), np.asarray(y)):
            raise Unlike(f"values {np.asarray(x)} in place of {np.asarray(y)}")
