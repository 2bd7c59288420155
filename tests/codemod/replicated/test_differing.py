"""Names under which a function that is not found may ask for the device's index."""

import pytest

pytest.importorskip("click", reason="needs pmapx[tools]")

from pmapx._src.analysis.project import Project
from pmapx._src.codemod.varying.differing import Differing

NOISE = """
import jax
def noise(x):
    return x + jax.lax.axis_index("i")
class Base:
    def draw(self, x):
        return noise(x)
"""


def names(tmp_path, **files):
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    paths = [str(tmp_path / f"{name}.py") for name in files]
    project = Project(paths, has_definitions=True)
    modules = [
        project.module(path, data=text.encode())
        for path, text in zip(paths, files.values(), strict=True)
    ]
    return Differing(modules)


@pytest.mark.parametrize(
    "text",
    [
        "from noises import noise\ndef f(x):\n    return noise(x)\n",
        "import noises\ndef f(x):\n    return noises.noise(x)\n",
        "def f(x, given):\n    return given.noise(x)\n",
        "from noises import noise\ndef g(x):\n    return noise(x)\ndef f(x):\n    return g(x)\n",
        "import noises\nclass f:\n    def __call__(self, x):\n        return noises.noise(x)\n",
        "import noises\nTABLE = [noises.noise]\ndef f(x):\n    return x\n",
        "import noises\nclass Model(noises.Base):\n    pass\nf, TABLE = 1, [Model]\n",
        "import jax\nfrom noises import noise\ndef f(x):\n    return jax.tree.map(noise, x)\n",
    ],
)
def test_a_function_that_leads_to_one_may_differ(tmp_path, text):
    assert names(tmp_path, noises=NOISE, other=text).may_be("f")


@pytest.mark.parametrize(
    "text",
    [
        # A function of a library has the name of one that differs.
        "import jax\ndef f(x):\n    return jax.numpy.noise(x)\n",
        # Another file has a function of that name.
        "def noise(x):\n    return x\ndef f(x):\n    return noise(x)\n",
        # An annotation is no use.
        "from noises import noise\ndef f(x: noise) -> noise:\n    return x\n",
        "import noises\nclass Model(noises.Base):\n    pass\ndef f(x: Model):\n    return x\n",
        # Inside another function of another file, it is not seen.
        "def f(x):\n    return x.loss(x)\n",
    ],
)
def test_what_only_has_such_a_name_in_it_does_not(tmp_path, text):
    inner = NOISE + "def outer(x):\n    def loss(x):\n        return noise(x)\n    return loss(x)\n"
    assert not names(tmp_path, noises=inner, other=text).may_be("f")


@pytest.mark.parametrize(
    ("use", "may_differ"),
    [
        ("add(x, axis_index)", False),
        ("x.mean(axis_index_groups=axis_index)", False),
        # It may be JAX's function that is passed.
        ("x + axis_index('i')", True),
    ],
)
def test_a_parameter_with_the_name_of_a_collective_is_data_unless_it_is_called(
    tmp_path, use, may_differ
):
    text = f"class Layer:\n    def f(self, x, axis_index):\n        return {use}\n"
    assert names(tmp_path, layers=text).may_be_method("f") is may_differ


LAMBDA = "lambda x: x + jax.lax.axis_index('i')"


@pytest.mark.parametrize(
    "text",
    [
        f"Optimizer(None, {LAMBDA})",
        f"Optimizer(None, update={LAMBDA})",
        f"optimizer.update = {LAMBDA}",
        f"noisy = {LAMBDA}\noptimizer = Optimizer(None, noisy)",
        f"noisy = {LAMBDA}\ndef step(x):\n    return noisy(x)\noptimizer = Optimizer(None, step)",
    ],
)
def test_a_lambda_that_asks_for_the_device_may_be_a_method_of_any_object(tmp_path, text):
    made = f"import jax\np_step = jax.pmap(abs)\n{text}\n"
    assert names(tmp_path, main=made).may_be_method("update")


@pytest.mark.parametrize(
    "text",
    [
        f"p_step = jax.pmap({LAMBDA}, 'i')",
        f"noisy = {LAMBDA}\np_step = jax.pmap(lambda x: jax.vmap(noisy)(x), 'i')",
    ],
)
def test_a_lambda_that_is_only_transformed_is_no_method(tmp_path, text):
    found = names(tmp_path, main=f"import jax\n{text}\n")
    assert not found.may_be_method("update")
    assert not found.may_be("other")
