"""Calls that put arrays on all devices, in plain JAX: replicated, or stacked over the mesh.

JAX removed ``jax.device_put_replicated`` and ``jax.device_put_sharded``. Flax's ``replicate`` has a
mesh of its own: a step would be compiled for its first state, and again for the one it returns.
"""

from __future__ import annotations

import ast
import re

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.syntax import leaf
from pmapx._src.analysis.values import Class
from pmapx._src.codemod.decide.array_expressions import is_number
from pmapx._src.codemod.decide.assigned_values import (
    assigned_values,
    block_of,
    is_always,
    may_be_none,
)
from pmapx._src.codemod.forms.use import jax_numpy
from pmapx._src.codemod.text.call_tokens import arguments
from pmapx._src.codemod.text.editor import Editor

STACKED = {
    "jax.device_put_replicated": "device_put_replicated",
    "flax.jax_utils.replicate": "device_put_replicated",
    "jax.device_put_sharded": "device_put_sharded",
}

# What arrays that are on one device each come from.
_PLACED = frozenset(
    {"device_put", "default_device", "addressable_shards", "addressable_data", "device_buffers"}
)
# What returns keys, typed ones if they were.
_KEYS = re.compile(r"random\.(key|split|fold_in|clone)$")


def obstacle(module: Module, node: ast.AST, name: str) -> str:
    """Returns why a use of such a function is not a call that can be written out."""
    call = module.parent(node)
    if not isinstance(call, ast.Call) or call.func is not node:
        return "it is not called"
    above: ast.AST = call
    while isinstance(above, (ast.expr, ast.keyword)):
        if isinstance(above, ast.JoinedStr):
            return "it is inside an f-string"
        above = module.parent(above)
    if any(isinstance(arg, ast.Starred) for arg in call.args) or len(call.args) > 2:
        return "its arguments are unpacked"
    if _devices(call) is None and name != "flax.jax_utils.replicate":
        return "it has no devices"
    return "" if call.args else "its arguments are keywords"


def _devices(call: ast.Call) -> ast.expr | None:
    given = [*call.args[1:], *(k.value for k in call.keywords if k.arg == "devices")]
    return given[0] if given else None


def some_devices(module: Module, call: ast.Call) -> str:
    """Returns the text of a call's devices, empty if they are all."""
    devices = _devices(call)
    if devices is None or (isinstance(devices, ast.Constant) and devices.value is None):
        return ""
    text = module.text(devices)
    is_all = re.fullmatch(r"(jax\.)?(local_)?devices\(\)|list\(jax\.(local_)?devices\(\)\)", text)
    are_all = is_always(module, devices, known_names.DEVICES)
    if is_all or (are_all and not _may_be_others(module, devices)):
        return ""
    is_name = text.replace(".", "").isidentifier()
    is_optional = is_name and may_be_none(module, text, devices)
    return f"{text} or jax.local_devices()" if is_optional else text


def _may_be_others(module: Module, devices: ast.expr) -> bool:
    """Tells whether a caller may give the devices, as in ``devices or jax.local_devices()``."""
    text = ast.unparse(devices)
    parameters = {
        part.arg
        for around in module.functions_around(devices)
        for part in ast.walk(around.args)  # type: ignore[attr-defined]
        if isinstance(part, ast.arg)
    }
    return text in parameters or any(
        isinstance(node, ast.Assign)
        and text in map(ast.unparse, node.targets)
        and not isinstance(node.value, ast.Call)
        for node in module.nodes
    )


def write(module: Module, node: ast.AST, name: str, mesh: str, axis: str, editor: Editor) -> None:
    """Writes the call that stacks copies, or shards, over the mesh.

    Without a mesh, in a multi-process program, they are stacked for the devices of one process.
    """
    call = module.parent(node)
    assert isinstance(call, ast.Call)
    text = editor.text(arguments(editor.source, call)[0][1])
    numpy = jax_numpy(module)
    devices = some_devices(module, call)
    are_arrays = _are_arrays(module, call.args[0])
    if STACKED[name] == "device_put_sharded":
        # Arrays that are committed to different devices cannot be stacked there.
        on_host = _may_be_placed(module, call.args[0])
        shards = "jax.device_get(x)" if on_host else "x"
        stacked = [f"lambda *x: {numpy}.stack({shards})", f"*{_atom(text)}"]
    else:
        count = f"{mesh}.size" if mesh.isidentifier() else "jax.local_device_count()"
        count = f"len({devices})" if devices else count
        stacked = [f"lambda x: {numpy}.stack([x] * {count})", text]
    if mesh:
        tree = f"{numpy}.stack({text})" if are_arrays else f"jax.tree.map({', '.join(stacked)})"
        _put(module, call, tree, mesh, f"jax.P({axis})", editor)
        return
    place = module.place(call)
    used = place.column + len(editor.rest_of_line(place))
    indent = editor.indent(place.line)
    editor.replace(place, editor.folded_call("jax.tree.map", stacked, indent, used))


def write_replicated(
    module: Module, node: ast.Call | ast.Tuple, mesh: str, is_global: bool, editor: Editor
) -> None:
    """Writes the call that replicates a tree over the mesh, or a tuple of trees.

    ``is_global`` if the mesh has devices of several processes.
    """
    calls = node.elts if isinstance(node, ast.Tuple) else [node]
    trees = [editor.text(arguments(editor.source, call)[0][1]) for call in calls]  # type: ignore[arg-type]
    tree = f"({', '.join(trees)})" if isinstance(node, ast.Tuple) else trees[0]
    if is_global and _is_restored(module, node):
        tree = f"jax.device_get({tree})"
    is_refused = is_global and any(_is_refused(module, call.args[0]) for call in calls)  # type: ignore[attr-defined]
    _put(module, node, tree, mesh, "jax.P()", editor, is_refused=is_refused)


def _is_restored(module: Module, node: ast.Call | ast.Tuple) -> bool:
    """Tells whether a tree is restored: its arrays are committed to a device of the process.

    ``jax.device_put`` refuses these for devices of several processes, and takes those of the host.
    """
    tree = node.args[0] if isinstance(node, ast.Call) else node
    given = assigned_values(block_of(module, tree), tree.id) if isinstance(tree, ast.Name) else ()
    return any(
        isinstance(part, ast.Call) and "restore" in leaf(part.func).lower()
        for value in (tree, *given)
        for part in ast.walk(value)
    )


def _is_refused(module: Module, tree: ast.expr) -> bool:
    """Tells whether ``jax.device_put`` may refuse a tree for devices of several processes.

    It does so for typed keys, and for numbers that are not equal to their float32.
    """
    has_keys = re.search(r"\brandom\.key\(", module.source.text) is not None
    block = block_of(module, tree)
    waiting, seen = [tree], set[ast.expr]()
    for node in waiting:
        if node in seen:
            continue
        seen.add(node)
        match node:
            case ast.Name(id=name):
                waiting += assigned_values(block, name)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
                waiting += parts
            case ast.Call(func=function) if has_keys and _KEYS.search(ast.unparse(function)):
                return True
            case ast.Call() if _makes_object(module, node):
                waiting += [*node.args, *(keyword.value for keyword in node.keywords)]
        if is_number(node, block) and not isinstance(node, (ast.Dict, ast.Tuple, ast.List)):
            is_whole = isinstance(node, ast.Constant) and isinstance(node.value, int)
            if not is_whole and not isinstance(node, ast.Name):
                return True
    return False


def _makes_object(module: Module, call: ast.Call) -> bool:
    facts = module.facts.callees.get(call, ())
    return any(isinstance(fact, Class) for fact in facts) or leaf(call.func) in ("dict", "create")


def _are_arrays(module: Module, node: ast.expr) -> bool:
    """Tells whether shards are arrays and no trees: parts of one, or copies of a tree's leaf."""
    match node:
        case ast.Call(func=function):
            return bool(re.fullmatch(r"(np|numpy|jnp|jax\.numpy)\.split", ast.unparse(function)))
        case ast.BinOp(left=ast.List(elts=[ast.Name() as leaf]), op=ast.Mult()):
            pass
        case ast.BinOp(right=ast.List(elts=[ast.Name() as leaf]), op=ast.Mult()):
            pass
        case _:
            return False
    around = module.functions_around(node)
    mapping = module.parent(around[0]) if around and isinstance(around[0], ast.Lambda) else None
    return (
        isinstance(mapping, ast.Call)
        and mapping.args[:1] == around[:1]
        and leaf.id in {each.arg for each in around[0].args.args}  # type: ignore[attr-defined]
        and bool(
            re.fullmatch(
                r"jax\.(tree\.map|tree_map|tree_util\.tree_map)", ast.unparse(mapping.func)
            )
        )
    )


def _may_be_placed(module: Module, shards: ast.expr) -> bool:
    """Tells whether shards are put on devices where they are made, or made elsewhere."""
    values = [shards]
    if isinstance(shards, ast.Name):
        block = block_of(module, shards)
        values = list(assigned_values(block, shards.id))
        for node in ast.walk(block) if values else ():
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=shards.id)), args=args):
                    values += args
    words = {
        getattr(part, "attr", getattr(part, "id", ""))
        for value in values
        for part in ast.walk(value)
    }
    return not values or bool(words & _PLACED)


def _put(
    module: Module,
    call: ast.expr,
    tree: str,
    mesh: str,
    spec: str,
    editor: Editor,
    *,
    is_refused: bool = False,
) -> None:
    place = module.place(call)
    used = place.column + len(editor.rest_of_line(place))
    indent = editor.indent(place.line)
    sharding = f"jax.NamedSharding({mesh}, {spec})"
    # In a lambda among other arguments, it may be one step deeper than this.
    deeper = indent + editor.hang
    made = ast.parse(mesh, mode="eval").body
    if isinstance(made, ast.Call) and len(f"{deeper}{editor.hang}{sharding},") > editor.width:
        parts = [ast.get_source_segment(mesh, part) or "" for part in (*made.args, *made.keywords)]
        inner = deeper + editor.hang
        mesh = editor.folded_call(ast.unparse(made.func), parts, inner, len(inner + editor.hang))
        sharding = editor.call("jax.NamedSharding", [mesh, spec], deeper)
    tree = editor.folded(tree, deeper, len(deeper) + 1)
    function, given = "jax.device_put", [tree, sharding]
    if is_refused:
        options = ["lambda x: x", f"out_shardings={sharding}"]
        function, given = editor.folded_call("jax.jit", options, indent, used), [tree]
    editor.replace(place, editor.folded_call(function, given, indent, used))


def _atom(text: str) -> str:
    return text if re.fullmatch(r"[\w.]+(\(.*\))?|\[.*\]", text, re.DOTALL) else f"({text})"
