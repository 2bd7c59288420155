"""Functions that only move the leaves of a tree, and those that do more with them."""

import ast

import pytest

from pmapx._src.analysis.project import Project
from pmapx._src.analysis.rearranging import Built, rearranged

HEAD = """
import copy
import dataclasses
from collections import abc
import flax
import jax
import jax.numpy as jnp

step = jax.pmap(abs)

@dataclasses.dataclass
class Whole:
    params: dict
    stats: dict

@dataclasses.dataclass
class Halves:
    left: dict
    right: dict
    stats: dict

@dataclasses.dataclass
class Counted:
    params: dict
    step: int = 0

def flat(tree, above="", sep="/"):
    found = []
    for key, part in tree.items():
        path = above + sep + key if above else key
        if isinstance(part, abc.MutableMapping):
            found.extend(flat(part, path, sep=sep).items())
        else:
            found.append((path, part))
    if above and not tree:
        found.append((above, {}))
    return dict(found)

def halved(tree, is_left):
    left, right = {}, {}
    for key, part in flat(flax.core.unfreeze(tree)).items():
        if key not in is_left:
            raise ValueError(f"{key} is missing")
        if is_left[key]:
            left[key] = part
        else:
            right[key] = part
    return flax.traverse_util.unflatten_dict(left, sep="/"), flax.core.freeze(right)
"""
MOVING = {
    "def f(tree): return tree": {""},
    "def f(tree): return tree.params": {"params"},
    "def f(tree): return tree['params']['layer']": {"params"},
    "def f(tree): return flat(tree.params)": {"params"},
    "def f(tree): return halved(tree.params, {})[0]": None,
    "def f(tree): return {k: v for k, v in tree.items() if k != 'bias'}": {""},
    "def f(tree):\n  new = {}\n  new['a'] = tree.params\n  return new": {"params"},
    "def f(tree):\n  new = {}\n  other = new\n  other.update(tree.stats)\n  return new": {"stats"},
    "def f(tree): return {'a': tree.params, 'b': None}": {"params"},
    "def f(tree): return copy.deepcopy(tree)": {""},
    "def f(tree): return None": set(),
}
NOT_MOVING = [
    "def f(tree): return tree[0]",
    "def f(tree, i): return tree[i]",
    "def f(tree): return tree.params * 2",
    "def f(tree): return -tree.params",
    "def f(tree): return jnp.copy(tree)",
    "def f(tree): return tree.shape",
    "def f(tree): return tree.sum()",
    "def f(tree): return tree.params if tree.step else tree.params",
    "def f(tree):\n  if not tree: return {}\n  return tree",
    "def f(tree): return [part for part in tree]",
    "def f(tree):\n  for part in tree:\n    return part",
    "def f(tree): return {'params': tree.params, 'step': 0}",
    "def f(tree, other): return {'params': tree.params, 'other': other}",
    "def f(tree): return Counted(tree.params)",
    "def f(tree): return Counted(tree.params, 0)",
    "def f(tree):\n  print(tree)\n  return tree",
    "def f(tree):\n  tree['params'] = tree['stats']\n  return tree",
    "def f(tree):\n  part = tree.params\n  part.update(tree.stats)\n  return tree",
    "def f(tree):\n  global seen\n  seen = tree\n  return tree",
    "def f(tree):\n  jnp.seen = tree\n  return tree",
    "def f(tree):\n  yield tree",
    "@copy.copy\ndef f(tree): return tree",
    "def f(tree): return (lambda: tree)()",
    "def f(tree): return tree == tree",
    "def f(tree): return list(tree.items())",
    "def f(tree): return tree.items()",
    "def f(tree, *rest): return g(tree, *rest)",
    "def f(tree): return f(tree) + 1",
    "def f(tree): return tree | tree",
]


def result_of(folder, text):
    path = folder / "moving.py"
    path.write_text(f"{HEAD}\n{text}\n")
    module = Project([str(path)]).module(str(path))
    (function,) = module.env.names["f"]
    return rearranged(function, "tree")


@pytest.mark.parametrize("text", MOVING)
def test_the_fields_whose_leaves_are_moved_are_known(tmp_path, text):
    result = result_of(tmp_path, text)
    assert MOVING[text] == (None if result is None else {*result.fields})


@pytest.mark.parametrize("text", NOT_MOVING)
def test_a_function_that_may_compute_with_leaves_is_none(tmp_path, text):
    assert result_of(tmp_path, text) is None


def test_an_object_that_is_built_of_fields_is_known_by_these(tmp_path):
    text = """def f(tree, is_left):
    left, right = halved(tree.params, is_left)
    return Halves(left, right=right, stats=tree.stats)"""
    result = result_of(tmp_path, text)
    assert isinstance(result, Built)
    assert isinstance(result.cls, ast.ClassDef)
    fields = {name: {*held.fields} for name, held in result.fields}
    assert fields == {"left": {"params"}, "right": {"params"}, "stats": {"stats"}}


def test_what_is_put_into_a_container_is_seen_by_all_of_its_names(tmp_path):
    text = """def f(tree):
    params = {}
    same = params
    built = Whole(params=params, stats=tree.stats)
    same["mean"] = tree.stats
    return built"""
    result = result_of(tmp_path, text)
    assert dict(result.fields)["params"].fields == {"stats"}
