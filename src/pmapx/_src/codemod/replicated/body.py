"""One function's body, or a module's: what its names hold, and what crosses its border."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Place
from pmapx._src.codemod.replicated.calling import Calls
from pmapx._src.codemod.replicated.groups import NOTHING, OTHER, Abstract, Mixed, Pairs, Parts, Ref
from pmapx._src.codemod.replicated.statements import READERS

if TYPE_CHECKING:
    from pmapx._src.codemod.replicated.flow import Flow

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Body(Calls):
    """One reading of a function's body, or a module's, statement by statement."""

    def __init__(
        self, flow: Flow, module: Module, node: Any, around: list[ast.AST], family: str
    ) -> None:
        """Starts with what is known of the parameters."""
        super().__init__(flow, module)
        self.node = node
        self.around = around
        self.family = family
        self.env: dict[str, Abstract] = {}
        self.global_names: set[str] = set()
        self.outer_names: set[str] = set()
        self.locals = _locals(node)
        self.self_name = ""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parameters = _parameters(node)
            if family and parameters and not _is_static(node):
                self.self_name = parameters[0]
            for name in parameters:
                sent = flow.known.parameters.get((node, name), [])
                self.env[name] = flow.gathered(sent) if sent else flow.unseen
                place = module.place(node)
                flow.found.bindings.setdefault((node, name), []).append((self.env[name], place))

    def inside(self, node: Any, family: str) -> Body:
        """Returns the body of a function or class that is defined here."""
        return Body(self.flow, self.module, node, [*self.around, self.node], family)

    def run(self) -> None:
        """Goes through the statements."""
        self.execute(self.node.body)
        self.publish()

    def run_traced(self) -> None:
        """Looks for values of the program around that a traced function takes in."""
        bound = {part.arg for part in ast.walk(self.node) if isinstance(part, ast.arg)}
        for inner in ast.walk(self.node):
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                bound |= _locals(inner)
        for part in ast.walk(self.node):
            is_taken_in = isinstance(part, ast.Name) and part.id not in self.locals | bound
            if is_taken_in or (isinstance(part, ast.Attribute) and self.is_own(part)):
                held = self.value(part)  # type: ignore[arg-type]
                self.escape(held, part, "a function that is traced takes it in from around it")

    def publish(self) -> None:
        """Tells other methods what the object's attributes hold here."""
        for path, held in self.env.items():
            owner, dot, name = path.partition(".")
            if dot and owner == self.self_name:
                place = self.module.place(self.node)
                self.flow.found.attributes.setdefault((self.family, name), []).append((held, place))

    def execute(self, statements: Sequence[ast.stmt]) -> bool:
        """Goes through statements in order; False if control never reaches their end."""
        for statement in statements:
            reader = READERS.get(type(statement))
            if reader is None:
                self.use_all(statement)
            elif reader(self, statement) is False:
                return False
        return True

    def bind(self, target: ast.expr, held: Abstract) -> None:
        """Gives a value to what an assignment names."""
        if isinstance(target, ast.Name):
            self.bind_name(target.id, held, target)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, held)
        elif isinstance(target, ast.Attribute) and self.is_own(target):
            self.env[f"{self.self_name}.{target.attr}"] = held
        elif isinstance(target, ast.Attribute) and self.families_of(target.value):
            for family in self.families_of(target.value):
                sent = self.flow.found.attributes.setdefault((family, target.attr), [])
                sent.append((held, self.module.place(target)))
        else:
            if isinstance(target, ast.Attribute):
                # Whose attribute it is, is not known: it may be any object's.
                for family, name in self.flow.known.attributes:
                    if name == target.attr:
                        sent = self.flow.found.attributes.setdefault((family, name), [])
                        sent.append((OTHER, self.module.place(target)))
            for part in ast.iter_child_nodes(target):
                if isinstance(part, ast.expr):
                    self.escape(self.value(part), target, "something is stored in it")
            self.escape(held, target, "it is stored where it is not followed")

    def bind_name(self, name: str, held: Abstract, node: ast.AST) -> None:
        """Binds a name, and tells the functions inside."""
        if name in self.outer_names:
            self.escape(held, node, "it is given to a name of the function around")
        self.env[name] = held
        scope = self.flow_scope(name)
        sent = self.flow.found.bindings.setdefault((scope, name), [])
        sent.append((held, self.module.place(node)))

    def flow_scope(self, name: str) -> ast.AST:
        """Returns the function or module that a name here belongs to."""
        if name in self.global_names:
            return self.module.source.tree
        found: ast.AST = self.node
        return found

    def _unpack(self, target: ast.Tuple | ast.List, held: Abstract) -> None:
        starred = any(isinstance(part, ast.Starred) for part in target.elts)
        if isinstance(held, Parts) and len(held.items) == len(target.elts) and not starred:
            for part, item in zip(target.elts, held.items, strict=True):
                self.bind(part, item)
            return
        if starred or isinstance(held, (Parts, Pairs, Mixed)):
            self.escape(held, target, "it is unpacked in a way that is not followed")
            held = OTHER
        if isinstance(held, Ref) and held.is_leaf:
            self.escape(held, target, "its rows are unpacked")
        elif isinstance(held, Ref):
            held = self.part_of(held)
        for part in target.elts:
            self.bind(part.value if isinstance(part, ast.Starred) else part, held)

    def branch(self, branches: Sequence[Sequence[ast.stmt]], place: Place) -> bool:
        """Goes through one of several lists of statements."""
        before = self.env
        ends = []
        for statements in branches:
            self.env = dict(before)
            if self.execute(statements):
                ends.append(self.env)
        self.env = self.merged(ends, place) if ends else before
        return bool(ends)

    def merged(self, ends: Sequence[dict[str, Abstract]], place: Place) -> dict[str, Abstract]:
        """Returns what names hold after one of several ways to here."""
        merged: dict[str, Abstract] = {}
        for name in dict.fromkeys(name for end in ends for name in end):
            held: Abstract = NOTHING
            for end in ends:
                held = self.flow.graph.merge(held, end.get(name, self._unbound(name)), place)
            merged[name] = held
        return merged

    def _unbound(self, name: str) -> Abstract:
        return self.attribute_of(self.family, name.partition(".")[2]) if "." in name else NOTHING

    def repeat(self, once: Callable[[], Any], place: Place) -> None:
        """Goes through a loop's body: what one turn leaves, the next finds."""
        for _ in range(2):
            before = dict(self.env)
            once()
            self.env = self.merged([before, self.env], place)


def _parameters(node: FunctionNode) -> list[str]:
    arguments = node.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _is_static(node: FunctionNode) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)


def _locals(node: ast.AST) -> set[str]:
    """Returns the names that a function binds itself."""
    found: set[str] = set()
    elsewhere: set[str] = set()
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        found |= {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            found.add(part.id)
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(part.name)
        elif isinstance(part, (ast.Global, ast.Nonlocal)):
            elsewhere.update(part.names)
        elif not isinstance(part, ast.Lambda):
            waiting += ast.iter_child_nodes(part)
    return found - elsewhere
