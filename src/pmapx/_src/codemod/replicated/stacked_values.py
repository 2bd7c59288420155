"""What each expression does with a stacked value: passes it on, takes a shard of it, or loses it.

The analysis has read the program: which bindings reach a name, and what each call calls. Here a
value is followed through these, and it must not be lost: a use that is not understood is a reason
for the value to stay as it is.
"""

from __future__ import annotations

import abc
import ast
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from pmapx._src.analysis import known_names, syntax
from pmapx._src.analysis.definitions import EACH, OPAQUE, Definition, Step, taken
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.syntax import positional
from pmapx._src.analysis.values import Instance, Named, Place
from pmapx._src.codemod.decide import host_arrays
from pmapx._src.codemod.decide.copies import before_host
from pmapx._src.codemod.replicated import by_field
from pmapx._src.codemod.replicated.groups import (
    MIXED,
    NOTHING,
    OTHER,
    PLACED,
    Abstract,
    Change,
    Element,
    Graph,
    Mixed,
    Pairs,
    Parts,
    Ref,
    has_other,
    refs,
)
from pmapx._src.codemod.replicated.mapped_functions import is_static, items_given
from pmapx._src.codemod.replicated.maps import Maps
from pmapx._src.codemod.text.read_by_name import may_name

# Reading these of an array does not depend on its leading axis.
_HARMLESS = frozenset({"dtype", "weak_type", "is_deleted", "delete", "devices", "__class__"})
_OF_ARRAYS = (known_names.METADATA - _HARMLESS) | {"T", "mT", "at", "flat", "real", "imag"}
NOT_FOLLOWED = "it is used in a way that cannot be followed"
UNPACKED = "it is unpacked in a way that cannot be followed"
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Attributes = dict[Any, list[Definition]]  # By name, or by class and name.


class StackedValues(abc.ABC):
    """Expressions other than calls, which a subclass adds."""

    def __init__(self, modules: Sequence[Module], maps: Maps, stacked: Collection[str] = ()):
        """``stacked`` are the names of fields that keep their axis: what they hold stays."""
        self.modules = modules
        self.maps = maps
        self.stacked = stacked
        self.graph = Graph()
        self.graph.is_by_field = bool(stacked)
        self._traced = {n for m in modules[:1] for n in (*m.project.mapped, *m.project.jitted)}
        # Functions that only traced ones call; arguments of maps that these take items of.
        self.inner: set[ast.AST] | None = None
        self.unpacked: set[Element] = set()
        self._values: dict[object, Abstract] = {}
        self._nodes_of: dict[ast.AST, set[ast.AST]] = {}  # Of functions that are traced.
        # Of the round before: what a value is that depends on itself.
        self._before: dict[object, Abstract] = {}
        self._attributes, self._set_somewhere = self._find_attributes()
        self._attributes_named: dict[str, list[Definition]] = {}
        for (_, name), definitions in self._attributes.items():
            self._attributes_named.setdefault(name, []).extend(definitions)

    def _find_attributes(self) -> tuple[_Attributes, _Attributes]:
        """Returns what sets the attributes of each class, and those of unknown objects."""
        found, somewhere = _Attributes(), _Attributes()
        for module in self.modules:
            definitions = module.facts.definitions
            for (cls, name), published in definitions.published.items():
                family = self.maps.family(cls)
                kept = [each for each in published if not self.is_traced(module, each.node)]
                found.setdefault((family, name), []).extend(kept)
            for target, definition in definitions.assigned.items():
                is_own = isinstance(target, ast.Attribute) and self._own_class(module, target)
                if not isinstance(target, ast.Attribute) or is_own:
                    continue
                families = self._families_of(module, target.value)
                for family in families:
                    found.setdefault((family, target.attr), []).append(definition)
                if not families and not self.is_traced(module, target):
                    somewhere.setdefault(target.attr, []).append(definition)
        return found, somewhere

    def is_traced(self, module: Module, node: ast.AST) -> bool:
        """Tells whether a node is in a function that is traced, where no device axis is seen."""
        return not self._traced.isdisjoint(module.functions_around(node))

    def escape(self, held: Abstract, module: Module, node: ast.AST, why: str) -> None:
        """Notes that a value goes where it is not followed: its group stays stacked.

        Unless the node is the value, and nothing else: then it could be given a stacked copy.
        """
        is_stacked_again = isinstance(held, Ref) and self._may_be_stacked_again(module, node, held)
        if is_stacked_again:
            self._boundary(module, node, held, why, "the code here")  # type: ignore[arg-type]
        for ref in () if is_stacked_again else refs(held):
            ref.element.reasons.setdefault(module.place(node), why)

    def hand_over(self, module: Module, node: ast.expr, why: str, taker: str) -> None:
        """Reads what something takes that is not followed: it could be given a stacked copy."""
        if isinstance(node, (ast.Tuple, ast.List, ast.Dict)):
            for key in filter(None, node.keys if isinstance(node, ast.Dict) else ()):
                self.value(module, key)
            for part in node.values if isinstance(node, ast.Dict) else node.elts:
                self.hand_over(module, part, why, taker)
            return
        held = self.value(module, node.value if isinstance(node, ast.Starred) else node)
        if isinstance(held, Ref) and self._may_be_stacked_again(module, node, held):
            self._boundary(module, node, held, why, taker)
        else:
            self.escape(held, module, node, why)

    def _may_be_stacked_again(self, module: Module, node: ast.AST, held: Ref) -> bool:
        changes = held.host and host_arrays.may_change(module, node, held.host == 2)
        if changes or self._values.get(node) is not held or self.is_traced(module, node):
            return False
        # What is stored in a copy is lost; in the text of an f-string, a lambda cannot be written.
        while isinstance(node, (ast.expr, ast.keyword)):
            is_stored = not isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
            if is_stored or isinstance(node, ast.JoinedStr):
                return False
            node = module.parent(node)
        return True

    def _boundary(self, module: Module, node: ast.expr, held: Ref, why: str, taker: str) -> None:
        shown = before_host(module, node)
        change = Change(module, "stack", shown, around=taker, is_part=held.is_field)
        held.element.boundaries[node] = (change, module.place(node), why)

    def use_all(self, module: Module, node: ast.AST) -> Abstract:
        """Reads the expressions in something that is not understood."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.escape(self.value(module, child), module, child, NOT_FOLLOWED)
            elif not isinstance(child, ast.stmt):
                self.use_all(module, child)
        return OTHER

    def value(self, module: Module, node: ast.expr) -> Abstract:
        """Returns what an expression is, and notes what is done in it."""
        reader = _READERS.get(type(node), StackedValues.use_all)
        return self._once(node, reader, self, module, node)

    def _once(self, key: object, compute: Callable[..., Abstract], *given: object) -> Abstract:
        values = self._values
        if key in values:
            return values[key]
        values[key] = self._before.get(key, NOTHING)
        values[key] = compute(*given)
        return values[key]

    def defined(self, definition: Definition) -> Abstract:
        """Returns what a binding gives its target."""
        return self._once(definition, self._define, definition)

    def _define(self, definition: Definition) -> Abstract:
        module, node, source = definition.module, definition.node, definition.source
        if source is None:
            return self._parameter(module, node) if isinstance(node, ast.arg) else OTHER
        held = self.value(module, source)
        for step in definition.steps:
            held = self._part(module, held, step, node, source)
        return held

    def _part(
        self, module: Module, held: Abstract, step: Step, target: ast.AST, source: ast.expr
    ) -> Abstract:
        if step == EACH:
            return self._element(module, held, source)
        found = taken(held.items, step) if isinstance(held, Parts) and step != OPAQUE else None  # type: ignore[arg-type]
        if found is not None:
            return Parts(found) if isinstance(found, tuple) else found
        if step == OPAQUE or isinstance(held, (Parts, Pairs, Mixed)):
            self.escape(held, module, target, UNPACKED)
            return OTHER
        if isinstance(held, Ref) and held.is_leaf:
            self.escape(held, module, target, "its shards are unpacked")
        elif isinstance(held, Ref):
            return by_field.part_of(self, held, module, target)
        return held

    def _element(self, module: Module, iterated: Abstract, node: ast.expr) -> Abstract:
        """Returns what a loop's variable holds."""
        if isinstance(iterated, Pairs):
            return Parts((OTHER, iterated.ref))
        if isinstance(iterated, Parts) and iterated.items:
            return self._merged(iterated.items, module, node)
        if isinstance(iterated, Ref) and iterated.is_tuple:
            return by_field.part_of(self, iterated, module, node)
        self.escape(iterated, module, node, "a loop iterates over it")
        return OTHER

    @abc.abstractmethod
    def _parameter(self, module: Module, node: ast.arg) -> Abstract: ...

    def _merged(self, several: Iterable[Abstract], module: Module, node: ast.AST) -> Abstract:
        return self._merged_at(several, module.place(node))

    def _merged_at(self, several: Iterable[Abstract], place: Place) -> Abstract:
        held: Abstract = NOTHING
        for each in several:
            held = self.graph.merge(held, each, place)
        return held

    def _all_defined(self, found: Iterable[Definition], module: Module, node: ast.AST) -> Abstract:
        """Returns what a name or attribute is that any of these bindings may have set."""
        found = tuple(found)
        if len(found) == 1:
            return self.defined(found[0])
        ordered = sorted(found, key=lambda each: (each.module.path, *_position(each.node)))
        return self._merged((self.defined(each) for each in ordered), module, node)

    def definitions_of(self, module: Module, node: ast.Name) -> Iterable[Definition]:
        """Returns the bindings that a name may have its value from."""
        return module.facts.definitions.of_name(module, node)

    def _name(self, module: Module, node: ast.Name) -> Abstract:
        found = self.definitions_of(module, node)
        return self._all_defined(found, module, node) if found else OTHER

    def _own_class(self, module: Module, node: ast.Attribute) -> ast.ClassDef | None:
        """Returns the class whose method reads or sets an attribute of its own object."""
        for function in module.functions_around(node):
            if isinstance(function, ast.Lambda):
                continue
            names = positional(function.args)  # type: ignore[attr-defined]
            above = module.parent(function)
            is_first = isinstance(node.value, ast.Name) and names[:1] == [node.value.id]
            if isinstance(above, ast.ClassDef) and is_first and not is_static(function):
                return above
            return None
        return None

    def _families_of(self, module: Module, node: ast.expr) -> list[str]:
        """Returns the classes that an object may be of, none if that is not known."""
        holders = module.facts.holders.get(node, frozenset())
        objects = [fact for fact in holders if isinstance(fact, Instance)]
        if any(self.maps.hands_on(fact.cls.node) for fact in objects):
            return []
        return sorted({self.maps.family_of(fact.cls) for fact in objects})

    def _attribute_of(self, family: str, name: str, module: Module, node: ast.AST) -> Abstract:
        found = self._attributes.get((family, name))
        if not found:
            return OTHER
        held = self._all_defined(found, module, node)
        # An object that is not known may be one of these.
        return self._merged([held, OTHER], module, node) if name in self._set_somewhere else held

    def escape_attributes(
        self, module: Module, node: ast.expr, at: ast.AST, only: object = None
    ) -> None:
        """Notes that attributes of an object are read or set by names that are not followed.

        ``only`` is the name, where that is written out, and ... where it is computed.
        """
        around = [module.parent(each) for each in module.functions_around(node)]
        classes = [each for each in around if isinstance(each, ast.ClassDef)]
        is_self = isinstance(node, ast.Name) and node.id == "self" and bool(classes)
        own = [self.maps.family(each) for each in classes[:1] if is_self]
        families = own or self._families_of(module, node)
        for (family, name), definitions in self._attributes.items():
            is_of = not families or family in families
            for each in definitions if is_of and may_name(module, only, name) else ():
                self.escape(self.defined(each), module, at, "it may be read here by name")

    def _attribute(self, module: Module, node: ast.Attribute) -> Abstract:
        if node.attr == "__dict__":
            self.escape_attributes(module, node.value, node)
        cls = self._own_class(module, node)
        if cls is not None:
            reaching = module.facts.definitions.reaching.get(node)
            if reaching:
                return self._all_defined(reaching, module, node)
            family = self.maps.family(cls)
            if (family, node.attr) not in self._attributes and self.maps.hands_on(cls):
                return self._of_any(module, node)
            return self._attribute_of(family, node.attr, module, node)
        base = self.value(module, node.value)
        if isinstance(base, Ref):
            if node.attr in _HARMLESS:
                return OTHER
            if node.attr not in _OF_ARRAYS:
                return by_field.part_of(self, base, module, node, node.attr)
        at = node if node.attr in PLACED else node.value
        self.escape(base, module, at, f"its {node.attr} is read")
        return OTHER if isinstance(base, Ref) else self._of_object(module, node)

    def _of_object(self, module: Module, node: ast.Attribute) -> Abstract:
        families = self._families_of(module, node.value)
        if families:
            found = [self._attribute_of(each, node.attr, module, node) for each in families]
            return self._merged(found, module, node)
        return self._of_any(module, node)

    def _of_any(self, module: Module, node: ast.Attribute) -> Abstract:
        found = self._attributes_named.get(node.attr, ())
        is_other = not found or by_field.is_of_array(self, module, node)
        for each in () if is_other or self._is_library(module, node.value) else found:
            # Whose attribute it is, is not known: it may be any object's.
            self.escape(self.defined(each), module, node, "it may be read here through an object")
        return OTHER

    def _is_library(self, module: Module, node: ast.expr) -> bool:
        found = (module.env.find(node.id) if isinstance(node, ast.Name) else None) or ()
        return bool(found) and all(isinstance(fact, Named) for fact in found)

    def _subscript(self, module: Module, node: ast.Subscript) -> Abstract:
        base = self.value(module, node.value)
        self.escape(self.value(module, node.slice), module, node.slice, "it is an index")
        try:
            chosen = ast.literal_eval(node.slice)
        except (ValueError, TypeError):
            chosen = None
        if isinstance(base, Parts):
            if type(chosen) is int and -len(base.items) <= chosen < len(base.items):
                return base.items[chosen]
            why = "an unknown part of it is selected"
        elif not isinstance(base, Ref):
            why = "it is indexed"
        elif isinstance(chosen, str) and not base.is_leaf:
            return by_field.part_of(self, base, module, node, chosen)
        elif type(chosen) is not int:
            why = "a shard is selected by something other than a number"
        elif by_field.takes_item(self, base, module, node):
            return by_field.part_of(self, base, module, node)
        elif not base.is_leaf and not by_field.takes_shard(self, base, module, node):
            why = f"the index may select from a tuple{self.maps.evidence.not_reached}"
            self.hand_over(module, node.value, why, "the index")
            return OTHER
        else:
            by_field.view(base, module, node)
            base.element.changes[node] = Change(module, "index", node, is_part=base.is_field)
            return OTHER
        self.escape(base, module, node.value, why)
        return OTHER

    def _constant(self, module: Module, node: ast.Constant) -> Abstract:
        return NOTHING if node.value is None else OTHER

    def _tuple(self, module: Module, node: ast.Tuple | ast.List) -> Abstract:
        if any(isinstance(part, ast.Starred) for part in node.elts):
            return self.use_all(module, node)
        items = tuple(self.value(module, part) for part in node.elts)
        return Parts(items) if any(list(refs(item)) for item in items) else OTHER

    def _dict(self, module: Module, node: ast.Dict) -> Abstract:
        for key in filter(None, node.keys):
            self.escape(self.value(module, key), module, key, "it is a key")
        held = [self.value(module, item) for item in node.values]
        if any(map(has_other, held)):
            for item in node.values:
                self.hand_over(module, item, MIXED, "the dict")
            return OTHER
        return self.graph.joined(held, module.place(node)) or OTHER

    def condition(self, module: Module, node: ast.expr) -> None:
        """Reads a condition: ``x is None`` asks nothing of an array."""
        self.escape(self.value(module, node), module, node, "it is a condition")

    def _ifexp(self, module: Module, node: ast.IfExp) -> Abstract:
        self.condition(module, node.test)
        several = [self.value(module, part) for part in (node.body, node.orelse)]
        return self._merged(several, module, node)

    def _boolop(self, module: Module, node: ast.BoolOp) -> Abstract:
        return self._merged((self.value(module, part) for part in node.values), module, node)

    def _compare(self, module: Module, node: ast.Compare) -> Abstract:
        is_identity = all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)
        for part in (node.left, *node.comparators):
            held = self.value(module, part)
            self.escape(OTHER if is_identity else held, module, part, "it is compared")
        return OTHER

    def _namedexpr(self, module: Module, node: ast.NamedExpr) -> Abstract:
        return self.value(module, node.value)

    def _lambda(self, module: Module, node: ast.Lambda) -> Abstract:
        if node in self._traced:
            self.read_traced(module, node)
        else:
            self.escape(self.value(module, node.body), module, node.body, "a lambda returns it")
        return OTHER

    def read_traced(self, module: Module, function: Function) -> None:
        """Looks for values of the program around that a traced function takes in."""
        if function not in self._nodes_of:
            self._nodes_of[function] = set(syntax.walk(function))
        inside = self._nodes_of[function]
        why = "a traced function closes over it"
        for part in inside:
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                found = self.definitions_of(module, part)
                outside = [each for each in found if each.node not in inside]
                self.escape(self._all_defined(outside, module, part), module, part, why)
            elif isinstance(part, ast.Attribute) and self._own_class(module, part):
                self.escape(self.value(module, part), module, part, why)

    def _comprehension(self, module: Module, node: Any) -> Abstract:
        for generator in node.generators:
            self.value(module, generator.iter)
            for test in generator.ifs:
                self.condition(module, test)
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        held, count = self.value(module, parts[-1]), items_given(node)
        if isinstance(held, Ref) and count:
            return Parts((held,) * count)
        for part in parts:
            self.escape(self.value(module, part), module, part, "it is stored in a container")
        return OTHER

    @abc.abstractmethod
    def _call(self, module: Module, node: ast.Call) -> Abstract: ...


def _position(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


_READERS: dict[type[ast.expr], Callable[[StackedValues, Module, Any], Abstract]] = {
    ast.Name: StackedValues._name,
    ast.Attribute: StackedValues._attribute,
    ast.Subscript: StackedValues._subscript,
    ast.Constant: StackedValues._constant,
    ast.Tuple: StackedValues._tuple,
    ast.List: StackedValues._tuple,
    ast.Dict: StackedValues._dict,
    ast.IfExp: StackedValues._ifexp,
    ast.BoolOp: StackedValues._boolop,
    ast.Compare: StackedValues._compare,
    ast.NamedExpr: StackedValues._namedexpr,
    ast.Lambda: StackedValues._lambda,
    ast.ListComp: StackedValues._comprehension,
    ast.SetComp: StackedValues._comprehension,
    ast.GeneratorExp: StackedValues._comprehension,
    ast.DictComp: StackedValues._comprehension,
    ast.Call: lambda values, module, node: values._call(module, node),
}
