"""Functions that only move the leaves of a tree, and those that do more with them."""

import ast

import pytest

from pmapx._src.analysis.project import Project
from pmapx._src.codemod.varying.moving import Built, rearranged

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

SEEN, KEPT = {}, []
def added(tree, to=[]):
    to.append(tree)
    return {}

def same(tree):
    return tree

turned = jax.vmap(same, out_axes=1)

def summed(tree, depth=0):
    if depth == 2:
        return tree.sum()
    return {key: summed(part, depth + 1) for key, part in tree.items()}

def filled(tree):
    for key, part in tree.items():
        if isinstance(part, dict):
            filled(part)
    tree["more"] = tree["params"]
    return tree

def swapped(tree, other):
    return {key: swapped(other, part) for key, part in tree.items()}

def counted(tree):
    if isinstance(tree, dict):
        return {key: counted(part) for key, part in tree.items()}
    return 1

def copied(tree):
    if isinstance(tree, dict):
        return {key: copied(part) for key, part in tree.items()}
    return tree

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
    "def f(tree): return copied(tree.params)": {"params"},
    "def f(tree): return {**tree.params, **tree.stats}": {"params", "stats"},
    "def f(tree, is_new): return {'a': tree.a} if is_new else {'b': tree.b}": {"a", "b"},
    "def f(tree): return flax.core.freeze({'a': same(tree.params)})": {"params"},
    """def f(tree):
  first, second, third = {'x': tree.a}, {'x': tree.a}, {'x': tree.a}
  for key in range(9):
    third['x'] = second['x']
    second['x'] = first['x']
    first['x'] = tree.b
  return third['x']""": {"a", "b"},
    """def f(tree, is_first):
  first, second = {}, {}
  one = first if is_first else second
  second['a'] = tree.a
  return one""": {"a"},
    "def f(tree):\n  new = {}\n  all = new.items()\n  new['b'] = tree.b\n  return dict(all)": {"b"},
    """def f(tree):
  new, other = {'x': tree.a, 'y': tree.a}, {}
  for key, part in new.items():
    new['y'] = tree.b
    other[key] = part
  return other""": {"a", "b"},
    "def f(tree, is_new=not SEEN): return tree": {""},
    """def f(tree):
  inner = {}
  outer = dict(inner=inner) if False else {'inner': inner}
  copy = dict(outer)
  inner['a'] = tree.a
  return copy['inner']""": {"a"},
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
    "def f(tree): return added(tree)",
    "def f(tree): return turned(tree)",
    "def f(tree):\n  same = jax.vmap(same, out_axes=1)\n  return same(tree)",
    "def f(tree): return summed(tree)",
    "def f(tree): return filled(dict(tree))",
    "def f(tree, other): return swapped(tree, other)",
    "def f(tree): return counted(tree)",
    "def f(tree, *rest): return {'params': tree.params, 'rest': rest}",
    "def f(tree, **rest): return {'params': tree.params, **rest}",
    "def f(tree):\n  SEEN['last'] = tree\n  return tree",
    "def f(tree):\n  KEPT.append(tree)\n  return tree",
    "def f(tree):\n  new = {}\n  SEEN['last'] = new\n  new['a'] = tree.a\n  return new",
    "def f(tree, to):\n  to['a'] = tree.a\n  return tree",
    "def f(tree, to):\n  to += [tree.a]\n  return tree",
    "def f(tree, other):\n  new = {}\n  new.update(other)\n  new['a'] = tree.a\n  return new",
    "def f(tree, other):\n  new = {}\n  dict.update(new, other)\n  return {'a': new, 'b': tree.b}",
    "def f(tree):\n  new = {}\n  new.setdefault('a', 0)\n  new['b'] = tree.b\n  return new",
    "def f(tree):\n  new = {}\n  new['a'] = 0\n  new['b'] = tree.b\n  return new",
    "def f(tree):\n  class Kept:\n    SEEN['last'] = tree\n  return tree",
    "def f(tree):\n  a, b = tree\n  return a",
    "def f(tree):\n  return {'params': tree.params, 'size': copy.deepcopy(tree.stats).size}",
    """def f(tree, is_first):
  first, second = [tree.a], [tree.b]
  one = first if is_first else second
  first.append(tree.c)
  for part in one:
    return part""",
    "def f(tree):\n  new = dict(tree)\n  new['a']['b'] = tree.b\n  return new",
    "def f(tree): return {k: v for k, v in tree.items() if v}",
    "def f(tree): return {v: k for k, v in tree.items()}",
    "def f(tree): return {k: (v, 0) for k, v in tree.items()}",
    "def f(tree): return {f'{tree}': tree.params}",
    "def f(tree): return tree or {}",
    "def f(tree):\n  assert tree\n  return tree",
    "def f(tree):\n  while tree: return tree\n  return {}",
    "def f(tree):\n  del tree['a']\n  return tree",
    "def f(tree):\n  del tree.a\n  return tree",
    "def f(tree):\n  new = tree.a\n  new += 1\n  return tree",
    "def f(tree):\n  for k, v in tree.items(): tree = v\n  if not tree: return {}\n  return tree",
    "def f(tree):\n  if not tree: return {}\n  for k, v in tree.items(): pass\n  return tree",
    "def f(tree):\n  try: return tree.a\n  except KeyError: return 0",
    "def f(tree, *rest): return rest",
    "def f(tree): return 'a' in tree == tree",
    "def f(tree):\n  def put(): new['a'] = tree\n  new = SEEN\n  put()\n  return {}",
    "async def f(tree): return tree",
    "def f(tree): ...",
    "def f(tree):\n  raise NotImplementedError",
    "f = lambda tree: tree",
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
    assert MOVING[text] == result


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
    fields = dict(result.fields)
    assert fields == {"left": {"params"}, "right": {"params"}, "stats": {"stats"}}


def test_what_is_put_into_a_container_is_seen_by_all_of_its_names(tmp_path):
    text = """def f(tree):
    params = {}
    same = params
    built = Whole(params=params, stats=tree.stats)
    same["mean"] = tree.stats
    return built"""
    result = result_of(tmp_path, text)
    assert dict(result.fields)["params"] == {"stats"}
