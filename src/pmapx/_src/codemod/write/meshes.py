"""The meshes that a file's rewritten uses share: their names, and where each is made.

A mesh is made once for each axis name: in the function that has all uses of it, or at the top level
of a file that is run, above the first use. In a file that others import, a mesh at the top level
would start JAX's backend when it is imported, so that each function makes its own. With a module
that files share (``shared_module``), a mesh that several of them need is made there; without, by a
function of a module that they import anyway (``common_functions``).
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import os
import re
import weakref
from collections.abc import Iterable, Sequence

from pmapx._src.analysis.definitions import LOOPS
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.codemod.decide import axis_names, specs
from pmapx._src.codemod.decide.nested_pmaps import Grid
from pmapx._src.codemod.decide.process_model import Surroundings
from pmapx._src.codemod.forms import process_calls, top_level
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.text.name_uses import name_uses
from pmapx._src.codemod.write.common_functions import MESH, CommonFunctions
from pmapx._src.codemod.write.shared_module import AUTO, SharedModule, all_devices
from pmapx._src.source import files as sources
from pmapx._src.source.files import first_line

_STARTS_BACKEND = ("jax.numpy.", "jax.random.", "jax.device", "jax.local_device", "jax.devices")


@dataclasses.dataclass(slots=True, eq=False)
class _Mesh:
    """A mesh with its users."""

    axis: str
    name: str
    users: list[ast.AST] = dataclasses.field(default_factory=list)


class Meshes:
    """Gives every use the text of its mesh, and the file the statements that make them."""

    def __init__(
        self,
        module: Module,
        around: Surroundings,
        shared: SharedModule | None = None,
        common: CommonFunctions | None = None,
    ) -> None:
        self.module = module
        self._common = common
        # The module of the meshes that several files need, and what this file imports from it.
        self._shared = shared
        self.imported: dict[str, str] = {}
        self._quoted = Editor(module.source).quoted
        self.default_axis = axis_names.of_maps(module)
        self.quoted_axis = self._quoted(self.default_axis)
        self._may_start = not around.is_set_late and _is_run(module)
        self.in_processes = around.in_processes
        self._meshes: dict[str, _Mesh] = {}
        # The constants of the file that hold the names of axes, and their lines.
        self._constants: dict[str, tuple[str, int]] = {}
        # The text of meshes of two axes, and of those of one process.
        self._grids: dict[str, tuple[str, ...]] = {}
        # Statements that make the mesh of one use alone, by the line that they stand above.
        self._own: dict[int, tuple[str, tuple[str, ...]]] = {}

    def assign(self, uses: Sequence[Use]) -> None:
        """Names the mesh of each use; one that is made while tracing has no name."""
        self._find_constants(uses)
        for use in uses:
            use.near_mesh = ""  # A file may be written more than once.
            value = specs.axis_value(self.module, use.site) or self.default_axis
            is_outside = self._home(use.node) is None
            devices = use.known_layout.devices
            axis, size = f"({use.axis},)", use.counted_argument
            if use.grid is not None:
                self._assign_grid(use, use.grid)
            elif use.is_sized and (fixed := _fixed_size(use)):
                use.mesh = ("jax.make_mesh", f"({fixed},)", axis, AUTO)
                use.is_lazy = use.is_made_again or (is_outside and not self._may_start)
            elif use.is_sized:
                size = "" if use.is_made_again else size
                use.is_lazy = not size
                size = f"(len(jax.tree.leaves({size})[0]),)" if size else "({size},)"
                own = [f"devices={devices}"] if devices else []
                use.mesh = ("jax.make_mesh", size, axis, *own, AUTO)
            elif devices and use.may_have_no_devices:
                function, every, _, types = self._made(value)
                use.mesh = (function, f"{every} if {devices} is None else {devices}", axis, types)
                use.is_lazy = use.is_made_again
            elif devices == specs.LOCAL and use.is_axis_constant:
                self._assign_local(use, value)
            elif devices:
                use.mesh = ("jax.sharding.Mesh", devices, axis, AUTO)
                # Only what asks for devices itself starts the backend there.
                is_early = is_outside and not self._may_start
                is_own = use.site.option("devices") is not None
                use.is_lazy = use.is_made_again or (is_early and not is_own)
            elif not use.is_axis_constant:
                # It may be another in a subclass, or for another caller.
                function, devices, _, types = self._made(value)
                use.mesh = (function, devices, axis, types)
                use.is_lazy = is_outside and not self._may_start
            elif use.is_made_again or (is_outside and not self._may_start):
                use.mesh, use.is_lazy = tuple(self._parts(value)), True
            else:
                use.mesh = (self._name(value, use.node),)
            if len(use.mesh) > 1 and process_calls.is_at_site(use):
                # It is named several times.
                self._give_name(use)
        made = [use for use in uses if len(use.mesh) > 1 and not use.is_lazy and not use.is_sized]
        made = [use for use in made if not use.is_made_again]
        counts = collections.Counter((use.mesh, self._home(use.node)) for use in made)
        for use in made:
            if counts[use.mesh, self._home(use.node)] > 1:
                self._give_name(use)
        for use in uses:
            self._give_top_mesh(use)

    def _find_constants(self, uses: Sequence[Use]) -> None:
        """Finds the constants that all uses of an axis name it by, bound once in the file."""
        texts: dict[str, set[str]] = {}
        for use in uses:
            value = specs.axis_value(self.module, use.site)
            text = use.known_layout.axis if value else ""
            texts.setdefault(value or self.default_axis, set()).add(text)
        for value, (text, *others) in texts.items():
            bound = name_uses(self.module).bound.get(text, [])
            if len(bound) == 1 and not others and isinstance(bound[0], (ast.Name, ast.alias)):
                statement = self.module.parent(bound[0])
                if isinstance(self.module.parent(statement), ast.Module):
                    self._constants[value] = text, statement.lineno  # type: ignore[attr-defined]

    def _give_top_mesh(self, use: Use) -> None:
        """Gives a function that is made at the top level the mesh of one above it there."""
        value = specs.axis_value(self.module, use.site) or self.default_axis
        mesh = self._meshes.get(value)
        is_own = use.is_made_again and use.mesh == tuple(self._made(value)) and not use.near_mesh
        if mesh is None or not is_own:
            return
        top = self.module.top_statement(use.expression)

        def is_above(node: ast.AST) -> bool:
            return getattr(node, "lineno", top.lineno) < top.lineno

        if any(is_above(node) and self._home(node) is None for node in mesh.users):
            use.mesh = (mesh.name,)
            mesh.users.append(use.node)
            function = next(iter(getattr(use.expression, "args", ())), None)
            bound = name_uses(self.module).bound.get(getattr(function, "id", ""), [])
            is_constant = use.axis[0] in "'\"" and not top_level.is_argument(use)
            use.is_lazy = not (bound and is_constant and all(map(is_above, bound)))

    def _assign_grid(self, use: Use, grid: Grid) -> None:
        """Gives a mesh of two axes, by name if its sizes are seen."""
        may_start = self._home(use.node) is not None or self._may_start
        use.is_lazy = not grid.sizes or use.is_made_again or not may_start
        size, axes = grid.sizes or "{size}", f"({', '.join(grid.axes)})"
        use.mesh = ("jax.make_mesh", size, axes, f"{AUTO} * 2")
        if not use.is_lazy:
            self._grids[f"{size} {axes}"] = use.mesh
            use.mesh = (self._name(f"{size} {axes}", use.node),)

    def _assign_local(self, use: Use, axis: str) -> None:
        """Gives a mesh of the devices of one process."""
        key = self._local(axis)
        is_outside = self._home(use.node) is None and not self._may_start
        use.is_lazy = use.is_made_again or is_outside
        use.mesh = self._grids[key] if use.is_lazy else (self._name(key, use.node, "local_mesh"),)

    def _local(self, axis: str) -> str:
        key = f"{specs.LOCAL} {axis}"
        self._grids[key] = ("jax.sharding.Mesh", specs.LOCAL, f"({self._quoted(axis)},)", AUTO)
        return key

    def _give_name(self, use: Use) -> None:
        """Has the mesh of a use made in a statement above it, unless a loop makes it again."""
        statement: ast.AST = use.expression
        while not isinstance(statement, ast.stmt):
            statement = self.module.parent(statement)
            if isinstance(statement, (ast.Lambda, *LOOPS)):
                return
        above = self.module.parent(statement)
        while isinstance(above, (ast.If, ast.With, ast.Try)):
            above = self.module.parent(above)
        line = statement.lineno
        above_it = self._made_above(statement, use.mesh)
        if above_it:
            use.mesh, use.is_lazy = (above_it,), False
            use.near_mesh = above_it
            return
        is_simple = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr))
        is_at_top = isinstance(above, ast.Module) and not use.is_lazy
        may_be_here = isinstance(above, ast.FunctionDef) or is_at_top
        if line in self._own or not is_simple or not may_be_here:
            return
        name = self._named_before(statement, use.mesh)
        if not name:
            of_some = re.fullmatch(r"(?:\w+\.)?(\w+)_devices(?:\(\))?", use.known_layout.devices)
            first = f"{of_some[1]}_mesh" if of_some else "mesh"
            name = self._free_name(self.default_axis, first)
            self._own[line] = name, use.mesh
        use.near_mesh = name
        if not use.is_made_again:
            # One that is, is made at the top level, where it has a mesh of its own.
            use.mesh, use.is_lazy = (name,), False

    def _named_before(self, statement: ast.stmt, mesh: tuple[str, ...]) -> str:
        """Returns the name of the same mesh, if it is made above in the same block."""
        above = self.module.parent(statement)
        blocks = [held for held in vars(above).values() if isinstance(held, list)]
        before = [each.lineno for block in blocks if statement in block
                  for each in block[: block.index(statement)]]  # fmt: skip
        found = [
            name for line, (name, made) in self._own.items() if made == mesh and line in before
        ]
        return found[0] if found else ""

    def _made_above(self, statement: ast.AST, mesh: tuple[str, ...]) -> str:
        """Returns the name of the same mesh, made above in a block that has the statement too."""
        blocks, above = [], statement
        while not isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            above = self.module.parent(above)
            blocks += [getattr(above, part, []) for part in ("body", "orelse", "finalbody")]
        first = {each.lineno: each for block in blocks for each in block}
        for line, (name, made) in self._own.items():
            if made != mesh or line not in first or line >= statement.lineno:  # type: ignore[attr-defined]
                continue
            between = [n for n in ast.walk(above) if line <= getattr(n, "lineno", 0)]
            stored = {
                ast.unparse(n) for n in between if isinstance(getattr(n, "ctx", 0), ast.Store)
            }
            used = [part for text in mesh[1:] for part in ast.walk(ast.parse(text))]
            if not stored & {ast.unparse(part) for part in used if isinstance(part, ast.expr)}:
                return name
        return ""

    def _text(self, axis: str) -> str:
        function, *args = self._made(axis)
        return self._of_common(axis) or f"{function}({', '.join(args)})"

    def _parts(self, axis: str) -> list[str]:
        """Returns a shared mesh, or the function that makes one, and its arguments."""
        shared = self._of_module(axis) or self._of_common(axis)
        return [shared] if shared else self._made(axis)

    def _of_common(self, axis: str) -> str:
        """Returns the call that makes a mesh, if a function of a module that is imported does."""
        if self._common is None or axis in self._grids:
            return ""
        return self._common.mesh(self.module, self._quoted(axis), self.in_processes)

    def _made(self, axis: str, line: int | None = None) -> list[str]:
        """Returns the function that makes a mesh, and its arguments, for a line of the file."""
        if axis in self._grids:
            return list(self._grids[axis])
        text, above = self._constants.get(axis, ("", 0))
        is_there = text and (line is None or above < line)
        return all_devices(text if is_there else self._quoted(axis), self.in_processes)

    def _of_module(self, axis: str) -> str:
        """Returns the call of the function that makes a mesh, if several files share it."""
        if self._shared is None or axis in self._grids:
            return ""
        name = self._shared.mesh(self.module, axis, self.in_processes)
        if name and name not in self.imported:
            bound = name_uses(self.module).bound.get(name, [])
            is_there = bound and all(self._shared.is_imported(self.module, n) for n in bound)
            self.imported[name] = name if is_there else self._free_name(axis, name)
        return f"{self.imported[name]}()" if name else ""

    def name_for_local(self, node: ast.AST) -> str:
        """Returns the name of the mesh of one process, for what is placed at a node."""
        if self._home(node) is None and not self._may_start:
            return f"jax.sharding.Mesh({specs.LOCAL}, ({self.quoted_axis},), {AUTO})"
        return self._name(self._local(self.default_axis), node, "local_mesh")

    def name_for(self, node: ast.AST, axis: str = "") -> str:
        """Returns the name of the mesh for what is placed on devices at a node."""
        axis = axis or self.default_axis
        if self._home(node) is None and not self._may_start:
            return self._of_module(axis) or self._text(axis)
        return self._name(axis, node)

    def _name(self, axis: str, node: ast.AST, first: str = "mesh") -> str:
        if shared := self._of_module(axis):
            return shared
        if axis not in self._meshes:
            self._meshes[axis] = _Mesh(axis, self._free_name(axis, first))
        self._meshes[axis].users.append(node)
        return self._meshes[axis].name

    def _free_name(self, axis: str, first: str = "mesh") -> str:
        uses = name_uses(self.module)
        taken = {*uses.bound, *uses.names, *(mesh.name for mesh in self._meshes.values())}
        taken |= {name for name, _ in self._own.values()} | {*self.imported.values(), MESH}
        for name in (first, f"{axis}_mesh" if axis.isidentifier() else "devices_mesh"):
            if name not in taken or (name == first and self._made_here(name, axis)):
                return name
        return next(f"mesh{i}" for i in range(2, 100) if f"mesh{i}" not in taken)

    def _made_here(self, name: str, axis: str) -> bool:
        """Returns whether an earlier run made such a mesh, and nothing else has its name."""
        bound = name_uses(self.module).bound.get(name, [])
        wanted = ast.dump(ast.parse(self._text(axis), mode="eval").body)
        parents = [self.module.parent(node) for node in bound]
        return bool(bound) and all(
            isinstance(parent, ast.Assign) and ast.dump(parent.value) == wanted
            for parent in parents
        )

    def _home(self, node: ast.AST) -> ast.AST | None:
        """Returns the outermost function with a node in its body."""
        around = [
            each
            for each in self.module.functions_around(node)
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
            and any(_is_in(self.module, node, statement) for statement in each.body)
        ]
        return around[-1] if around else None

    def write(self, editor: Editor) -> None:
        """Adds the statements that make the meshes."""
        for line, (name, (function, *args)) in self._own.items():
            indent = editor.indent(line)
            text = editor.folded_call(function, args, indent, len(indent) + len(f"{name} = "))
            editor.insert(line, 0, f"{indent}{name} = {text}\n")
        for mesh in self._meshes.values():
            homes = {self._home(node) for node in mesh.users}
            if len(homes) > 1 and (self._may_start or None in homes):
                homes = {None}
            for home in sorted(homes, key=lambda each: getattr(each, "lineno", 0)):
                users = [n for n in mesh.users if home is None or self._home(n) is home]
                self._write(editor, mesh, home, users)

    def _write(
        self, editor: Editor, mesh: _Mesh, home: ast.AST | None, users: Iterable[ast.AST]
    ) -> None:
        block = self.module.source.tree if home is None else home
        body: list[ast.stmt] = block.body  # type: ignore[attr-defined]
        tops = [top for top in body if any(_is_in(self.module, user, top) for user in users)]
        first = min(tops, key=lambda top: top.lineno)
        if len(tops) == 1 and isinstance(first, ast.If) and _is_main(first):
            body = first.body
            first = next(s for s in body if any(_is_in(self.module, user, s) for user in users))
        made = [
            top
            for top in body
            if isinstance(top, ast.Assign)
            and [ast.unparse(t) for t in top.targets] == [mesh.name]
            and top.lineno < first.lineno
        ]
        if made:
            return
        line = first_line(first)
        if home is not None and line == home.lineno:  # type: ignore[attr-defined]
            # A function on one line.
            column = self.module.place(first).column
            editor.insert(line, column, f"{mesh.name} = {self._text(mesh.axis)}; ")
            return
        indent = editor.indent(line)
        line = editor.line_above(first)
        function, *args = self._made(mesh.axis, line)
        text = editor.folded_call(function, args, indent, len(indent) + len(f"{mesh.name} = "))
        # At the top level, the module may not have its functions yet, if it imports this one.
        text = (self._of_common(mesh.axis) if home is not None else "") or text
        is_block = isinstance(first, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        gap = "\n" * (1 + is_block * (1 if indent else 2))
        editor.insert(line, 0, f"{indent}{mesh.name} = {text}{gap}")


def _fixed_size(use: Use) -> str:
    """Returns the ``axis_size`` of a map, if it is a number and its devices are not chosen."""
    size = use.site.option("axis_size") or ""
    return size if size.isdecimal() and use.site.option("devices") is None else ""


def _is_main(node: ast.If) -> bool:
    """Returns whether it is ``if __name__ == "__main__"``."""
    parts = [node.test.left, *node.test.comparators] if isinstance(node.test, ast.Compare) else []
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in parts)


def _is_in(module: Module, node: ast.AST, top: ast.stmt) -> bool:
    decorators = getattr(top, "decorator_list", ())
    first = decorators[0] if decorators else top
    if not first.lineno <= getattr(node, "lineno", 0) <= (top.end_lineno or 0):
        return False
    place, around = module.place(node), module.place(top)
    return place.is_inside(around) or any(place.is_inside(module.place(d)) for d in decorators)


def _is_run(module: Module) -> bool:
    """Returns whether a file is run itself, or starts JAX's backend at import anyway.

    A test runner imports a file of tests, which may choose its devices when they start.
    """
    folder, name = os.path.split(module.path)
    is_test = name.startswith("test_") or name.endswith("_test.py")
    is_main = "__main__" in name_uses(module).strings
    if module.source.cells or (is_main and not is_test):
        return True
    if any(
        not module.functions_around(node)
        # The global style writes axis_size where no argument is mapped; the mesh takes its place.
        and getattr(module.parent(node), "arg", "") != "axis_size"
        and any(name.startswith(_STARTS_BACKEND) for name in call.names)
        for node, call in module.facts.calls.items()
    ):
        return True
    if is_test or os.path.exists(os.path.join(folder, "__init__.py")) or _only_defines(module):
        return False
    stem, own = name.removesuffix(".py").encode(), os.path.normpath(module.path)
    words = _imported_words(module.project)
    return not any(stem in found for path, found in words.items() if path != own)


def _only_defines(module: Module) -> bool:
    """Returns whether a file calls nothing at its top level: a notebook or a string imports it."""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    return all(map(module.functions_around, module.facts.makings)) and not any(
        isinstance(part, ast.Call)
        for node in module.source.tree.body
        for part in (ast.walk(node) if not isinstance(node, kinds) else ())
    )


_WORDS: weakref.WeakKeyDictionary[Project, dict[str, set[bytes]]] = weakref.WeakKeyDictionary()


def _imported_words(project: Project) -> dict[str, set[bytes]]:
    """Returns the words of each file's imports, also of files that have nothing to change."""
    if project not in _WORDS:
        texts = {path: sources.read_bytes(given) for path, given in project.paths.items()}
        _WORDS[project] = {
            path: sources.imported_words(data)
            for path, data in texts.items()
            if isinstance(data, bytes) and path.endswith(".py")
        }
    return _WORDS[project]
