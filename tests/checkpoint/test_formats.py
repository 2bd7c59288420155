"""Which format a checkpoint is, from its content, and what each format keeps."""

import collections
import dataclasses
import gzip
import pickle
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pmapx._src.checkpoint.base import CheckpointError, LeavesDifferError
from pmapx._src.checkpoint.conversion import stack, unstack

N = 4


def copies(x, n=N):
    return np.broadcast_to(x, (n, *np.shape(x))).copy()


class Moments(NamedTuple):
    mu: Any
    nu: Any


@dataclasses.dataclass
class State:
    params: Any
    step: int


@jax.tree_util.register_pytree_with_keys_class
class Registered:
    def __init__(self, weights, name):
        self.weights, self.name = weights, name

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.GetAttrKey("weights"), self.weights)], self.name

    @classmethod
    def tree_unflatten(cls, name, children):
        return cls(*children, name)


@jax.tree_util.register_pytree_node_class
class Frozen(dict):
    def __setitem__(self, key, value):
        raise TypeError("frozen")

    def tree_flatten(self):
        return tuple(self.values()), tuple(self)

    @classmethod
    def tree_unflatten(cls, keys, children):
        return cls(zip(keys, children, strict=True))

    def __reduce__(self):
        return Frozen, (dict(self),)


class Titled(dict):
    title = "untitled"


class Opaque:
    def __init__(self, hidden):
        self.hidden = hidden


@pytest.fixture
def paths(tmp_path):
    """An old and a new path, by the name of the file."""
    return lambda name="checkpoint": (str(tmp_path / f"old_{name}"), str(tmp_path / f"new_{name}"))


def unpickled(path):
    with open(path, "rb") as file:
        return pickle.load(file)


def pickled(path, *trees, protocol=None):
    with open(path, "wb") as file:
        for tree in trees:
            pickle.dump(tree, file, protocol)


def test_npz_keeps_types_order_and_compression(paths):
    old, new = paths("a.npz")
    arrays = {
        "params/dense": copies(np.arange(6.0).reshape(2, 3)),
        "half": copies(np.ones(3, ml_dtypes.bfloat16)),  # Raw bytes to numpy.
        "name": copies(np.array("adam")),
        "step": np.int32(7),
    }
    np.savez_compressed(old, **arrays)
    done = unstack(old, new)
    found = np.load(new)
    assert found.files == list(arrays)
    for name in ("params/dense", "half", "name"):
        before = np.load(old)[name]
        assert found[name].dtype == before.dtype
        assert found[name].tobytes() == before[0].tobytes()
    assert found["step"] == 7
    assert done.left == (("step", "int32[]"),)
    with zipfile.ZipFile(new) as archive:
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_DEFLATED}


def test_npz_holds_one_array_in_memory_at_a_time(paths, monkeypatch):
    from pmapx._src.checkpoint import npz_file

    old, new = paths("a.npz")
    np.savez(old, a=copies(np.ones(2)), b=copies(np.ones(3)))
    events = []
    read, write = npz_file.NpzFile._read, np.lib.format.write_array
    monkeypatch.setattr(
        npz_file.NpzFile, "_read", lambda self, name: events.append(name) or read(self, name)
    )
    monkeypatch.setattr(
        np.lib.format, "write_array", lambda *a, **k: events.append("write") or write(*a, **k)
    )
    unstack(old, new)
    assert events == ["a.npy", "b.npy", "a.npy", "write", "b.npy", "write"]


def test_npz_with_python_objects_is_refused_without_loading_them(paths):
    old, new = paths("a.npz")
    np.savez(old, params=np.array({"w": 1}, dtype=object), allow_pickle=True)
    with pytest.raises(CheckpointError, match=r"params in .* is an array of Python objects"):
        unstack(old, new)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_of_any_protocol_is_detected_and_keeps_it(paths, protocol):
    old, new = paths()
    pickled(old, {"w": copies(np.ones(3))}, protocol=protocol)
    with pytest.raises(
        CheckpointError, match="can run arbitrary code when loaded: add --trust-pickle"
    ):
        unstack(old, new)
    unstack(old, new, trust_pickle=True)
    np.testing.assert_array_equal(unpickled(new)["w"], np.ones(3))
    if protocol >= 2:
        with open(new, "rb") as file:
            assert file.read(2)[1] == protocol


def test_a_pickle_keeps_its_structure_and_values_that_are_not_arrays(paths):
    old, new = paths()
    ordered = collections.OrderedDict([("z", copies(1.0)), ("a", copies(2.0))])
    tree = {
        "state": State({"w": copies(np.ones((2, 3)))}, step=12),
        "moments": (Moments(copies(0.5), [copies(1), None]),),
        "registered": Registered(copies(np.ones(2)), "adam"),
        "ordered": ordered,
        "counts": collections.defaultdict(int, {3: copies(3)}),
        "scalar": np.float32(0.1),
        "text": "run 7",
        "frozen": {1, 2},
    }
    pickled(old, tree)
    done = unstack(old, new, trust_pickle=True)
    found = unpickled(new)
    assert found["state"].params["w"].shape == (2, 3)
    assert found["state"].step == 12
    assert type(found["moments"][0]) is Moments
    assert found["moments"][0].mu.shape == ()
    assert found["moments"][0].nu[1] is None
    assert type(found["registered"]) is Registered
    assert (found["registered"].weights.shape, found["registered"].name) == ((2,), "adam")
    assert list(found["ordered"]) == ["z", "a"]
    assert found["counts"].default_factory is int
    assert found["scalar"].dtype == np.float32
    assert found["text"] == "run 7"
    assert set(done.changed) == {
        "state.params['w']",
        "moments[0].mu",
        "moments[0].nu[0]",
        "registered.weights",
        "ordered['z']",
        "ordered['a']",
        "counts[3]",
    }
    assert done.left == (("state.step", "int"), ("scalar", "float32"), ("frozen", "set"))


def test_a_pickle_keeps_jax_arrays_types_of_64_bits_and_typed_keys(paths):
    old, new = paths()
    with jax.enable_x64(True):
        wide = jnp.ones((N, 2), jnp.float64)
    weak = jnp.broadcast_to(jnp.asarray(3), (N,))
    key = jnp.broadcast_to(jax.random.key(1), (N,))
    pickled(old, {"wide": wide, "weak": weak, "key": key, "half": jnp.ones((N, 2), jnp.bfloat16)})
    unstack(old, new, trust_pickle=True)
    with jax.enable_x64(True):
        found = unpickled(new)
    assert all(isinstance(leaf, jax.Array) for leaf in found.values())
    assert found["wide"].dtype == jnp.float64
    assert found["half"].dtype == jnp.bfloat16
    assert found["weak"].weak_type
    assert found["key"].dtype == key.dtype
    assert jnp.array_equal(jax.random.key_data(found["key"]), jax.random.key_data(key[0]))

    back = new + "_back"
    stack(new, back, n=N, trust_pickle=True)
    with jax.enable_x64(True):
        again = unpickled(back)
    assert {name: leaf.shape for name, leaf in again.items()} == {
        "wide": (N, 2),
        "weak": (N,),
        "key": (N,),
        "half": (N, 2),
    }
    assert again["key"].dtype == key.dtype


def test_subclasses_of_dict_are_walked_as_they_are_registered_or_as_dicts(paths):
    old, new = paths()
    titled = Titled({"b": copies(1.0), 1: copies(2.0)})
    titled.title = "run 7"
    pickled(old, [Frozen({"w": copies(np.ones(2))}), titled])
    assert unstack(old, new, trust_pickle=True).changed == ("[0][0]", "[1]['b']", "[1][1]")
    frozen, found = unpickled(new)
    assert (type(frozen), frozen["w"].shape) == (Frozen, (2,))
    assert (type(found), found.title, list(found)) == (Titled, "run 7", ["b", 1])


def test_an_array_that_is_shared_stays_shared(paths):
    old, new = paths()
    array = copies(np.ones(3))
    pickled(old, {"params": array, "ema": array})
    unstack(old, new, trust_pickle=True)
    found = unpickled(new)
    assert found["params"] is found["ema"]
    unstack(old, new, trust_pickle=True, force=True, keep=["ema"])
    found = unpickled(new)
    assert (found["params"].shape, found["ema"].shape) == ((3,), (N, 3))


def test_all_objects_of_a_pickle_are_converted(paths):
    old, new = paths()
    pickled(old, {"w": copies(1.0)}, [copies(2.0)])
    assert unstack(old, new, trust_pickle=True).changed == ("[0]['w']", "[1][0]")
    with open(new, "rb") as file:
        assert pickle.load(file)["w"] == 1.0
        assert pickle.load(file)[0] == 2.0


def test_an_object_that_hides_arrays_is_named_and_can_be_kept(paths):
    old, new = paths()
    pickled(old, {"w": copies(1.0), "extra": Opaque([copies(2.0)]), "plain": Opaque("text")})
    with pytest.raises(LeavesDifferError, match=r"extra \(.*Opaque\)") as raised:
        unstack(old, new, trust_pickle=True)
    assert len(raised.value.leaves) == 1
    done = unstack(old, new, trust_pickle=True, keep=["extra"])
    assert done.kept == ("extra",)
    assert done.left == (("plain", "Opaque"),)
    assert unpickled(new)["extra"].hidden[0].shape == (N,)


@pytest.mark.parametrize(
    "hiding", [np.ma.masked_array(np.ones(N)), np.array([np.ones(N), None], dtype=object)]
)
def test_arrays_in_other_kinds_of_arrays_are_hidden_too(paths, hiding):
    old, new = paths()
    pickled(old, {"w": copies(1.0), "extra": hiding})
    with pytest.raises(LeavesDifferError, match="extra"):
        unstack(old, new, trust_pickle=True)


def test_an_object_that_holds_itself_is_refused(paths):
    old, new = paths()
    tree = {"w": copies(1.0)}
    tree["self"] = tree
    pickled(old, tree)
    with pytest.raises(CheckpointError, match="self refers to an object that contains it"):
        unstack(old, new, trust_pickle=True)


def test_what_only_cloudpickle_pickles_stays(paths):
    cloudpickle = pytest.importorskip("cloudpickle")
    old, new = paths()
    with open(old, "wb") as file:
        cloudpickle.dump({"w": copies(1.0), "apply": lambda x: x + 1}, file)
    unstack(old, new, trust_pickle=True)
    assert unpickled(new)["apply"](1) == 2


def test_a_pickle_whose_module_is_missing_says_where_to_run(paths):
    old, new = paths()
    with open(old, "wb") as file:
        file.write(b"\x80\x04cno_such_module\nState\n.")
    with pytest.raises(CheckpointError, match="needs the module 'no_such_module': run pmapx in"):
        unstack(old, new, trust_pickle=True)


def test_a_class_of_the_main_script_is_explained(paths):
    old, new = paths()
    with open(old, "wb") as file:
        file.write(b"\x80\x04c__main__\nNoSuchState\n.")
    with pytest.raises(CheckpointError, match="in the script that saved it: take x"):
        unstack(old, new, trust_pickle=True)


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"hello, world.", "unknown format"),
        (b"I am a text that ends like a pickle.", "unknown format"),
        (gzip.compress(b"anything", mtime=0), "compressed with gzip: decompress it first"),
        (b"\x7fELF\x02\x01\x01", "unknown format"),
        (b"PK\x03\x04 cut short", "unknown format"),
    ],
)
def test_a_file_of_another_format_is_one_line(paths, content, said, trust):
    old, new = paths("a.npz")
    with open(old, "wb") as file:
        file.write(content)
    with pytest.raises(CheckpointError, match=said) as raised:
        unstack(old, new, trust_pickle=trust)
    assert "\n" not in str(raised.value)


def test_other_zip_files_and_folders_are_unknown_formats(paths, tmp_path):
    old, new = paths()
    with zipfile.ZipFile(old, "w") as archive:
        archive.writestr("data.pkl", b"")
    with pytest.raises(CheckpointError, match="unknown format"):
        unstack(old, new)
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match="without an Orbax checkpoint"):
        unstack(str(tmp_path / "folder"), new)


def test_damaged_files_are_one_line(paths):
    old, new = paths()
    np.savez(old, w=copies(np.ones(100)))
    content = bytearray(Path(old + ".npz").read_bytes())
    content[300] ^= 1
    with open(old, "wb") as file:
        file.write(content)
    with pytest.raises(CheckpointError, match="is damaged"):
        unstack(old, new)
    pickled(old, {"w": copies(np.ones(100))})
    content = Path(old).read_bytes()[:-50]
    with open(old, "wb") as file:
        file.write(content)
    with pytest.raises(CheckpointError, match="cannot load"):
        unstack(old, new, trust_pickle=True)


def test_an_array_alone_is_a_checkpoint(paths):
    old, new = paths()
    pickled(old, copies(np.ones(3)))
    assert unstack(old, new, trust_pickle=True).changed == ("array",)
    assert unpickled(new).shape == (3,)
