"""Flax's msgpack files without Flax; tests/peers has them made and read by Flax."""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from pmapx._src.checkpoint import flax_msgpack
from pmapx._src.checkpoint.base import CheckpointError
from pmapx._src.checkpoint.conversion import stack, unstack

N = 4


@pytest.fixture
def paths(tmp_path):
    return tuple(str(tmp_path / name) for name in ("old", "new", "back"))


def test_without_msgpack_the_error_says_what_to_install(paths, monkeypatch):
    old, new, _ = paths
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with open(old, "wb") as file:
        file.write(b"\x81\xa1a\x01")
    with pytest.raises(CheckpointError, match="is msgpack: pip install msgpack to read it"):
        unstack(old, new)


@pytest.fixture
def saved(paths):
    """Writes a tree as Flax does, or reads one."""
    msgpack = pytest.importorskip("msgpack", reason="needs msgpack")

    def encode(leaf):
        code = 3 if isinstance(leaf, np.generic) else 1
        data = (leaf.shape, leaf.dtype.name, leaf.tobytes())
        return msgpack.ExtType(code, msgpack.packb(data, use_bin_type=True))

    def write(tree):
        with open(paths[0], "wb") as file:
            file.write(msgpack.packb(tree, default=encode, strict_types=True))
        return paths

    return write


def read(path):
    return flax_msgpack.FlaxMsgpack(path)._tree


def copies(x):
    return np.broadcast_to(x, (N, *np.shape(x))).copy()


def test_types_scalars_and_structure_are_kept(saved):
    half = copies(np.arange(3).astype(ml_dtypes.bfloat16))
    tree = {
        "params": {"kernel": copies(np.ones((2, 3), np.float32)), "bias": half},
        "opt_state": {"0": {"count": copies(np.int32(5))}, "1": {}},
        "rate": np.float16(0.5),
        "step": 3,
        "name": "run",
        "raw": b"\x00\x01",
        "list": [copies(1.0), None, True],
    }
    old, new, back = saved(tree)
    done = unstack(old, new)
    assert done.kind == "Flax msgpack"
    assert "opt_state['0']['count']" in done.changed
    found = read(new)
    assert list(found) == list(tree)
    assert found["params"]["kernel"].shape == (2, 3)
    assert found["params"]["bias"].dtype == ml_dtypes.bfloat16
    assert found["params"]["bias"].tobytes() == half[0].tobytes()
    assert isinstance(found["opt_state"]["0"]["count"], np.ndarray)
    assert isinstance(found["rate"], np.float16)
    assert [found[name] for name in ("step", "name", "raw")] == [3, "run", b"\x00\x01"]
    assert found["list"][1:] == [None, True]
    stack(new, back, n=N)
    with open(old, "rb") as first, open(back, "rb") as second:
        assert first.read() == second.read()


def test_arrays_above_the_limit_are_split_and_joined(saved, monkeypatch):
    monkeypatch.setattr(flax_msgpack, "_CHUNK_BYTES", 100)
    old, new, back = saved({"w": np.arange(30.0), "b": np.ones(2)})
    stack(old, new, n=N)
    assert read(new)["w"].shape == (N, 30)
    unstack(new, back)
    np.testing.assert_array_equal(read(back)["w"], np.arange(30.0))


def test_what_only_looks_like_msgpack_is_one_line(saved):
    old, new, _ = saved({"w": copies(1.0)})
    for content in (
        b"\x89HDF\r\n\x1a\n",
        Path(old).read_bytes()[:-4],
        b"\x81\xa1a\xc7\x01\x01\x00",
    ):
        with open(old, "wb") as file:
            file.write(content)
        with pytest.raises(CheckpointError, match="is not Flax's msgpack, or is damaged"):
            unstack(old, new)
