"""A use of pmap with what its form is chosen by and written from."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Mapping, Sequence

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import Site
from pmapx._src.analysis.syntax import positional
from pmapx._src.analysis.values import Named
from pmapx._src.codemod.decide import specs
from pmapx._src.codemod.decide.array_expressions import is_array_in_call
from pmapx._src.codemod.decide.assigned_values import is_in_loop, may_be_none
from pmapx._src.codemod.decide.map_calls import (
    counts_devices,
    is_part,
    map_calls,
    whole_counts,
)
from pmapx._src.codemod.decide.nested_pmaps import Grid, Nesting
from pmapx._src.codemod.decide.process_model import Surroundings
from pmapx._src.codemod.decide.repeated_maps import may_be_remade
from pmapx._src.codemod.decide.specs import Layout
from pmapx._src.codemod.forms import mapped_function
from pmapx._src.codemod.forms.mapped_function import MappedFunction
from pmapx._src.codemod.text import call_tokens
from pmapx._src.codemod.text.editor import Editor

# Options of pmap that ``jax.jit`` has.
FOR_JIT = {"static_broadcasted_argnums": "static_argnums", "donate_argnums": "donate_argnums"}


@dataclasses.dataclass(eq=False)
class Use:
    """A site; ``node`` is the reference to pmap, ``nestings`` those that the site is part of."""

    site: Site
    module: Module
    node: ast.AST
    nestings: Sequence[Nesting]
    around: Surroundings
    # The name of its mesh, or the call that makes it and its arguments, with {size} for its number
    # of shards; its name near the site; whether it is made when the function is traced.
    mesh: tuple[str, ...] = ()
    near_mesh: str = ""
    is_lazy: bool = False
    default_axis: str = '"devices"'  # of the mesh, for a map that names none
    # Arguments that the global style made replicated, so that they are global arrays, with -1 for
    # its results.
    replicated: frozenset[int] = frozenset()
    # What was known of the sizes of its arguments before some of them were merged.
    known_counts: list[bool] | None = None
    grid: Grid | None = None
    conversion: str = ""  # The function that converts host-local arrays for it, if one does.

    @functools.cached_property
    def expression(self) -> ast.expr:
        """The expression of the site: a call, a decorator, or pmap itself."""
        node = self.node
        while self.module.place(node) != self.site.place:
            node = self.module.parent(node)
        assert isinstance(node, ast.expr)
        return node

    @functools.cached_property
    def layout(self) -> Layout | str:
        """The mesh and specs of the map, or why they cannot be written at the site."""
        found = self._obstacle_to_layout() or (
            self.grid.layout if self.grid else specs.layout(self.module, self.site)
        )
        if not isinstance(found, Layout):
            return found
        is_plain = self.grid is None and not self.replicated
        is_plain = is_plain and self.site.kind in ("call", "decorator")
        many = self.around.in_processes
        found = found.in_processes(is_plain) if many else found.in_one_process()
        return found.with_keywords(self.given_by_position, len(self.keywords))

    @functools.cached_property
    def keywords(self) -> list[str]:
        """The keywords that every call gives, in the order of the function's parameters."""
        names = self.function.parameters if self.function is not None else None
        return mapped_function.keywords_given(self.module, self.site, names or [])

    @functools.cached_property
    def given_by_position(self) -> int:
        """How many arguments every call gives before these keywords; -1 if they differ."""
        counts = mapped_function.argument_counts(self.module, self.site)
        count = counts.pop() + self.is_method if len(counts) == 1 and -1 not in counts else -1
        names = (self.function.parameters if self.function is not None else None) or []
        return -1 if set(names[:count]) & set(self.keywords) else count

    def merge(self, arguments: frozenset[int], results: frozenset[int]) -> None:
        """Lets arguments and results be global arrays."""
        self.layout = dataclasses.replace(
            self.known_layout, merged=arguments, merged_results=results
        )

    @property
    def known_layout(self) -> Layout:
        assert isinstance(self.layout, Layout)
        return self.layout

    def _obstacle_to_layout(self) -> str:
        site = self.site
        if site.kind not in ("call", "decorator", "wrapper") or not self.has_known_arguments:
            return "its options are not all written at the site"
        if self.is_in_f_string:
            return "it is inside an f-string"
        if self.nestings and self.grid is None:
            return "it is inside another pmap, or contains one"
        named = {
            ast.unparse(target)
            for reference in self.module.facts.references.values()
            if reference.name == "jax.pmap"
            for target in getattr(self.module.parent(reference.node), "targets", ())
        }
        if site.function in named:
            return "it maps a function that is pmapped on another line"
        is_other = self.is_made_again and not self._is_same_anywhere
        return "it is created for each call, with different options" if is_other else ""

    @property
    def _is_same_anywhere(self) -> bool:
        """Whether its options mean the same at the top level of the file."""
        if self.site.kind == "decorator":
            return False
        options = dict(self.site.options)
        used = set()
        for name, text in options.items():
            tree = ast.parse(text.strip(), mode="eval")
            used |= {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}
            if name.endswith("argnums") and not call_tokens.is_literal(text):
                return False
        parts = [p for each in self.module.functions_around(self.node) for p in ast.walk(each)]
        bound = {part.arg for part in parts if isinstance(part, ast.arg)}
        names = [part for part in parts if isinstance(part, ast.Name)]
        stored = {part.id for part in names if isinstance(part.ctx, ast.Store)}
        return not used & (bound | stored)

    @functools.cached_property
    def is_sized(self) -> bool:
        """Whether its mesh has as many devices as its arguments have shards, as under pmap.

        Across processes, pmap itself takes all devices.
        """
        site, around = self.site, self.around
        if self.grid is not None or around.in_processes:
            return self.grid is not None
        if site.option("devices") is not None:
            return self.may_have_no_devices
        may_be_part = specs.has_size(site) or any(is_part(arg) for _, arg in self._arguments)
        has_size = site.option("axis_size") is not None
        is_unknown = site.is_called_at_once and not (self.is_counted or has_size)
        is_some = not around.maps_all_devices or not all(self.shard_counts)
        return is_some or may_be_part or is_unknown

    @functools.cached_property
    def shard_counts(self) -> list[bool]:
        """Whether each size that its arguments are seen to get is the number of all devices."""
        if self.known_counts is not None:
            return self.known_counts
        return whole_counts(self._arguments) if not self.around.in_processes else []

    @functools.cached_property
    def may_have_no_devices(self) -> bool:
        """Whether its devices are a name or a field that may be None."""
        text = self.site.option("devices") or ""
        is_name = text.replace(".", "").isidentifier()
        return is_name and may_be_none(self.module, text, self.node)

    @functools.cached_property
    def is_counted(self) -> bool:
        """Whether an argument is seen to have a shard for each device."""
        return any(counts_devices(self.module, self.node, arg) for _, arg in self._arguments)

    @property
    def counted_argument(self) -> str:
        """The text of the mapped argument of a call at once that its size can be read from."""
        layout = specs.layout(self.module, self.site)
        if not self.site.is_called_at_once or isinstance(layout, str):
            return ""
        for _, call in map_calls(self.module, self.site):
            for position, arg in enumerate(call.args):
                is_plain = isinstance(arg, (ast.Name, ast.Attribute))
                if is_plain and layout.in_axes_of(position) == 0:
                    return ast.unparse(arg)
        return ""

    @property
    def _arguments(self) -> list[tuple[Module, ast.expr]]:
        """The mapped arguments of its calls."""
        axes = specs.layout(self.module, self.site)
        return [
            (module, arg)
            for module, call in map_calls(self.module, self.site)
            for position, arg in enumerate(call.args)
            if isinstance(axes, str) or axes.in_axes_of(position) is not None
        ]

    def is_array(self, name: str) -> bool:
        """Returns whether a parameter is one array: used as one, or one in the only call."""
        f = self.function
        if f is None or f.is_array(name):
            return f is not None
        return is_array_in_call(self.module, self.expression, f.parameters or [], name)

    def mesh_text(self, editor: Editor, indent: str, size: str = "") -> str:
        """Returns the keyword for its mesh, in lines that fit."""
        function, *args = (part.replace("{size}", size) for part in self.mesh)
        if not args:
            return f"mesh={function}"
        return editor.folded_call(f"mesh={function}", args, indent, len(indent) + 1)

    def size(self, names: Sequence[str] | None) -> str:
        """Returns how many shards the arguments of these names have, ``*args`` without them."""
        layout = self.known_layout
        if self.grid is not None and names is not None:
            name, at = names[self.grid.sized], self.grid.sized
            parameters = (self.function and self.function.parameters) or []
            is_array = any(map(self.is_array, parameters[at : at + 1]))
            return f"{name if is_array else f'jax.tree.leaves({name})[0]'}.shape[:2]"
        if names is None:
            given = "(args, kwargs)" if self.takes_keywords else "args"
            found: tuple[str, int] | None = specs.first_mapped(given, layout.in_axes, self.axis)
        else:
            own = (self.function.parameters if self.function is not None else None) or []
            for position, name in enumerate(names):
                axis = None if position in layout.static else layout.in_axes_of(position)
                found = specs.first_mapped(name, axis, self.axis)
                if type(axis) is int and any(map(self.is_array, own[position : position + 1])):
                    return f"{name}.shape[{axis}]" if axis else f"len({name})"
                if found is not None:
                    break
        if found is None:
            # Each device does the same.
            return "jax.device_count()"
        leaf = f"jax.tree.leaves({found[0]})[0]"
        return f"{leaf}.shape[{found[1]}]" if found[1] else f"len({leaf})"

    @property
    def axis(self) -> str:
        """The text of the mesh axis's name."""
        return self.known_layout.axis or self.default_axis

    @functools.cached_property
    def is_axis_constant(self) -> bool:
        """Whether its axis's name is a string, or a name of the file's own: the same everywhere."""
        text = self.known_layout.axis
        if not text or text[0] in "'\"":
            return True
        around = self.module.functions_around(self.node)
        bound = {
            getattr(part, "arg", getattr(part, "id", ""))
            for function in around
            for part in ast.walk(function)
            if isinstance(part, ast.arg)
            or (isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
        }
        if text.isidentifier():
            return text not in bound
        return self._is_same_attribute(text.rpartition(".")[2])

    def _is_same_attribute(self, name: str) -> bool:
        """Whether every class and object of the program has one string for an attribute."""
        values = {
            ast.dump(part.value)
            for other in self.module.project.modules.values()
            if other is not None
            for part in other.nodes
            if isinstance(part, (ast.Assign, ast.AnnAssign)) and part.value is not None
            for target in (part.targets if isinstance(part, ast.Assign) else [part.target])
            if name in (getattr(target, "id", ""), getattr(target, "attr", ""))
        }
        return len(values) == 1 and next(iter(values)).startswith("Constant(value='")

    @functools.cached_property
    def function(self) -> MappedFunction | None:
        """The function that is mapped, if it is known."""
        return mapped_function.mapped_function(self.module, self.site)

    @functools.cached_property
    def is_called_by_keyword(self) -> bool:
        return not self.calls_in_order and specs.has_keyword_calls(self.module, self.site)

    @functools.cached_property
    def calls_in_order(self) -> list[tuple[Module, ast.Call]]:
        """Its calls, if their keywords may as well be given by position."""
        of = self.function if self.keywords and not self.is_method else None
        return of.calls_in_order(self.module, self.site, self.given_by_position) if of else []

    @functools.cached_property
    def takes_keywords(self) -> bool:
        """Whether its calls have keywords that are no known positions, all with a leading axis."""
        is_any = self.is_called_by_keyword and self.known_layout.is_leading
        return is_any and not self.can_name_all

    @functools.cached_property
    def can_name_all(self) -> bool:
        """Whether each call gives every argument by position, or by name if it is not donated."""
        # jax.jit donates a keyword if its position is donated, and pmap did not.
        names, donated = self.names, specs.argnums(self.site.option("donate_argnums") or "()")
        if names is None or donated is None:
            return names is not None and not self.is_called_by_keyword
        free = {name for i, name in enumerate(names) if i not in donated}
        return all(
            len(call.args) + len(call.keywords) + self.is_method == len(names)
            and {keyword.arg for keyword in call.keywords} <= free
            for _, call in map_calls(self.module, self.site)
        )

    @property
    def needs_names(self) -> bool:
        """Whether its arguments are converted one by one, or not all of them go to shard_map."""
        is_any = self.known_layout.is_leading and not self.is_called_by_keyword
        return not (is_any or self.takes_keywords or self.names_before_others)

    @functools.cached_property
    def names_before_others(self) -> list[str]:
        """The first arguments of ``f(self, *args)``, if they are static and all others stacked."""
        layout, mapped = self.known_layout, self.function
        is_known = mapped is not None and not mapped.taken and not self.is_called_by_keyword
        if self.names is not None or not is_known or self.around.in_processes:
            return []
        names = positional(mapped.node.args)[: len(layout.static)]  # type: ignore[union-attr]
        is_first = layout.static == tuple(range(len(names))) and layout.in_axes == 0
        return names if is_first and not {"args", "function"} & {*names} else []

    @functools.cached_property
    def names(self) -> list[str] | None:
        """A name for each argument, None if their number is not known."""
        layout, mapped = self.known_layout, self.function
        known = mapped.parameters if mapped is not None else None
        counts = mapped_function.argument_counts(self.module, self.site)
        if isinstance(layout.in_axes, tuple):
            count = len(layout.in_axes)
        elif known is not None and mapped is not None and mapped.required == len(known):
            count = len(known)
        elif known is not None and self.keywords and self.given_by_position >= 0:
            count = self.given_by_position + len(self.keywords)
        elif len(counts) == 1 and counts != {-1} and not self.is_called_by_keyword:
            (count,) = counts
            count += self.is_method and not self.site.is_called_at_once
        else:
            return None
        if layout.static and max(layout.static) >= count:
            return None
        before = self.given_by_position
        if known is not None and self.keywords and before + len(self.keywords) == count:
            return [*known[:before], *self.keywords]
        if known is not None and len(known) >= count:
            return known[:count]
        return mapped_function.names_of_arguments(self.module, self.site, count)

    @property
    def is_method(self) -> bool:
        """Whether it decorates a method, which its calls give the object to."""
        above = self.module.parent(self.module.parent(self.expression))
        return self.site.kind == "decorator" and isinstance(above, ast.ClassDef)

    @property
    def numpy(self) -> str:
        return jax_numpy(self.module)

    @functools.cached_property
    def is_made_again(self) -> bool:
        """Whether the same function is mapped there more than once."""
        is_again = self.site.is_called_at_once and is_in_loop(self.module, self.node)
        return is_again or may_be_remade(self.module, self.site, self.node)

    @functools.cached_property
    def is_in_f_string(self) -> bool:
        """Whether line breaks and quotes may end the string around it."""
        node = self.node
        while isinstance(node, (ast.expr, ast.keyword, ast.comprehension)):
            if isinstance(node, ast.JoinedStr):
                return True
            node = self.module.parent(node)
        return False

    @functools.cached_property
    def has_known_arguments(self) -> bool:
        """Whether nothing is unpacked, and no more is given than pmap takes."""
        if self.site.has_unpacked_options:
            return False
        node, call = self.node, self.module.parent(self.node)
        while isinstance(call, ast.Call):
            if any(isinstance(arg, ast.Starred) for arg in call.args) or len(call.args) > 2:
                return False
            if call.args and call.args[0] is node and len(call.args) > 1:
                return False
            if call.func is node:
                return True
            node, call = call, self.module.parent(call)
        return True

    def parts(self, editor: Editor) -> tuple[str, dict[str, str]]:
        """Returns the text of the mapped function, empty in a decorator, and of each option."""
        call = self.expression
        if not isinstance(call, ast.Call):
            return "", {}
        given = call_tokens.arguments(editor.source, call)
        if isinstance(call.func, ast.Call):
            given = [*call_tokens.arguments(editor.source, call.func)[1:], *given]
        elif self.site.kind == "decorator":
            del given[0]
        options = {name: editor.text(place) for name, place in given if name is not None}
        positional = [editor.text(place) for name, place in given if name is None]
        if "fun" in options:
            positional.insert(0, options.pop("fun"))
        if len(positional) > 1:
            options = {"axis_name": positional[1], **options}
        if "donate_argnums" in options:
            options |= {"donate_argnums": self._donated(options["donate_argnums"])}
        return "".join(positional[:1]), {name: text for name, text in options.items() if text}

    def _donated(self, text: str) -> str:
        """Returns the positions to donate without those past the last, which pmap ignored."""
        found = specs.argnums(text)
        known = self.function.parameters if self.function is not None else None
        if not found or known is None or max(found) < len(known):
            return text
        kept = [str(position) for position in found if position < len(known)]
        return f"({', '.join(kept)}{',' * (len(kept) == 1)})" if kept else ""

    def notes(self, editor: Editor) -> list[tuple[str, str | None]]:
        """Returns the comments between the arguments, each with the option that it is beside."""
        call = self.expression
        is_call = isinstance(call, ast.Call)
        return call_tokens.comments_between(editor.source, call) if is_call else []  # type: ignore[arg-type]


def spelled(options: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Returns the options that are wanted as arguments, each under its new name."""
    return [f"{new}={options[old]}" for old, new in wanted.items() if old in options]


def jax_numpy(module: Module) -> str:
    """Returns the name that a file has for jax.numpy."""
    return "jnp" if module.env.find("jnp") == frozenset({Named("jax.numpy")}) else "jax.numpy"
