"""The first module of a watched program: waits for JAX, then calls the hooks of the parent.

Only the standard library is used before JAX is there, so that a program that never imports it
pays nothing.
"""

import importlib
import importlib.util
import os
import pathlib
import sys


class _AfterJax:
    """A finder that calls the hooks as soon as the module ``jax`` has run."""

    def find_spec(self, fullname, path, target=None):  # type: ignore[no-untyped-def]
        """Finds jax as the other finders do, and adds the hooks to its loader."""
        if fullname != "jax":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec("jax")
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module):  # type: ignore[no-untyped-def]
                run(module)
                _call_hooks()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _call_hooks() -> None:
    # At the end: what the program would import stays what it imports.
    sys.path.append(os.environ["PMAPX_HOME"])
    records = pathlib.Path(os.environ["PMAPX_RECORDS"])
    for hook in filter(None, os.environ["PMAPX_HOOKS"].split(",")):
        module, _, name = hook.partition(":")
        getattr(importlib.import_module(module), name)(records)
    shutdown = importlib.import_module("pmapx._src.distributed.shutdown")
    sys.excepthook = shutdown.without_pmapx_frames(sys.excepthook)


def _import_the_other_sitecustomize() -> None:
    """Python imports one module of this name; the environment may have its own."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    ours = sys.modules.pop(__name__, None)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        if ours is not None:
            sys.modules[__name__] = ours


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, _AfterJax())  # type: ignore[arg-type]
    _import_the_other_sitecustomize()
