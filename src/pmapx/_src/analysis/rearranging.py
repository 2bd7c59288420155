"""Functions that only move the leaves of a tree: into other dicts, tuples and objects.

Such a function takes a tree with a leading device axis as it takes one without, and what it gives
has the axis of what it is given. Whatever is not understood here is no such function.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

from pmapx._src.analysis import known_names, syntax
from pmapx._src.analysis.interpreter import lookup
from pmapx._src.analysis.interpreter.frame import Frame
from pmapx._src.analysis.values import Class, Fact, Function, Named, Value, join

MOST_ROUNDS = 6
DEEPEST = 6
# What these return is a new dict with the leaves of the first argument.
_COPYING = known_names.DICTS | frozenset(
    {
        "flax.core.freeze", "flax.core.unfreeze", "flax.core.frozen_dict.freeze",
        "flax.core.frozen_dict.unfreeze", "flax.traverse_util.flatten_dict",
        "flax.traverse_util.unflatten_dict", "copy.deepcopy",
    }
)  # fmt: skip
_ADDING = frozenset({"append", "extend", "update"})
_OF_NO_LEAF = frozenset({"builtins.isinstance", "builtins.type"})
_SPECIAL = frozenset({"__init__", "__new__", "__post_init__", "__getattr__", "__getattribute__"})


@dataclasses.dataclass(frozen=True, slots=True)
class Moved:
    """A tree with leaves of these fields of the parameter, "" for any; none of an empty dict.

    ``is_new`` if the function makes the container itself, so that no other code sees it change.
    """

    fields: frozenset[str] = frozenset()
    is_new: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Built:
    """An object of a class, by its fields."""

    fields: tuple[tuple[str, Moved], ...]
    cls: ast.ClassDef


Result = Moved | Built | tuple["Result", ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of keys and trees, as ``.items()`` gives them."""

    trees: Moved


@dataclasses.dataclass(frozen=True, slots=True)
class _Plain:
    """A value without leaves of the tree; ``is_key`` if it is a string or a key of a dict."""

    is_key: bool = False


_Kind = Moved | Built | _Pairs | _Plain | tuple["_Kind", ...]
_Assumed = Mapping[tuple[ast.AST, str], Result]


class _NotMovedError(Exception):
    """A leaf may be computed with, or may go elsewhere."""


@functools.lru_cache(maxsize=4096)
def rearranged(function: Function, parameter: str) -> Result | None:
    """Returns what a function gives of the tree that is its parameter, None if it does more."""
    try:
        return _result(function, parameter, {}, 0)
    except (_NotMovedError, RecursionError):
        return None


def _result(function: Function, parameter: str, assumed: _Assumed, depth: int) -> Result:
    node = function.node
    is_plain = isinstance(node, ast.FunctionDef) and not node.decorator_list
    if depth > DEEPEST or not is_plain or parameter not in syntax.defaults(node.args):
        raise _NotMovedError
    found: Result = Moved()
    # Of a function that calls itself, what it gives is found in rounds.
    for _ in range(MOST_ROUNDS):
        before = found
        found = _Body(function, parameter, {**assumed, (node, parameter): found}, depth).read()
        if found == before:
            return found
    raise _NotMovedError


class _Body:
    """One reading of a function; a name stands for all that it holds anywhere in it."""

    def __init__(self, function: Function, parameter: str, assumed: _Assumed, depth: int) -> None:
        assert isinstance(function.node, ast.FunctionDef)
        self._statements = function.node.body
        self._frame = Frame(function.module, function.around)
        self._assumed, self._depth = assumed, depth
        arguments = (each for each in ast.walk(function.node.args) if isinstance(each, ast.arg))
        self._names: dict[str, _Kind] = {each.arg: _Plain() for each in arguments}
        self._names[parameter] = Moved(frozenset({""}), is_new=False)
        parts = syntax.walk(function.node)
        stored = {part.id for part in parts if isinstance(part, ast.Name) and _is_stored(part)}
        self._local = stored | self._names.keys()
        # What is put into containers may be seen by any name for one.
        self._added: frozenset[str] = frozenset()
        self._unchanged = {parameter} - stored
        self._mappings = {
            each.iter.func.value.id
            for each in self._statements
            if isinstance(each, ast.For) and isinstance(each.iter, ast.Call)
            and isinstance(each.iter.func, ast.Attribute) and each.iter.func.attr == "items"
            and isinstance(each.iter.func.value, ast.Name)
        }  # fmt: skip
        self._returned: list[_Kind] = []

    def read(self) -> Result:
        for _ in range(MOST_ROUNDS):
            before, self._returned = (dict(self._names), self._added), []
            self._execute(self._statements)
            if before == (self._names, self._added):
                break
        else:
            raise _NotMovedError
        return _given(_joined(self._returned))

    def _execute(self, statements: Iterable[ast.stmt]) -> None:
        for node in statements:
            match node:
                case ast.Assign(targets, value):
                    held = self._kind(value)
                    for target in targets:
                        self._bind(target, held)
                case ast.AnnAssign(target, _, ast.expr() as value):
                    self._bind(target, self._kind(value))
                case ast.For(target, iterated, body, orelse):
                    self._bind(target, self._element(self._kind(iterated)))
                    self._execute([*body, *orelse])
                case ast.If(test, body, orelse):
                    self._plain(test)
                    self._execute([*body, *orelse])
                case ast.Return(ast.expr() as value):
                    self._returned.append(self._kind(value))
                case ast.Expr(value):
                    self._kind(value)
                case ast.Assert(test):
                    self._plain(test)
                case ast.Raise() | ast.Pass() | ast.Continue() | ast.Break():
                    pass
                case _:
                    raise _NotMovedError

    def _bind(self, target: ast.expr, held: _Kind) -> None:
        match target, held:
            case ast.Name(name), _:
                self._names[name] = _join(self._names.get(name, held), held)
            case ((ast.Tuple(parts) | ast.List(parts)), tuple()) if len(parts) == len(held):
                for part, each in zip(parts, held, strict=True):
                    self._bind(part, each)
            case ast.Subscript(ast.Name(name), index), _:
                self._plain(index)
                self._add(name, _moved(held))
            case _:
                raise _NotMovedError

    def _add(self, name: str, held: Moved | _Pairs) -> None:
        """Puts a tree into a container that the function made itself."""
        before = self._names.get(name)
        trees = before.trees if isinstance(before, _Pairs) else before
        added = held.trees if isinstance(held, _Pairs) else held
        if not isinstance(trees, Moved) or not trees.is_new:
            raise _NotMovedError
        new = Moved(added.fields)
        self._names[name] = _join(before, _Pairs(new) if isinstance(held, _Pairs) else new)  # type: ignore[arg-type]
        self._added |= added.fields

    def _element(self, iterated: _Kind) -> _Kind:
        if isinstance(iterated, _Pairs):
            return _Plain(is_key=True), Moved(iterated.trees.fields, is_new=False)
        if isinstance(iterated, _Plain):
            return iterated
        raise _NotMovedError

    def _plain(self, node: ast.expr) -> None:
        """Reads an expression that must have no leaves."""
        if not isinstance(self._kind(node), _Plain):
            raise _NotMovedError

    def _kind(self, node: ast.expr) -> _Kind:
        match node:
            case ast.Name(name):
                return self._name(name)
            case ast.Constant(value):
                return Moved() if value is None else _Plain(is_key=isinstance(value, str))
            case ast.Attribute(base, name):
                return self._part(self._kind(base), name, name not in known_names.ARRAY_ATTRIBUTES)
            case ast.Subscript(base, index):
                held, chosen = self._kind(base), self._kind(index)
                field = str(index.value) if isinstance(index, ast.Constant) else ""
                is_key = isinstance(chosen, _Plain) and chosen.is_key
                return self._part(held, field, is_key or isinstance(held, _Plain))
            case ast.Tuple(parts):
                items = tuple(map(self._kind, parts))
                return _Plain() if all(isinstance(each, _Plain) for each in items) else items
            case ast.Dict(keys, values):
                for key in filter(None, keys):
                    self._plain(key)
                return Moved(_moved(tuple(map(self._kind, values))).fields)
            case ast.List([]):
                return Moved()
            case ast.DictComp(key, value, [ast.comprehension(target, iterated, tests, 0)]):
                self._bind(target, self._element(self._kind(iterated)))
                for test in (*tests, key):
                    self._plain(test)
                return Moved(_moved(self._kind(value)).fields)
            case ast.IfExp(test, body, orelse):
                self._plain(test)
                return _join(self._kind(body), self._kind(orelse))
            case ast.UnaryOp(ast.Not(), ast.Name(name)) if name in self._mappings:
                return _Plain()
            case ast.BoolOp() | ast.BinOp() | ast.UnaryOp():
                parts = [part for part in syntax.children(node) if isinstance(part, ast.expr)]
                kinds = [self._kind(part) for part in parts]
                if not all(isinstance(each, _Plain) for each in kinds):
                    raise _NotMovedError
                is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
                return _Plain(is_sum and _Plain(is_key=True) in kinds)
            case ast.Compare(left, [ast.In() | ast.NotIn()], [ast.expr() as right]):
                held = self._kind(left)
                if isinstance(held, _Plain) and (held.is_key or self._is_plain([right])):
                    return _Plain()
            case ast.Compare(_, [ast.Is() | ast.IsNot()], [ast.Constant(None)]):
                return _Plain()
            case ast.Call():
                return self._call(node)
        if self._is_plain([node]):
            return _Plain()
        raise _NotMovedError

    def _is_plain(self, parts: Iterable[ast.AST]) -> bool:
        """Tells whether expressions name nothing that has leaves, or that may be such later."""
        names = (n for part in parts for n in syntax.walk(part) if isinstance(n, ast.Name))
        return all(isinstance(self._name(name.id), _Plain) for name in names)

    def _name(self, name: str) -> _Kind:
        if name not in self._local:
            return _Plain()
        held = self._names.get(name, Moved())
        if name in self._unchanged:
            return held
        if isinstance(held, Moved):
            return Moved(held.fields | self._added, held.is_new)
        return _Pairs(Moved(held.trees.fields | self._added)) if isinstance(held, _Pairs) else held

    def _part(self, held: _Kind, name: str, is_part: bool) -> _Kind:
        """An attribute or item of a value; of an array, an index would take a shard."""
        if isinstance(held, _Plain):
            return _Plain()
        if not isinstance(held, Moved) or not is_part:
            raise _NotMovedError
        return Moved(frozenset(field or name for field in held.fields), is_new=False)

    def _call(self, node: ast.Call) -> _Kind:
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if None in keywords or any(isinstance(arg, ast.Starred) for arg in node.args):
            raise _NotMovedError
        args = [self._kind(arg) for arg in node.args]
        named = {str(name): self._kind(arg) for name, arg in keywords.items()}
        if isinstance(node.func, ast.Attribute) and not self._is_plain([node.func.value]):
            return self._method(node.func, args, named)
        is_plain = all(isinstance(each, _Plain) for each in (*args, *named.values()))
        callees = self._callee(node.func)
        names = {fact.name if isinstance(fact, Named) else "" for fact in callees}
        if is_plain or (names and names <= _OF_NO_LEAF):
            return _Plain()
        if names and names <= _COPYING and len(args) == 1:
            others = [each for each in named.values() if not isinstance(each, _Plain)]
            held = args[0].trees if isinstance(args[0], _Pairs) else _moved(args[0])
            return Moved(_moved((held, *others)).fields)
        if len(callees) == 1 and not names - {""}:
            (callee,) = callees
            return self._inside(callee, args, named)
        raise _NotMovedError

    def _method(
        self, function: ast.Attribute, args: Sequence[_Kind], named: Mapping[str, _Kind]
    ) -> _Kind:
        base, name = function.value, function.attr
        if name in _ADDING and len(args) == 1 and not named and isinstance(base, ast.Name):
            (held,) = args
            if name == "append" and isinstance(held, tuple) and len(held) == 2:
                key, tree = held
                held = _Pairs(_moved(tree)) if isinstance(key, _Plain) else held
            self._add(base.id, held if isinstance(held, _Pairs) else _moved(held))
            return _Plain()
        held = self._kind(base)
        if not isinstance(held, Moved) or args or named:
            raise _NotMovedError
        if name == "items":
            return _Pairs(Moved(held.fields, is_new=False))
        if name == "keys":
            return _Plain(is_key=True)
        if name in ("copy", "unfreeze"):
            return Moved(held.fields)
        raise _NotMovedError

    def _callee(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Name) and node.id not in self._local:
            held = self._frame.env.find(node.id)
            found = lookup.name_value(self._frame, node.id) if held is None else held
            return lookup.looked_up(self._frame, found)
        if isinstance(node, ast.Attribute):
            base = self._callee(node.value)
            parts = (lookup.attribute(self._frame, fact, node.attr) for fact in base)
            return lookup.looked_up(self._frame, join(*parts))
        return frozenset()

    def _inside(self, callee: Fact, args: Sequence[_Kind], named: Mapping[str, _Kind]) -> _Kind:
        """A call of a function or class of the program."""
        if isinstance(callee, Class):
            return _built(callee, args, named)
        if not isinstance(callee, Function):
            raise _NotMovedError
        given = {**dict(zip(syntax.positional(callee.node.args), args, strict=False)), **named}
        trees = {name: held for name, held in given.items() if not isinstance(held, _Plain)}
        if len(trees) != 1 or len(given) != len(args) + len(named):
            raise _NotMovedError
        ((name, tree),) = trees.items()
        key = (callee.node, name)
        found = self._assumed.get(key)
        if found is None:
            found = _result(callee, name, self._assumed, self._depth + 1)
        return _of(found, _moved(tree))


def _of(result: Result, tree: Moved) -> Result:
    """Returns what a function gives of a tree of which these are the fields."""
    if isinstance(result, tuple):
        return tuple(_of(each, tree) for each in result)
    if isinstance(result, Built):
        fields = ((name, Moved(_fields(held, tree))) for name, held in result.fields)
        return Built(tuple(fields), result.cls)
    return Moved(_fields(result, tree), result.is_new)


def _fields(result: Moved, tree: Moved) -> frozenset[str]:
    return frozenset(own or field for own in tree.fields for field in result.fields)


def _built(cls: Class, args: Sequence[_Kind], named: Mapping[str, _Kind]) -> Built:
    """Makes an object of a class that keeps what it is given, as all of its fields."""
    node = cls.node
    names = [
        part.target.id
        for part in node.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    ]
    methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    is_record = (
        any(
            "dataclass" in syntax.leaf(each.func if isinstance(each, ast.Call) else each)
            for each in node.decorator_list
        )
        and not node.bases
    )
    is_record |= [syntax.leaf(base) for base in node.bases] == ["NamedTuple"]
    given = {**dict(zip(names, args, strict=False)), **named}
    is_whole = {*given} == {*names} and len(given) == len(args) + len(named)
    if not is_record or not is_whole or methods & _SPECIAL:
        raise _NotMovedError
    return Built(tuple((name, _moved(given[name])) for name in names), node)


def _moved(held: _Kind) -> Moved:
    """Returns all leaves of a value as those of one tree."""
    if isinstance(held, Moved):
        return held
    if isinstance(held, (tuple, Built)):
        several = held if isinstance(held, tuple) else [each for _, each in held.fields]
        return Moved(frozenset().union(*(_moved(each).fields for each in several)))
    raise _NotMovedError


def _given(held: _Kind) -> Result:
    if isinstance(held, (_Pairs, _Plain)):
        raise _NotMovedError
    return tuple(map(_given, held)) if isinstance(held, tuple) else held


def _join(one: _Kind, other: _Kind) -> _Kind:
    """Returns what a value is that is one of two."""
    if one == other:
        return one
    match one, other:
        case _Plain(), _Plain():
            return _Plain(one.is_key and other.is_key)
        case (_Pairs(Moved() as first), _Pairs(Moved() as second)):
            return _Pairs(Moved(first.fields | second.fields, first.is_new and second.is_new))
        case (_Pairs(), Moved(fields, True)) if not fields:
            return one
        case (Moved(fields, True), _Pairs()) if not fields:
            return other
        case tuple(), tuple() if len(one) == len(other):
            return tuple(_join(*pair) for pair in zip(one, other, strict=True))
        case Built(), Built() if one.cls is other.cls:
            pairs = zip(one.fields, other.fields, strict=True)
            return Built(tuple((name, _either(a, b)) for (name, a), (_, b) in pairs), one.cls)
    return _either(_moved(one), _moved(other))


def _either(one: Moved, other: Moved) -> Moved:
    return Moved(one.fields | other.fields, one.is_new and other.is_new)


def _joined(several: Sequence[_Kind]) -> _Kind:
    if not several:
        raise _NotMovedError
    return functools.reduce(_join, several)


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)
