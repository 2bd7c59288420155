"""The edits that shard the state of jitted steps: where it is placed, taken and returned."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pmapx._src.analysis.syntax import positional, returns
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.to_jit.placement.fsdp_function import CannotShardError, FsdpFunction
from pmapx._src.codemod.to_jit.placement.version import Version
from pmapx._src.source.files import Source
from pmapx._src.source.rewriting.edits import Edit

CONSTRAINT = "jax.lax.with_sharding_constraint"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def edits(version: Version, facts: Sequence[Mapping[str, Any]], axis: str) -> dict[str, list[Edit]]:
    """Returns the edits of each file; ``facts`` are those of `step_state`, one for each site.

    Raises:
      CannotShardError: if the state stays replicated, with the reason.
    """
    placed = list(_placements(version.sources))
    if not placed:
        raise CannotShardError("no jax.device_put places its state")
    steps = [
        _Step(version, site, each)
        for site, each in zip(version.sites, facts, strict=True)
        if each["held"]
    ]
    users = [step.body_path for step in steps if step.facts["outputs"]]
    users = list(dict.fromkeys([*users, *(path for path, _ in placed)]))
    function = FsdpFunction(version.sources, users, axis)
    editors = {path: Editor(source) for path, source in version.sources.items()}
    bodies: dict[ast.AST, Sequence[Any]] = {}
    for step in steps:
        step.edit_shardings(editors[step.path])
        if step.definition is None:
            continue
        editor = editors[step.body_path]
        if step.facts["outputs"]:
            # A body of two jitted functions is edited once.
            done = bodies.setdefault(step.definition, step.facts["outputs"])
            if done != step.facts["outputs"]:
                raise CannotShardError(
                    f"two jitted functions return different state of {step.name}"
                )
            if done is step.facts["outputs"]:
                step.edit_returns(editor, function.called_in(step.body_path))
        step.edit_constraints(editor)
    for path, call in placed:
        _edit_placement(version.sources[path], call, editors[path], function.called_in(path))
    function.write(editors)
    return {path: editor.edits for path, editor in editors.items() if editor.edits}


class _Step:
    """A jitted function that takes state, and its body."""

    def __init__(self, version: Version, site: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        self.facts, self.path = facts, version.path(site)
        self.body_path = self.path
        self._source, self._jit = version.sources[self.path], version.jit(site)
        self.definition = self._definition(version)
        self.name = getattr(self.definition, "name", "a lambda")
        if self.definition is None and facts["outputs"]:
            raise CannotShardError(
                f"the function that {ast.unparse(self._jit)[:60]} makes returns state, and is not "
                "defined by a def statement of one name"
            )

    def _definition(self, version: Version) -> ast.FunctionDef | None:
        for node in ast.walk(self._source.tree):
            if isinstance(node, ast.FunctionDef) and self._jit in node.decorator_list:
                return node
        assert isinstance(self._jit, ast.Call)
        function = self._jit.args[0] if self._jit.args else None
        if isinstance(function, ast.Call) and function.args:
            function = function.args[0]  # functools.partial(step, ...)
        if not isinstance(function, ast.Name | ast.Attribute):
            return None
        name = ast.unparse(function).rpartition(".")[2]
        others = {path: each for path, each in version.sources.items() if path != self.path}
        for files in ({self.path: self._source}, others):
            found = [
                (path, node)
                for path, source in files.items()
                for node in ast.walk(source.tree)
                if isinstance(node, ast.FunctionDef) and node.name == name
            ]
            if len(found) == 1:
                self.body_path, definition = found[0]
                return definition
            if found:
                return None
        return None

    def edit_shardings(self, editor: Editor) -> None:
        """Leaves state out of ``in_shardings`` and ``out_shardings``: it comes as it was placed."""
        if not isinstance(self._jit, ast.Call):
            return
        held, outputs = self.facts["held"], [part for part, _ in self.facts["outputs"]]
        sizes = {"in_shardings": self.facts["arguments"], "out_shardings": self.facts["parts"]}
        places = {"in_shardings": held, "out_shardings": outputs}
        options = []
        for keyword in self._jit.keywords:
            text = editor.text(self._source.place(keyword.value))
            if keyword.arg is not None and places.get(keyword.arg):
                text = _left_out(
                    editor, self._source, keyword.value, places[keyword.arg], sizes[keyword.arg]
                )
            if text:
                options.append(f"{keyword.arg}={text}")
        place = self._source.place(self._jit)
        args = [editor.text(self._source.place(arg)) for arg in self._jit.args]
        used = place.column + len(editor.rest_of_line(place))
        function = editor.text(self._source.place(self._jit.func))
        indent = editor.indent(place.line)
        new = editor.folded_call(function, [*args, *options], indent, used)
        if ast.dump(ast.parse(new)) != ast.dump(ast.parse(ast.unparse(self._jit))):
            editor.replace(place, new)

    def _parameters(self) -> dict[Any, str]:
        """Returns the names of parameters, by the position of an argument that is not static."""
        assert self.definition is not None
        names = positional(self.definition.args)
        names = names[1:] if names[:1] == ["self"] else names
        keywords = self._jit.keywords if isinstance(self._jit, ast.Call) else []
        static = [each.value for each in keywords if each.arg == "static_argnums"]
        fixed: Any = ast.literal_eval(static[0]) if static else ()
        fixed = {fixed} if isinstance(fixed, int) else set(fixed)
        dynamic = [name for at, name in enumerate(names) if at not in fixed]
        return {**dict(enumerate(dynamic)), **{name: name for name in names}}

    def edit_returns(self, editor: Editor, function: str) -> None:
        """Constrains the state in each return statement."""
        assert self.definition is not None
        source, parameters = editor.source, self._parameters()
        taken = {node.id for node in ast.walk(self.definition) if isinstance(node, ast.Name)}
        for statement in returns(self.definition):
            line = statement.lineno
            if source.line(line)[: source.place(statement).column].strip():
                raise CannotShardError(
                    f"{self.name} returns its state on the line of another statement"
                )
            indent = editor.indent(line)
            lines, names, result = self._named_parts(statement, editor, parameters, taken)
            targets = ", ".join(names)
            tree = f"({targets})" if len(names) > 1 else targets
            call = editor.folded_call(
                CONSTRAINT, [tree, f"{function}({tree})"], indent, len(f"{indent}{targets} = ")
            )
            text = "".join([f"{indent}{each}\n" for each in (*lines, f"{targets} = {call}")])
            end = source.place(statement)
            editor.replace(end, f"{text.removeprefix(indent)}{indent}return {result}")

    def _named_parts(
        self,
        statement: ast.Return,
        editor: Editor,
        parameters: Mapping[Any, str],
        taken: set[str],
    ) -> tuple[list[str], list[str], str]:
        """Returns assignments that name the state, its names, and what is returned."""
        value, parts = statement.value, self.facts["parts"]
        wanted = {part: _free(f"new_{parameters.get(key, 'state')}", taken)
                  for part, key in self.facts["outputs"]}  # fmt: skip
        if value is None:
            raise CannotShardError(f"{self.name} returns no state in line {statement.lineno}")
        text = editor.text(editor.source.place(value))
        if parts is None:
            if isinstance(value, ast.Name):
                return [], [text], text
            [name] = wanted.values()
            return [f"{name} = {text}"], [name], name
        if isinstance(value, ast.Tuple) and len(value.elts) == parts:
            lines, names, texts = [], [], []
            for part, each in enumerate(value.elts):
                text = editor.text(editor.source.place(each))
                if part in wanted and not isinstance(each, ast.Name):
                    lines.append(f"{wanted[part]} = {text}")
                    text = wanted[part]
                names += [text] if part in wanted else []
                texts.append(text)
            if not any(isinstance(each, ast.Starred) for each in value.elts):
                return lines, names, ", ".join(texts) + "," * (parts == 1)
        all_names = [wanted.get(part, f"result_{part}") for part in range(parts)]
        targets = ", ".join(all_names) + "," * (parts == 1)
        return [f"{targets} = {text}"], list(wanted.values()), targets

    def edit_constraints(self, editor: Editor) -> None:
        """Takes state out of the arguments that the body itself replicates."""
        assert self.definition is not None
        parameters = self._parameters()
        held = {parameters[key] for key in self.facts["held"] if key in parameters}
        for statement in self.definition.body:
            value = statement.value if isinstance(statement, ast.Assign) else None
            if not isinstance(value, ast.Call) or not _is_replicating(value):
                continue
            assert isinstance(statement, ast.Assign)
            target = statement.targets[0]
            names = [ast.unparse(e) for e in getattr(target, "elts", [target])]
            kept = [name for name in names if name not in held]
            if kept == names:
                continue
            place = editor.source.place(statement)
            if not kept:
                first, last = place.line, place.end_line + 1
                editor.edits.append(Edit(first, 0, last, 0))
                continue
            targets, indent = ", ".join(kept), editor.indent(place.line)
            sharding = editor.text(editor.source.place(value.args[1]))
            tree = f"({targets})" if len(kept) > 1 else targets
            call = editor.folded_call(
                CONSTRAINT, [tree, sharding], indent, len(f"{indent}{targets} = ")
            )
            editor.replace(place, f"{targets} = {call}")


def _left_out(
    editor: Editor, source: Source, value: ast.expr, places: Sequence[Any], size: int | None
) -> str:
    """Returns shardings with None for some arguments or outputs; empty if none are left."""
    text = editor.text(source.place(value))
    if isinstance(value, ast.Tuple):
        texts = [editor.text(source.place(each)) for each in value.elts]
    elif size is None:
        return ""
    else:
        texts = [text] * size
    new = ["None" if place in places else each for place, each in enumerate(texts)]
    if all(each == "None" for each in new):
        return ""
    return f"({', '.join(new)}{',' * (len(new) == 1)})"


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _is_replicating(call: ast.Call) -> bool:
    is_constraint = ast.unparse(call.func) == CONSTRAINT and len(call.args) == 2
    return is_constraint and _is_replicated(call.args[1], ())


def _is_replicated(value: ast.expr, names: Sequence[str]) -> bool:
    """Whether an expression is a sharding that replicates."""
    if isinstance(value, ast.Name | ast.Attribute):
        return ast.unparse(value) in names
    if not isinstance(value, ast.Call) or len(value.args) != 2:
        return False
    spec = value.args[1]
    is_spec = isinstance(spec, ast.Call) and not spec.args and not spec.keywords
    named = ast.unparse(value.func).rpartition(".")[2] == "NamedSharding"
    return named and is_spec and ast.unparse(spec).rpartition(".")[2] in ("P()", "PartitionSpec()")


def _placements(sources: Mapping[str, Source]) -> Iterator[tuple[str, ast.Call]]:
    """Yields the calls that place arrays on all devices."""
    names = [
        ast.unparse(node.targets[0])
        for source in sources.values()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and _is_replicated(node.value, ())
    ]
    for path, source in sources.items():
        for node in ast.walk(source.tree):
            is_put = isinstance(node, ast.Call) and ast.unparse(node.func) == "jax.device_put"
            if is_put and len(node.args) == 2 and _is_replicated(node.args[1], names):  # type: ignore[attr-defined]
                yield path, node  # type: ignore[misc]


def _edit_placement(source: Source, call: ast.Call, editor: Editor, function: str) -> None:
    """Places what a call replicates as FSDP shards it."""
    tree, place = call.args[0], source.place(call)
    text, indent = editor.text(source.place(tree)), editor.indent(place.line)
    if not _is_pure(tree):
        statement = next(
            (n for n in ast.walk(source.tree) if isinstance(n, ast.stmt) and _is_value(n, call)),
            None,
        )
        if statement is None:
            raise CannotShardError(
                f"the state is placed inside another expression, {ast.unparse(call)[:80]}"
            )
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        name = target.id if isinstance(target, ast.Name) else "state"
        editor.insert(statement.lineno, 0, f"{indent}{name} = {text}\n")
        text = name
    used = place.column + len(editor.rest_of_line(place))
    put = editor.folded_call("jax.device_put", [text, f"{function}({text})"], indent, used)
    editor.replace(place, put)


def _is_value(statement: ast.stmt, call: ast.Call) -> bool:
    is_simple = isinstance(statement, ast.Assign) and len(statement.targets) == 1
    return (is_simple or isinstance(statement, ast.Return)) and statement.value is call  # type: ignore[attr-defined]


def _is_pure(node: ast.expr) -> bool:
    """Whether an expression may be evaluated twice."""
    kinds = (ast.Name, ast.Attribute, ast.Tuple, ast.List, ast.Dict, ast.Constant, ast.Subscript,
             ast.expr_context)  # fmt: skip
    return all(isinstance(each, kinds) for each in ast.walk(node))
