"""The edits of one file, made from the inside out, in the file's own indentation and width."""

from __future__ import annotations

import ast
import collections
import functools
import itertools
import re
from collections.abc import Callable, Sequence

from pmapx._src.analysis import syntax
from pmapx._src.codemod.text.call_tokens import needs_parentheses
from pmapx._src.source.files import Source, first_line
from pmapx._src.source.location import Place
from pmapx._src.source.rewriting.edits import Edit, between, ends, replacing, starts

# Where formatters end a line; a file's own is the least that holds nearly all of its lines.
WIDTHS = (80, 88, 100)
# Comments that tools read, for which a line may be longer.
FOR_TOOLS = re.compile(r"#\s*(type|noqa|pylint|pyright|pytype|pyrefly|fmt|yapf)\b")


class Editor:
    """Collects edits. A text that is taken from the file has the edits inside it already."""

    def __init__(self, source: Source, moves_bodies: bool = True) -> None:
        self.source = source
        self.moves_bodies = moves_bodies
        self.edits: list[Edit] = []
        # Names that edits bind.
        self.new_names: set[str] = set()
        # What moves code that other edits may still change.
        self.last: list[Callable[[], None]] = []

    def text(self, place: Place) -> str:
        r"""Returns the text at a place, as edited so far, with ``\n`` at the end of lines."""
        parts, at = [], starts(place)
        for edit in sorted(edit for edit in self.edits if _is_inside(edit, place)):
            parts += [self._between(at, (edit.line, edit.column)), edit.text]
            at = (edit.end_line, edit.end_column)
        return "".join([*parts, self._between(at, ends(place))])

    def replace(self, place: Place, text: str) -> None:
        """Replaces the text at a place, and drops the edits inside it."""
        self.edits = [edit for edit in self.edits if not _is_inside(edit, place)]
        self.edits.append(replacing(place, text))

    def insert(self, line: int, column: int, text: str) -> None:
        self.edits.append(between((line, column), (line, column), text))

    def _between(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        return self.source.segment(Place(self.source.path, *start, *end))

    @functools.cached_property
    def step(self) -> str:
        """The file's own step of indentation."""
        return self.source.step

    @functools.cached_property
    def _original(self) -> Source:
        """The file as it was before any pass, whose style counts."""
        return self.source.before or self.source

    @functools.cached_property
    def width(self) -> int:
        lines = self._original.lines
        lengths = sorted(len(FOR_TOOLS.split(line)[0].rstrip()) for line in lines)
        usual = lengths[int(0.99 * (len(lengths) - 1))]
        return next((width for width in WIDTHS if width >= usual), WIDTHS[-1])

    @functools.cached_property
    def quote(self) -> str:
        """The quotes that most strings of the file have."""
        # Not those of docstrings, and no apostrophes.
        found = re.findall(r"""(?<!['"\w])(?:'[^'"\n]*'|"[^'"\n]*")(?!['"\w])""", self.source.text)
        text = "".join(found)
        return "'" if text.count("'") > text.count('"') else '"'

    def quoted(self, text: str) -> str:
        """Returns a string as the file would write it."""
        if not re.fullmatch(r"[^'\"\\\n]*", text):
            return repr(text)
        return f"{self.quote}{text}{self.quote}"

    def indent(self, line: int) -> str:
        """Returns the white space at the beginning of a line."""
        return self.source.indent(line)

    def line_above(self, statement: ast.stmt) -> int:
        """Returns the line of a statement, with the decorators and comments above it."""
        line = first_line(statement)
        indent = self.indent(line)
        cell = self.source.cell_of(line)
        while line > 1 and self.source.line(line - 1).startswith(f"{indent}#"):
            if cell is not None and cell[1] == 1:
                break
            line -= 1
            cell = self.source.cell_of(line)
        return line

    def rest_of_line(self, place: Place) -> str:
        """Returns what follows a place on its last line, as edited so far, up to a comment."""
        end = (place.end_line, len(self.source.line(place.end_line)))
        rest = self.text(Place(place.path, *ends(place), *end)).partition("\n")[0]
        return rest.partition("  #")[0].rstrip()

    @functools.cached_property
    def _calls(self) -> list[ast.Call]:
        return [node for node in syntax.walk(self._original.tree) if isinstance(node, ast.Call)]

    @functools.cached_property
    def is_filled(self) -> bool:
        """Whether most of the file's calls fill their lines and end on the last, as yapf's do.

        With few calls of several lines, files that are indented by two spaces do.
        """
        ends = [
            self._original.line(node.end_lineno).lstrip().startswith(")")
            for node in self._calls
            if node.end_lineno is not None and node.end_lineno > node.lineno
        ]
        return sum(ends) * 2 < len(ends) if len(ends) > 2 else self.step == "  " and not any(ends)

    @functools.cached_property
    def hang(self) -> str:
        """How much deeper the arguments of a call are than the line that it begins on.

        As in most calls of the file; without any, twice a step of two spaces.
        """

        def indentation(line: int) -> int:
            text = self._original.line(line)
            return len(text) - len(text.lstrip())

        found = collections.Counter(
            indentation(node.args[0].lineno) - indentation(node.lineno)
            for node in self._calls
            if node.args and node.args[0].lineno > node.lineno
        )
        usual = found.most_common(1)[0][0] if found else 0
        if usual in (len(self.step), 2 * len(self.step)) and "\t" not in self.step:
            return " " * usual
        return self.step * 2 if self.step == "  " else self.step

    def call(self, function: str, args: Sequence[str], indent: str, last: str = "") -> str:
        """Returns a call with an argument a line; ``last`` is a line that has its own comma."""
        step = indent + self.hang
        if self.is_filled:
            return self._filled_call(
                function, [*args, *([last.partition(",")[0]] if last else [])], step
            )
        lines = [f"{step}{arg},\n" for arg in args] + ([f"{step}{last}\n"] if last else [])
        return f"{function}(\n{''.join(lines)}{indent})"

    def _filled_call(self, function: str, args: Sequence[str], step: str) -> str:
        """Returns a call with as many arguments on a line as fit."""
        lines = [""]
        for arg in args:
            first = arg.partition("\n")[0]
            # The last is followed by the parentheses that close the calls around it.
            end = "))," if arg is args[-1] else ","
            is_full = len(step) + len(lines[-1]) + len(f" {first}{end}") > self.width
            # What follows several lines begins a new one.
            if lines[-1] and (is_full or "\n" in lines[-1]):
                lines.append("")
            lines[-1] += (" " if lines[-1] else "") + arg + ","
        text = f"\n{step}".join(lines).removesuffix(",")
        return f"{function}(\n{step}{text})"

    def folded_call(self, function: str, args: Sequence[str], indent: str, used: int) -> str:
        """Returns a call as formatters write it: on one line, with its arguments on the next one,
        or with an argument a line, by what fits if ``used`` columns are taken.
        """
        text = f"{function}({', '.join(args)})"
        if "\n" in text:
            return self.call(function, args, indent)
        if used + len(text) <= self.width:
            return text
        step = indent + self.hang
        inside = ", ".join(args)
        if len(step) + len(inside) <= self.width and not self.is_filled:
            return f"{function}(\n{step}{inside}\n{indent})"
        return self.call(function, args, indent)

    def function(self, head: str, body: str, indent: str) -> str:
        """Returns a lambda; in parentheses if its body begins too far to the right."""
        body = self.folded(body, indent, len(f"{indent}lambda {head}: ,"))
        first, _, rest = body.partition("\n")
        if (
            not rest
            or len(f"{indent}lambda {head}: {first}") <= self.width
            or re.search(r"'''|\"\"\"", body)
        ):
            return f"lambda {head}: {body}"
        if len(f"{indent}lambda {head}: (") > self.width and "(" not in head:
            before, _, last = head.rpartition(", ")
            head = f"{before},\n{indent}{self.hang}{last}"
        return f"lambda {head}: {self.bracketed(body, indent)}"

    def bracketed(self, text: str, indent: str) -> str:
        """Returns a text of several lines in parentheses, a step deeper than it was."""
        deeper = indent + self.hang
        inside = text.replace("\n", f"\n{self.hang}")
        end = "" if self.is_filled else f"\n{indent}"
        return f"(\n{deeper}{inside}{end})"

    def moved(self, text: str, indent: str) -> str:
        """Returns a text of several lines as it stands where its last one is indented by this."""
        last = text.rpartition("\n")[2]
        old = last[: len(last) - len(last.lstrip())]
        if last.lstrip()[:1] not in tuple(")]}") or re.search(r"'''|\"\"\"|\\\n", text):
            return text
        first, *lines = text.split("\n")
        is_deeper = all(line.startswith(old) or not line for line in lines)
        return "\n".join(
            [first, *(indent + line[len(old) :] for line in lines)] if is_deeper else [text]
        )

    def hugged_call(self, function: str, args: Sequence[str], indent: str) -> str:
        """Returns a call that begins on the line of its first argument, a call of several lines.

        As in ``jax.jit(jax.shard_map(``: what is left goes on its last line, if it fits.
        """
        first, *others = args
        last = len(first.rpartition("\n")[2])
        rest = "".join(f", {other}" for other in others)
        if others and last + len(f"{rest})") > self.width:
            rest = f",\n{indent}{self.hang}{', '.join(others)}"
        return f"{function}({first}{rest})"

    def folded(self, text: str, indent: str, used: int) -> str:
        """Returns an expression, a call or a tuple in lines that fit if it is too long for one."""
        is_long = used + len(text) > self.width and "\n" not in text
        keyword = re.match(r"\w+=(?!=)", text) if is_long else None
        if keyword is not None:
            value = text[keyword.end() :]
            return keyword[0] + self.folded(value, indent, used + len(keyword[0]))
        if is_long and text[:1] == "*" != text[1:2]:
            return f"*{self.folded(text[1:], indent, used + 1)}"
        try:
            node = ast.parse(text, mode="eval").body if is_long else None
        except SyntaxError:  # such as **kwargs
            node = None
        if not isinstance(node, (ast.Call, ast.Tuple)):
            return text
        deeper, function, given = indent + self.hang, "", getattr(node, "elts", [])
        if isinstance(node, ast.Call):
            function = ast.get_source_segment(text, node.func) or ""
            function = f"({function})" if needs_parentheses(node.func) else function
            given = [*node.args, *node.keywords]
        elif not text.startswith("(") or len(given) < 2:
            return text
        texts = [ast.get_source_segment(text, part) or "" for part in given]
        parts = [self.folded(part, deeper, len(deeper) + 1) for part in texts]
        return self.folded_call(function, parts, indent, used)

    def with_changes(self, place: Place, changes: Sequence[tuple[Place, str]]) -> str:
        """Returns the text at a place with other texts at places inside it, as edited so far."""
        inner = Editor(self.source)
        inner.edits = [*self.edits, *(replacing(at, text) for at, text in changes)]
        return inner.text(place)


def _is_inside(edit: Edit, place: Place) -> bool:
    is_after = starts(place) <= (edit.line, edit.column)
    return is_after and (edit.end_line, edit.end_column) <= ends(place)


def fitting(specs: str, editor: Editor, used: int) -> str:
    """Returns the text of specs on one line if it can: equal ones in a row are repeated.

    ``(a, a, a, b)`` becomes ``(a,) * 3 + (b,)`` where it is too long.
    """
    node = ast.parse(specs, mode="eval").body
    if used + len(f"{specs},") <= editor.width or not isinstance(node, ast.Tuple):
        return specs
    runs = itertools.groupby(ast.get_source_segment(specs, part) or "" for part in node.elts)
    counted = [(spec, len(list(run))) for spec, run in runs]
    parts = [f"({spec},)" + (f" * {count}" if count > 1 else "") for spec, count in counted]
    repeated = " + ".join(parts)
    is_clear = len(parts) <= 3 and used + len(f"{repeated},") <= editor.width
    return repeated if is_clear and len(repeated) < len(specs) else specs
