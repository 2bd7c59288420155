"""A map of the source, written as a jitted function over global arrays."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Collection

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Named
from pmapx._src.codemod.text import outer_calls
from pmapx._src.codemod.text.call_tokens import arguments
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.text.name_uses import name_uses
from pmapx._src.codemod.to_jit.candidates import Candidate
from pmapx._src.codemod.to_jit.decisions import Decision
from pmapx._src.source.rewriting.edits import between, ends, starts

_MAKERS = ("jax.make_mesh", "jax.sharding.Mesh", "jax.Mesh")
# The names of shardings, by how they place an array: the first that is free.
_NAMES = {
    False: ("replicated", "replicated_sharding", "on_all_devices"),
    True: ("sharded", "batch_sharding", "over_batch"),
}


_CONSTRAINT = "jax.lax.with_sharding_constraint"


@dataclasses.dataclass(eq=False)
class _Home:
    """A statement that makes a mesh, and the shardings that are named after it."""

    statement: ast.Assign
    mesh: str
    scope: ast.AST
    named: dict[str, str] = dataclasses.field(default_factory=dict)


class SiteEditor:
    """Edits the maps of one file."""

    def __init__(self, module: Module, editor: Editor) -> None:
        self.module, self.editor = module, editor
        self.needs_functools = False
        self._homes: list[_Home] = []

    def edit(self, decision: Decision) -> None:
        """Writes a map as a jitted function."""
        candidate, editor = decision.candidate, self.editor
        jit, function = candidate.jit, candidate.function
        text = "" if isinstance(function, ast.FunctionDef) else editor.text(
            self.module.place(function)
        )  # fmt: skip
        if decision.is_constrained:
            self._constrain(candidate)
        options = []
        if not (candidate.is_late or decision.is_constrained):
            options = [
                f"in_shardings={self._in_shardings(candidate, decision.elsewhere)}",
                f"out_shardings={self._shardings(candidate, candidate.option('out_specs'))}",
            ]
        keywords = jit.keywords if isinstance(jit, ast.Call) else []
        options += [f"{each.arg}={editor.text(self.module.place(each.value))}" for each in keywords]
        place = self.module.place(jit)
        indent = editor.indent(place.line)
        used = place.column + len(editor.rest_of_line(place))
        if not isinstance(function, ast.FunctionDef):
            editor.replace(place, editor.folded_call("jax.jit", [text, *options], indent, used))
            return
        below = self.module.place(candidate.wrapper or candidate.shard_map)
        if options:
            is_imported = Named("functools.partial") in (self.module.env.find("partial") or ())
            partial = "partial" if is_imported else "functools.partial"
            if isinstance(jit, ast.Call):
                partial = editor.text(self.module.place(jit.func))
            self.needs_functools |= partial == "functools.partial"
            editor.replace(place, editor.folded_call(partial, ["jax.jit", *options], indent, used))
        editor.edits.append(between(ends(place), ends(below)))

    def _constrain(self, candidate: Candidate) -> None:
        """Shards arguments inside the function, where the mesh can be made."""
        editor, definition = self.editor, _definition(candidate)
        mesh, specs = candidate.option("mesh"), candidate.option("in_specs")
        assert mesh is not None
        assert specs is not None
        assert definition is not None
        by_spec: dict[str, list[str]] = {}
        for position, name in enumerate(_parameters(candidate, definition)):
            each = specs.elts[position] if isinstance(specs, ast.Tuple) else specs
            if isinstance(each, ast.Call) and each.args:
                by_spec.setdefault(editor.text(self.module.place(each)), []).append(name)
        first = _first_statement(definition)
        indent = editor.indent(first.lineno)
        text, lines = editor.text(self.module.place(mesh)), []
        if isinstance(mesh, ast.Call) and (mesh.args or mesh.keywords):
            args = [editor.text(place) for _, place in arguments(editor.source, mesh)]
            given = [f"{k.arg}={editor.text(self.module.place(k.value))}" for k in mesh.keywords]
            args = [*args[: len(mesh.args)], *given]
            made = editor.folded_call(ast.unparse(mesh.func), args, indent, len(indent) + 7)
            lines.append(f"{indent}mesh = {made}\n")
            text = "mesh"
        for spec, several in by_spec.items():
            taken = ", ".join(several)
            args = [f"({taken})" if len(several) > 1 else taken]
            args.append(f"jax.NamedSharding({text}, {spec})")
            used = len(f"{indent}{taken} = ")
            constraint = editor.folded_call(_CONSTRAINT, args, indent, used)
            lines.append(f"{indent}{taken} = {constraint}\n")
        editor.insert(editor.line_above(first), 0, "".join(lines))

    def finish(self) -> None:
        """Names the shardings below their meshes, and uses the names elsewhere."""
        for home in self._homes:
            place = self.module.place(home.statement)
            indent = self.editor.indent(place.line)
            lines = [
                f"\n{indent}{name} = jax.NamedSharding({home.mesh}, {spec})"
                for spec, name in sorted(home.named.items(), key=lambda each: len(each[0]))
            ]
            end = (place.end_line, len(self.module.source.line(place.end_line)))
            self.editor.edits.append(between(end, end, "".join(lines)))
            self._use_names(home)

    def _use_names(self, home: _Home) -> None:
        done = [edit.place(self.module.path) for edit in self.editor.edits]
        for node in ast.walk(home.scope):
            if not isinstance(node, ast.Call) or node.lineno <= home.statement.lineno:
                continue
            for spec, name in home.named.items():
                text = ast.unparse(ast.parse(f"jax.NamedSharding({home.mesh}, {spec})"))
                place = self.module.place(node)
                is_free = not any(starts(e) <= starts(place) < ends(e) for e in done)
                if ast.unparse(node) == text and is_free:
                    self.editor.replace(place, name)
                    outer_calls.refold(self.editor, self.module.parent(node))

    def _in_shardings(self, candidate: Candidate, elsewhere: Collection[int]) -> str:
        specs = candidate.option("in_specs")
        if isinstance(specs, ast.Tuple):
            texts = [
                "None" if position in elsewhere else self._shardings(candidate, each)
                for position, each in enumerate(specs.elts)
            ]
            return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
        return "None" if elsewhere else self._shardings(candidate, specs)

    def _shardings(self, candidate: Candidate, specs: ast.expr | None) -> str:
        """Returns the text of specs with each replaced by a sharding."""
        assert specs is not None
        mesh = candidate.option("mesh")
        assert mesh is not None
        text = ast.unparse(mesh)
        home = self._home(candidate, mesh.id) if isinstance(mesh, ast.Name) else None
        changes = []
        for node in ast.walk(specs):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("P"):
                spec = self.editor.text(self.module.place(node))
                new = f"jax.NamedSharding({text}, {spec})"
                if home is not None:
                    new = self._name(home, spec, bool(node.args))
                changes.append((self.module.place(node), new))
        return self.editor.with_changes(self.module.place(specs), changes)

    def _name(self, home: _Home, spec: str, is_sharded: bool) -> str:
        if spec not in home.named:
            uses = name_uses(self.module)
            taken = {*uses.bound, *uses.names, *home.named.values()}
            wanted = [*_NAMES[is_sharded], *(f"sharding{i}" for i in range(2, 50))]
            home.named[spec] = next(name for name in wanted if name not in taken)
        return home.named[spec]

    def _home(self, candidate: Candidate, mesh: str) -> _Home | None:
        """Returns the statement that makes the mesh of a map, in the scopes around it."""
        scope: ast.AST = candidate.jit
        while scope is not self.module.source.tree:
            scope = self.module.parent(scope)
            for statement in _statements(scope):
                if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                    continue
                is_made = (
                    isinstance(statement.value, ast.Call)
                    and ast.unparse(statement.value.func) in _MAKERS
                )
                if ast.unparse(statement.targets[0]) == mesh and is_made:
                    for home in self._homes:
                        if home.statement is statement:
                            return home
                    self._homes.append(_Home(statement, mesh, scope))
                    return self._homes[-1]
        return None


def _statements(block: ast.AST) -> list[ast.stmt]:
    """Returns the statements of a block, except those of classes, whose names are local to them."""
    several = [getattr(block, name, []) for name in ("body", "orelse", "finalbody")]
    if isinstance(block, ast.Lambda | ast.IfExp | ast.ClassDef):
        return []
    return [statement for each in several for statement in each]


def obstacle(candidate: Candidate) -> str:
    """Returns why a function cannot shard its arguments itself, if so."""
    definition, specs = _definition(candidate), candidate.option("in_specs")
    if definition is None:
        return "its definition is a lambda, or is used elsewhere too"
    names = _parameters(candidate, definition)
    if not names or any(not name.isidentifier() for name in names):
        return "the names of its arguments are not known"
    if isinstance(specs, ast.Tuple) and len(specs.elts) != len(names):
        return "it has more or fewer arguments than specs"
    given = specs.elts if isinstance(specs, ast.Tuple) else [specs] * len(names)
    if any(not isinstance(each, ast.Call) for each in given):
        return "its specs are trees"
    if _first_statement(definition).lineno == definition.lineno:
        return "its body is on one line"
    if any(isinstance(each, ast.Name) and each.id == "mesh" for each in ast.walk(definition)):
        return "it uses the name mesh"
    return ""


def _definition(candidate: Candidate) -> ast.FunctionDef | None:
    """Returns the definition of the mapped function, if it is used for nothing else."""
    function, module = candidate.function, candidate.module
    if isinstance(function, ast.FunctionDef):
        return function
    name = ast.unparse(function).removeprefix("self.")
    nodes = list(ast.walk(module.source.tree))
    found = [each for each in nodes if isinstance(each, ast.FunctionDef) and each.name == name]
    used = [
        each
        for each in nodes
        if (isinstance(each, ast.Name) and each.id == name)
        or (isinstance(each, ast.Attribute) and each.attr == name)
    ]
    return found[0] if len(found) == len(used) == 1 else None


def _parameters(candidate: Candidate, definition: ast.FunctionDef) -> list[str]:
    """Returns the names of what the map takes."""
    if list(candidate.names) != ["*args"]:
        return list(candidate.names)
    names = [each.arg for each in definition.args.args]
    return names[1:] if names[:1] == ["self"] else names


def _first_statement(function: ast.FunctionDef) -> ast.stmt:
    has_docstring = ast.get_docstring(function) is not None and len(function.body) > 1
    return function.body[int(has_docstring)]
