"""Classes with a code and a page, one per file: rules of ``check`` and findings of ``audit``."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable
from typing import ClassVar, TypeVar

T = TypeVar("T", bound="Coded")


class Coded:
    """The base of classes with a stable code, whose docstring is their page of documentation."""

    code: ClassVar[str]

    @classmethod
    def slug(cls) -> str:
        """Returns the name with hyphens: ``negative-out-axes`` for ``NegativeOutAxes``."""
        return re.sub("(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()

    @classmethod
    def page(cls) -> str:
        # A command that shows no page need not import every error.
        from pmapx._src.errors import base

        return base.page(cls)

    @classmethod
    def summary(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "").partition("\n")[0]


def all_in(package: str, path: Iterable[str], base: type[T]) -> dict[str, type[T]]:
    """Returns the subclasses of ``base`` in the modules of a package, by code."""
    found: dict[str, type[T]] = {}
    for item in pkgutil.walk_packages(path, f"{package}."):
        module = importlib.import_module(item.name)
        for cls in vars(module).values():
            if (
                isinstance(cls, type)
                and issubclass(cls, base)
                and cls.__module__ == module.__name__
            ):
                if cls.code in found:
                    raise AssertionError(f"{cls.code} is taken by {found[cls.code].__name__}")
                found[cls.code] = cls
    return dict(sorted(found.items()))
