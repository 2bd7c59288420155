"""On the path of a Python process: JAX is there without its ``pmap``, from its import on."""

import sys
from importlib.machinery import SourceFileLoader

_run = SourceFileLoader.exec_module


def _exec_module(loader, module):
    _run(loader, module)
    if module.__name__ == "jax":
        del sys.modules[module.pmap.__module__].pmap
        del module.pmap


SourceFileLoader.exec_module = _exec_module
