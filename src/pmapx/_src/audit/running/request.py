"""The options of an audit of a running program; the command passes them in the environment."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from pmapx._src import errors

_VARIABLE = "PMAPX_AUDIT"


@dataclasses.dataclass(frozen=True)
class Request:
    """The target topologies, and how arguments are scaled for them."""

    topology: str | None = None  # The topology to compile for; None for the devices of the program.
    scaling: tuple[str, ...] = ()  # The topologies of the table.
    # By the name of an argument, the dimension that grows, or None if it keeps its shape.
    scale: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    # A function as ``module:name`` that builds a function and its arguments for devices.
    build: str | None = None
    what_if: str | None = None  # ``fsdp`` for the cost of each step with its state sharded.

    def in_environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return {**env, _VARIABLE: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def from_environment(cls) -> Request:
        known = json.loads(os.environ.get(_VARIABLE) or "{}")
        return cls(**{**known, "scaling": tuple(known.get("scaling", ()))})


def progress(what: str) -> None:
    """Prints what takes a while."""
    print(f"pmapx audit: {what}", file=sys.stderr, flush=True)


def function_named(name: str) -> Any:
    """Imports a function by ``module:name``, from the current folder too.

    >>> function_named("math:sqrt")(4)
    2.0
    """
    module, colon, attributes = name.partition(":")
    found: Any = None
    if colon:
        sys.path.insert(0, os.getcwd())
        try:
            found = importlib.import_module(module)
            for attribute in attributes.split("."):
                found = getattr(found, attribute)
        except (ModuleNotFoundError, AttributeError) as error:
            raise errors.NoSuchBuild(name, str(error)) from None
        finally:
            sys.path.remove(os.getcwd())
    if not callable(found):
        raise errors.NoSuchBuild(name, "it is not written as module:function")
    return found
