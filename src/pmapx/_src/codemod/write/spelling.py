"""The text of a rewritten site, in the manner of the file around it."""

from __future__ import annotations

import re

import libcst as cst
import libcst.matchers as m

from pmapx._src.codemod.decide.plans import Plan
from pmapx._src.codemod.decide.specs import Layout

# Where formatters end a line; a file's own is the least that holds nearly all of its lines.
WIDTHS = (80, 88, 100)
OUTER = {"static_broadcasted_argnums": "static_argnums", "donate_argnums": "donate_argnums"}
INNER = {
    "axis_name": "axis_name",
    "in_axes": "in_axes",
    "out_axes": "out_axes",
    "static_broadcasted_argnums": "static_argnums",
    "devices": "devices",
    "backend": "backend",
}
UNCHECKED = "check_vma=False,  # it reduces its gradients over the axis itself, as under pmap"


class Spelling:
    """Writes calls of jit and one_row_each in a file's indentation and line ends."""

    def __init__(self, tree: cst.Module) -> None:
        """Takes over the file's manner."""
        self._tree = tree
        # str.splitlines would also cut at form feeds and other separators.
        self._lines = re.split("\r\n|\r|\n", tree.code)
        lengths = sorted(len(line.rstrip()) for line in self._lines)
        usual = lengths[int(0.99 * (len(lengths) - 1))]
        self._width = next((width for width in WIDTHS if width >= usual), WIDTHS[-1])

    def has_comments(self, node: cst.CSTNode) -> bool:
        """Tells whether a comment stands inside a node, which a new text would lose."""
        return bool(m.findall(node, m.Comment()))

    def renamed_inside(self, node: cst.BaseExpression, plan: Plan, name: str) -> cst.BaseExpression:
        """Puts a name in the place of pmap in its call, and leaves all else as it is."""
        if not isinstance(node, cst.Call):
            return cst.Name(name)
        if isinstance(node.func, cst.Call):
            return node.with_changes(func=_with_first(node.func, name))
        if plan.form == "decorator":
            return _with_first(node, name)
        return node.with_changes(func=cst.Name(name))

    def jitted(self, call: cst.Call, plan: Plan, block: str) -> cst.BaseExpression:
        """Returns ``jax.jit(one_row_each(f, ...), ...)`` for ``jax.pmap(f, ...)``.

        ``block`` is the indentation of the block around, which LibCST adds to each line itself.
        """
        function, options = self._parts(call)
        if plan.layout is not None:
            line = self._lines[plan.site.whole.line - 1]
            indent = line[: len(line) - len(line.lstrip())].removeprefix(block)
            text = self._written_out(function, options, plan.layout, indent)
            above = [f"{indent}{self._tree.default_indent}{each}\n" for each in self._notes(call)]
            made = self._expression(text.replace("(\n", "".join(["(\n", *above]), 1))
            return made.with_changes(lpar=call.lpar, rpar=call.rpar)
        helper = plan.functions[0]
        inner = [function, *_given(options, INNER)]
        outer = _given(options, OUTER)
        line = self._lines[plan.site.whole.line - 1]
        indent = line[: len(line) - len(line.lstrip())]
        mapped = f"{helper}({', '.join(inner)})"
        text = mapped if plan.is_inner else f"jax.jit({', '.join([mapped, *outer])})"
        column, rest = plan.site.whole.column, self._rest_of_line(plan)
        is_long = column + len(text.partition("\n")[0]) + len(rest) > self._width
        if is_long and not plan.is_inner:
            text = self._broken(helper, inner, outer, block, indent.removeprefix(block))
        made = self._expression(text)
        return made.with_changes(lpar=call.lpar, rpar=call.rpar)

    def decorators(self, node: cst.Decorator, plan: Plan, block: str) -> list[cst.Decorator]:
        """Returns the decorators that jit and map, in the place of one that maps with pmap."""
        call = node.decorator
        first, second = "jax.jit", plan.functions[0]
        if plan.layout is not None:
            return self._written_decorators(node, plan.layout)
        if isinstance(call, cst.Call):
            partial = self._code(call.func)
            options = {arg.keyword.value: self._code(arg.value) for arg in call.args if arg.keyword}
            outer, inner = _given(options, OUTER), _given(options, INNER)
            if outer:
                first = self._decorator_text(partial, [first, *outer], block)
            if inner:
                second = self._decorator_text(partial, [second, *inner], block)
        return self._one_below_another(node, [first, second])

    def _written_out(
        self, function: str, options: dict[str, str], layout: Layout, indent: str
    ) -> str:
        """Returns jit of shard_map, an argument a line."""
        if not re.search(r"\'\'\'|\"\"\"|\\\n", function):
            # It stands one step deeper than it did.
            function = function.replace("\n", f"\n{self._tree.default_indent}")
        step = self._tree.default_indent
        args = [function, *layout.axes]
        row = f"{layout.functions[0]}({', '.join(args)})"
        if layout.axes and len(indent + 2 * step) + len(row) >= self._width:
            row = self._call(layout.functions[0], args, indent + 2 * step)
        outer = _given(options, OUTER)
        if layout.in_processes:
            return self._call("map_own_rows", [row, *layout.specs(), *outer], indent)
        inner = self._call("jax.shard_map", [row, *layout.specs(), UNCHECKED], indent + step)
        return self._call("jax.jit", [inner, *outer], indent)

    def _notes(self, call: cst.Call) -> list[str]:
        """Returns the comments between a call's arguments, which go above the new ones."""
        kept = {id(each) for arg in call.args for each in m.findall(arg.value, m.Comment())}
        found = [each for each in m.findall(call, m.Comment()) if id(each) not in kept]
        return [self._code(each) for each in found]

    def _written_decorators(self, node: cst.Decorator, layout: Layout) -> list[cst.Decorator]:
        call = node.decorator
        first, second, row = "jax.jit", "jax.shard_map", layout.functions[0]
        specs = [*layout.specs(), UNCHECKED]
        if isinstance(call, cst.Call):
            partial = self._code(call.func)
            options = {arg.keyword.value: self._code(arg.value) for arg in call.args if arg.keyword}
            outer = _given(options, OUTER)
            if outer:
                first = f"{partial}({', '.join([first, *outer])})"
            if layout.axes:
                row = f"{partial}({', '.join([row, *layout.axes])})"
            second = self._call(partial, [second, *specs], "")
        else:
            second = self._call(second, specs, "")
        notes = self._notes(call) if isinstance(call, cst.Call) else []
        above = [cst.EmptyLine(comment=cst.Comment(each)) for each in notes]
        node = node.with_changes(leading_lines=[*node.leading_lines, *above])
        return self._one_below_another(node, [first, second, row])

    def _one_below_another(self, node: cst.Decorator, texts: list[str]) -> list[cst.Decorator]:
        """Returns decorators for one: the first has its lines above, the last what is beside."""
        bare = cst.TrailingWhitespace(newline=node.trailing_whitespace.newline)
        made = [
            node.with_changes(decorator=self._expression(text), trailing_whitespace=bare)
            for text in texts
        ]
        first, *rest = [each.with_changes(leading_lines=()) for each in made]
        rest[-1] = rest[-1].with_changes(trailing_whitespace=node.trailing_whitespace)
        return [first.with_changes(leading_lines=node.leading_lines), *rest]

    def _call(self, function: str, args: list[str], indent: str) -> str:
        """Writes a call with an argument a line; the one with a comment has its comma."""
        step = indent + self._tree.default_indent
        lines = "".join(f"{step}{arg}{'' if arg is UNCHECKED else ','}\n" for arg in args)
        return f"{function}(\n{lines}{indent})"

    def _decorator_text(self, function: str, args: list[str], block: str) -> str:
        text = f"{function}({', '.join(args)})"
        if len(block) + len("@") + len(text.partition("\n")[0]) <= self._width:
            return text
        lines = "".join(f"{self._tree.default_indent}{arg},\n" for arg in args)
        return f"{function}(\n{lines})"

    def _parts(self, call: cst.Call) -> tuple[str, dict[str, str]]:
        """Returns the mapped function's text and the options' texts."""
        given = list(call.args)
        if isinstance(call.func, cst.Call):
            given = [*call.func.args[1:], *given]
        positional = [self._code(arg.value) for arg in given if arg.keyword is None]
        options = {arg.keyword.value: self._code(arg.value) for arg in given if arg.keyword}
        if "fun" in options:
            positional.insert(0, options.pop("fun"))
        if len(positional) > 1:
            options = {"axis_name": positional[1], **options}
        return positional[0], options

    def _rest_of_line(self, plan: Plan) -> str:
        """What stands behind the site on its last line, up to a comment."""
        place = plan.site.whole
        return self._lines[place.end_line - 1][place.end_column :].partition("  #")[0].rstrip()

    def _broken(
        self, helper: str, inner: list[str], outer: list[str], block: str, indent: str
    ) -> str:
        """Writes one argument a line, the mapped function's own if they fit on it."""
        step = self._tree.default_indent
        one, two = indent + step, indent + 2 * step
        mapped = f"{helper}({', '.join(inner)})"
        if len(block + one) + len(mapped.partition("\n")[0]) + 1 > self._width:
            lines = "".join(f"{two}{text},\n" for text in inner)
            mapped = f"{helper}(\n{lines}{one})"
        lines = "".join(f"{one}{text},\n" for text in [mapped, *outer])
        return f"jax.jit(\n{lines}{indent})"

    def _code(self, node: cst.CSTNode) -> str:
        return self._tree.code_for_node(node).replace("\r\n", "\n").replace("\r", "\n")

    def _expression(self, text: str) -> cst.BaseExpression:
        text = text.replace("\n", self._tree.default_newline)
        return cst.parse_expression(text, self._tree.config_for_parsing)


def _with_first(partial: cst.Call, name: str) -> cst.Call:
    """Puts a name in the place of what a partial is of."""
    first = partial.args[0].with_changes(value=cst.Name(name))
    return partial.with_changes(args=[first, *partial.args[1:]])


def _given(options: dict[str, str], wanted: dict[str, str]) -> list[str]:
    return [f"{new}={options[old]}" for old, new in wanted.items() if old in options]
