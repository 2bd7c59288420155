"""Expressions that are surely one array, and those that may be a number of Python's."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.syntax import defaults
from pmapx._src.analysis.values import Named
from pmapx._src.codemod.decide.assigned_values import assigned_values, block_of

_MODULES = ("jax.numpy.", "jax.random.", "jax.nn.", "numpy.")
# What these modules have that returns several arrays, a number, a type or a function.
_OTHERS = (
    "split", "grid", "unique", "where", "nonzero", "histogram", "linalg", "broadcast_arrays",
    "unravel", "divmod", "modf", "frexp", "gradient", "ix_", "shape", "ndim", "size", "dtype",
    "result_type", "initializers", "vectorize", "save", "load", "apply", "random.default_rng",
    "random.Generator", "random.RandomState", "item", "tolist", "iterable", "poly", "printoptions",
)  # fmt: skip
_ALSO = frozenset({"jax.random.split", "jax.numpy.linalg.norm", "numpy.linalg.norm"})
_REDUCTIONS = frozenset({"jax.lax.psum", "jax.lax.pmean", "jax.lax.pmax", "jax.lax.pmin"})
# Of arrays, and of numpy, jax.numpy and math.
_NUMBERS = frozenset(
    {"size", "ndim", "itemsize", "nbytes", "shape", "inf", "nan", "pi", "e", "tau"}
)
_METHODS = frozenset({"sum", "mean", "reshape", "astype", "max", "min", "ravel", "squeeze"})
# What returns a tree like its first argument.
_LIKE_FIRST = frozenset(
    f"jax.lax.{name}"
    for name in (
        "psum", "pmean", "pmax", "pmin", "all_gather", "ppermute", "pshuffle", "psum_scatter",
        "all_to_all", "stop_gradient",
    )
)  # fmt: skip


class ArrayExpressions:
    """Tells arrays in the body of a function, some of whose parameters are arrays."""

    def __init__(self, module: Module, block: ast.AST, parameters: frozenset[str]) -> None:
        self._module, self._block, self._parameters = module, block, parameters
        # A name that is computed from itself is what its other values are.
        self._asked: set[str] = set()

    def is_array(self, node: ast.expr) -> bool:
        match node:
            case ast.BinOp(left=one, right=other):
                return self.is_array(one) or self.is_array(other)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert(), operand=inner):
                return self.is_array(inner)
            case ast.Subscript(slice=ast.Tuple(elts=parts)) if any(
                isinstance(part, ast.Slice) for part in parts
            ):
                # Only arrays have a part for several indices.
                return True
            case ast.Subscript(value=inner):
                return self.is_array(inner)
            case ast.IfExp(body=one, orelse=other):
                return self.is_array(one) and self.is_array(other)
            case ast.Call():
                return self._is_array_call(node)
            case ast.Name(id=name):
                return self._is_array_name(name)
        return False

    def _is_array_call(self, node: ast.Call) -> bool:
        call = self._module.facts.calls.get(node)
        names = call.names if call is not None else frozenset()
        if names & _LIKE_FIRST:
            return names <= _LIKE_FIRST and bool(node.args) and self.is_array(node.args[0])
        if names:
            is_choice = len(node.args) == 3 and names <= {"jax.numpy.where", "numpy.where"}
            return is_choice or all(_returns_array(name) for name in names)
        root, _, path = ast.unparse(node.func).partition(".")
        is_numpy = self._module.env.find(root) == frozenset({Named("numpy")})
        if is_numpy and path.replace(".", "").isidentifier():
            return _returns_array(f"numpy.{path}")
        return isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS

    def _is_array_name(self, name: str) -> bool:
        if name in self._asked:
            return True
        values = list(_values(self._block, name))
        is_parameter = name in _parameters(self._block)
        if is_parameter and name not in self._parameters:
            return False
        if not values and not is_parameter:
            return False
        self._asked.add(name)
        found = all(value is not None and self._is_array_part(*value) for value in values)
        self._asked.discard(name)
        return found

    def _is_array_part(self, value: ast.expr, position: int | None) -> bool:
        """Tells whether a value is an array, or what is unpacked from it at a position."""
        if position is None:
            return self.is_array(value)
        if isinstance(value, ast.Tuple):
            parts = value.elts
            is_plain = not any(isinstance(part, ast.Starred) for part in parts)
            return is_plain and position < len(parts) and self.is_array(parts[position])
        return self._is_loss(value, position) or self.is_array(value)

    def _is_loss(self, value: ast.expr, position: int) -> bool:
        """Tells whether a part is the value of ``jax.value_and_grad(f)(...)``: one number."""
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Call)):
            return False
        made = self._module.facts.calls.get(value.func)
        is_plain = made is not None and made.names == {"jax.value_and_grad"}
        return is_plain and position == 0 and not {"has_aux"} & {k.arg for k in value.func.keywords}


def reduced_name(module: Module, body: ast.expr, names: list[str]) -> str:
    """Returns the parameter that a function returns, as it is or reduced over the devices.

    Both are element by element, so that an axis of size 1 changes nothing.
    """
    call = module.facts.calls.get(body)
    if isinstance(body, ast.Call) and body.args and call is not None and call.names:
        others = [part for given in (*body.args[1:], *body.keywords) for part in ast.walk(given)]
        is_alone = not any(isinstance(part, ast.Name) and part.id in names for part in others)
        body = body.args[0] if is_alone and call.names <= _REDUCTIONS else body
    return body.id if isinstance(body, ast.Name) else ""


def is_array_in_call(module: Module, map_: ast.expr, names: list[str], name: str) -> bool:
    """Tells whether a parameter is an array in ``jax.pmap(f)(x)``, the only call of a map."""
    call = module.parent(map_)
    if not isinstance(call, ast.Call) or call.func is not map_ or name not in names:
        return False
    before = call.args[: names.index(name) + 1]
    if len(before) <= names.index(name) or any(isinstance(arg, ast.Starred) for arg in before):
        return False
    return ArrayExpressions(module, block_of(module, call), frozenset()).is_array(before[-1])


def _returns_array(name: str) -> bool:
    if name in _ALSO:
        return True
    is_known = name.startswith(_MODULES)
    return is_known and not any(other in name.partition(".")[2] for other in _OTHERS)


def _parameters(block: ast.AST) -> set[str]:
    arguments = getattr(block, "args", None)
    if arguments is None:
        return set()
    return {part.arg for part in ast.walk(arguments) if isinstance(part, ast.arg)}


def _values(block: ast.AST, name: str) -> Iterator[tuple[ast.expr, int | None] | None]:
    """Gives what a block assigns to a name, with its position in a tuple; None if not known."""
    known: set[ast.AST] = {block}
    for node in ast.walk(block):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    known.add(target)
                    yield node.value, None
                elif isinstance(target, ast.Tuple):
                    for position, part in enumerate(target.elts):
                        if isinstance(part, ast.Name) and part.id == name:
                            known.add(part)
                            yield node.value, position
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            # An array stays one.
            known.add(node.target)
    own = set(ast.walk(block.args)) if hasattr(block, "args") else set()
    yield from (None for node in ast.walk(block) if _binds(node, name) and node not in known | own)


def _binds(node: ast.AST, name: str) -> bool:
    """Tells whether a node binds a name: a target, a parameter or a definition."""
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    bound = node.arg if isinstance(node, ast.arg) else getattr(node, "name", None)
    return bound == name


def is_number(node: ast.expr, function: ast.AST) -> bool:
    """Returns whether an expression may be a number of Python's, or hold one."""
    known: set[str] = set()
    # A name that is computed from itself is what its other values are: each is read once, and
    # all of them again for as long as more are found to be numbers.
    while True:
        count = len(known)
        if _is_number(node, function, known, set()):
            return True
        if len(known) == count:
            return False


def _is_number(node: ast.expr, function: ast.AST, known: set[str], read: set[str]) -> bool:
    def inside(part: ast.expr) -> bool:
        return _is_number(part, function, known, read)

    match node:
        case ast.Constant(value=value):
            return isinstance(value, (int, float, complex))
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return any(map(inside, parts))
        case ast.Dict(values=parts):
            # An attribute among metrics may be a setting, such as a loss scale.
            return any(isinstance(part, ast.Attribute) or inside(part) for part in parts)
        case ast.IfExp(body=one, orelse=other):
            return inside(one) or inside(other)
        case ast.BinOp(left=one, right=other):
            return inside(one) and inside(other)
        case ast.Attribute(attr=attribute):
            return attribute in _NUMBERS
        case ast.UnaryOp(operand=inner):
            return inside(inner)
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
        case ast.Call(func=ast.Name(id="len" | "int" | "float")):
            return True
        case ast.Call(func=ast.Name(id="min" | "max" | "abs" | "round"), args=args):
            return all(map(inside, args))
        case ast.Call(func=ast.Attribute(attr="psum" | "pmean"), args=[first, *_]):
            return inside(first)
        case ast.Call(keywords=keywords, func=ast.Name(id="dict")):
            return any(
                isinstance(keyword.value, ast.Attribute) or inside(keyword.value)
                for keyword in keywords
            )
        case ast.Name(id=name):
            if name not in known | read:
                read.add(name)
                given = (*assigned_values(function, name), *_listed(function, name))
                if name in _counted(function) or any(map(inside, given)):
                    known.add(name)
            return name in known
    return False


def _listed(function: ast.AST, name: str) -> list[ast.expr]:
    """Returns what a loop over a written tuple or list gives to a name."""
    return [
        item
        for loop in ast.walk(function)
        if isinstance(loop, ast.For) and getattr(loop.target, "id", "") == name
        for item in getattr(loop.iter, "elts", ())
    ]


def _counted(function: ast.AST) -> set[str]:
    """Returns the names that a function counts with, or that are numbers by default."""
    loops = [part for part in ast.walk(function) if isinstance(part, ast.For)]
    found = {
        part.id
        for loop in loops
        if isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) in ("range", "enumerate")
        for part in (getattr(loop.target, "elts", None) or [loop.target])[:1]
        if isinstance(part, ast.Name)
    }
    is_function = isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    known = defaults(function.args) if is_function else {}  # type: ignore[attr-defined]
    return found | {
        name
        for name, default in known.items()
        if isinstance(default, ast.Constant) and type(default.value) in (int, float)
    }
