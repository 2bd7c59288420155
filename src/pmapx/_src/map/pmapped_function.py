"""What ``pmap`` returns: called without a Python frame, with attributes that ``wraps`` cannot copy.

``functools.wraps`` copies a function's ``__dict__``, and JAX uses a ``lower``, ``trace`` or
``eval_shape`` that it finds on a function. So they are methods of a class here, and the instance's
``__dict__`` holds only what ``functools.wraps`` put there.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from pmapx._src import errors
from pmapx._src.map.cache_info import CacheInfo, CacheSize
from pmapx._src.map.options import Options

if TYPE_CHECKING:
    from pmapx._src.map.pmap import PmapImpl
    from pmapx._src.map.program_builder import ProgramBuilder


class PmappedFunction:
    """A pmapped function as its user sees it."""

    # Python finds a slot named __call__ without a frame of its own: calling this object calls what
    # the slot holds. A method would cost a small program a tenth of its call.
    __slots__ = ("__call__", "__dict__", "__weakref__", "_mapped", "_pmapx")
    __call__: Callable[..., Any]
    __qualname__: str

    def __init__(self, builder: ProgramBuilder, impl: PmapImpl) -> None:
        fun = builder.fun
        functools.update_wrapper(self, fun)
        for name in _METHODS.intersection(vars(self)):
            del vars(self)[name]  # Such as those of a jit that is pmapped.
        self.__name__: str = getattr(fun, "__name__", builder.function)
        self.__wrapped__ = fun
        self._mapped = impl
        self._pmapx = builder

    def __get__(
        self, instance: Any, owner: Any = None, bind: Callable[..., Any] = types.MethodType
    ) -> Any:
        """Binds as a method, as functions do."""
        return self if instance is None else bind(self, instance)

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        """Lowers it for these arguments, or their shapes, as ``jax.jit(f).lower`` does."""
        return self._mapped.lower(*args, **kwargs)

    def trace(self, /, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Traces it for these arguments, or their shapes, as ``jax.jit(f).trace`` does."""
        return self._mapped.trace(*args, **kwargs)

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """Returns the shapes and types of the result, without compiling."""
        return self._mapped.trace(*args, **kwargs).out_info

    def cache_info(self) -> CacheInfo:
        """Returns what it traced, compiled and transferred so far."""
        return self._mapped.statistics.read()

    def clear_cache(self) -> None:
        """Drops all programs, and what ``cache_info`` counted."""
        self._mapped.clear_cache()

    @property
    def _cache_size(self) -> CacheSize:
        return CacheSize(self._mapped.dispatcher.size())

    def __repr__(self) -> str:
        return f"<pmapped function {self.__name__} at {id(self):#x}>"

    def __deepcopy__(self, memo: Any = None) -> PmappedFunction:
        """Returns itself, as functions do."""
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> Any:
        """Pickles it by its name, as functions are; one without a name, as its function is."""
        if _found_by_name(self) and not _is_pickled_by_value(self):
            return self.__qualname__
        devices = self._pmapx.options.devices
        options = dataclasses.replace(self._pmapx.options, devices=None)
        ids = devices and [(device.platform, device.id) for device in devices]
        attributes = {name: value for name, value in vars(self).items() if name[:2] != "__"}
        return _pmapped_again, (type(self._mapped), self.__wrapped__, options, ids), attributes


_METHODS = frozenset(name for name in vars(PmappedFunction) if not name.startswith("__"))


def _found_by_name(function: PmappedFunction) -> bool:
    found: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    for name in getattr(function, "__qualname__", "<none>").split("."):
        found = getattr(found, name, None)
    return found is function


def _is_pickled_by_value(function: PmappedFunction) -> bool:
    """Whether the caller is cloudpickle, which pickles definitions in ``__main__`` by value."""
    caller = sys._getframe(2).f_globals.get("__name__", "")
    return function.__module__ == "__main__" and "cloudpickle" in caller


def _pmapped_again(
    impl: type[PmapImpl],
    fun: Callable[..., Any],
    options: Options,
    ids: list[tuple[str, int]] | None,
) -> PmappedFunction:
    """Recreates a pickled function, on the devices of these platforms and ids if any."""
    if ids is not None:
        by_id = {
            (d.platform, d.id): d for name in {name for name, _ in ids} for d in jax.devices(name)
        }
        missing = [each for each in ids if each not in by_id]
        if missing:
            raise errors.UnknownOption("devices", missing, "devices that this process has")
        options = dataclasses.replace(options, devices=tuple(by_id[each] for each in ids))
    return impl(fun, options).as_function()
