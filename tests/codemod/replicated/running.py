"""Programs before and after the replicated style, run and compared."""

import os
import pickle
import subprocess
import sys

from pmapx._src.codemod.evidence.proof_run import prove
from pmapx._src.codemod.migration import migrate
from pmapx._src.watch.run_in_copy import Command
from virtual_devices import xla_flags

RUNNER = """
import pathlib, pickle, runpy, sys
import jax, numpy as np
# Of many steps in flight, XLA's CPU backend now and then finishes none.
jax.config.update("jax_cpu_enable_async_dispatch", False)
*folders, out = map(pathlib.Path, sys.argv[1:])
results = {}
for folder in folders:
    for path in sorted(folder.iterdir()):
        known = set(sys.modules)
        main = path / "main.py" if path.is_dir() else path
        sys.path.insert(0, str(path))
        names = runpy.run_path(str(main))
        sys.path.remove(str(path))
        for name in set(sys.modules) - known:
            # Another version of the program has modules of the same names.
            if str(path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        result = [(jax.tree_util.keystr(k), np.asarray(v))
                  for k, v in jax.tree_util.tree_flatten_with_path(names["RESULT"])[0]]
        state = [(leaf.shape, len(leaf.sharding.device_set), leaf.sharding.is_fully_replicated)
                 for leaf in jax.tree.leaves(names["STATE"])]
        results[folder.name, path.stem] = result, state
out.write_bytes(pickle.dumps(results))
"""


class Runs:
    """Every program before and after, by a run, by its source and by names, and what came of it."""

    def __init__(self, folder, texts, named=None):
        """Run programs, each a text or a dict of files; ``named`` are names to try as well."""
        self.folder = folder
        self._write("old", texts)
        (folder / "runner.py").write_text(RUNNER)
        evidence = prove(Command(self._command("before", "old"), devices=8, timeout=300))
        self.done = {}
        for name in texts:
            self._migrate(name, "new", evidence=evidence)
            self._migrate(name, "source")
            if named and name in named:
                self._migrate(name, "named", named=named[name])
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        env |= {"XLA_FLAGS": xla_flags(8), "JAX_PLATFORMS": "cpu"}
        versions = ["new", "source", "named"] if named else ["new", "source"]
        command = self._command("after", *versions)
        run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, run.stderr[-3000:]
        self._results = pickle.loads((folder / "before").read_bytes())
        self._results |= pickle.loads((folder / "after").read_bytes())

    def result(self, version, name):
        """Return what a program set RESULT to, by its path in the tree."""
        return self._results[version, name][0]

    def state(self, version, name):
        """Return shape, devices and whether they are replicated, of each leaf of STATE."""
        return self._results[version, name][1]

    def differences(self, version, name):
        """Return the leaves of RESULT that are not equal to the bit."""
        before, after = self.result("old", name), self.result(version, name)
        if [path for path, _ in before] != [path for path, _ in after]:
            return [path for path, _ in after]
        return [
            path
            for (path, old), (_, new) in zip(before, after, strict=True)
            if (old.dtype, old.shape, old.tobytes()) != (new.dtype, new.shape, new.tobytes())
        ]

    def text(self, version, name):
        """Return all files of a program, one after the other."""
        path = self.path(version, name)
        files = sorted(path.glob("*.py")) if path.is_dir() else [path]
        return "".join(file.read_text() for file in files)

    def path(self, version, name):
        """Return a program's file, or its folder."""
        folder = self.folder / version / name
        return folder if folder.is_dir() else folder.with_suffix(".py")

    def _write(self, version, texts):
        for name, text in texts.items():
            files = {f"{name}.py": text} if isinstance(text, str) else text
            within = self.folder / version / ("" if isinstance(text, str) else name)
            within.mkdir(parents=True, exist_ok=True)
            for file, content in files.items():
                (within / file).write_text(content)

    def _migrate(self, name, version, **options):
        old = self.path("old", name)
        done = migrate([str(old)], style="replicated", **options)
        self.done[version, name] = done
        files = sorted(old.glob("*.py")) if old.is_dir() else [old]
        texts = {file.name: file.read_text() for file in files}
        texts |= {os.path.basename(file.path): file.after.decode() for file in done.files}
        self._write(version, {name: texts if old.is_dir() else texts[old.name]})

    def _command(self, out, *versions):
        folders = [str(self.folder / version) for version in versions]
        return [sys.executable, str(self.folder / "runner.py"), *folders, str(self.folder / out)]
