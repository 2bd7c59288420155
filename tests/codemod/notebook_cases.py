"""A notebook with pmap in it, in the ways in which notebooks are written."""

import json

from pmap_programs import HEAD

MARKDOWN = {"cell_type": "markdown", "metadata": {}, "source": ["# Rows é ☃\n", "and `jax.pmap`"]}
CELLS = [
    "!pip install jax\n%matplotlib inline\n" + HEAD + "from jax import pmap",
    "#@title Train { run: \"auto\" }\nstep = pmap(train_step, axis_name='batch')  # é\n"
    "%time state, metrics = step(STATE, ROWS)\nstate, metrics = step(STATE, ROWS)\n",
    "%%time\n@functools.partial(jax.pmap, axis_name='i')\ndef f(x):\n"
    "    return jax.lax.psum(x, 'i')\n\ny = f(ROWS)\nprint(float(y[0].sum()))",
    "this is no Python",
    "RESULT = state, metrics, y, jax.device_get(jax.tree.map(lambda x: x[0], state))\nstep?\n",
]


def notebook(**manner):
    """The notebook's bytes; the second cell's source is one string, as some tools write it."""
    code = [
        {
            "cell_type": "code",
            "execution_count": number,
            "metadata": {"id": f"c{number}"},
            "outputs": [{"output_type": "stream", "text": ["jax.pmap\u2028\n"]}],
            "source": source if number == 1 else source.splitlines(keepends=True),
        }
        for number, source in enumerate(CELLS)
    ]
    whole = {
        "nbformat": 4,
        "nbformat_minor": 0,
        "cells": [MARKDOWN, *code],
        "metadata": {"kernelspec": {"name": "python3", "score": 1e5}},
    }
    given = {"indent": 1, "ensure_ascii": False, **manner}
    return (json.dumps(whole, **given) + "\n").encode()


def code_of(data):
    """The Python of all cells as one program."""
    lines = [
        line
        for cell in json.loads(data)["cells"]
        if cell["cell_type"] == "code" and "no Python" not in "".join(cell["source"])
        for line in "".join(cell["source"]).split("\n")
    ]
    return "\n".join(line for line in lines if not line.startswith(("!", "%")) and "?" not in line)
