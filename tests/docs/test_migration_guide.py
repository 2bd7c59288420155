"""The migration guide covers every section of JAX's guide to the new pmap, in its last two states.

Its pages are run by test_pages.py; here is what stands where.
"""

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
NEW_PMAP, SHARD_MAP = "migration.md", "shard-map.md"

# Section of JAX's guide: our page and heading, and words that its text must not lose.
SECTIONS = {
    "What's going on?": (NEW_PMAP, "The new jax.pmap", "`jax.jit` of `jax.shard_map`"),
    "Help! Fix me now!": (NEW_PMAP, "Make it run now", "jax_pmap_shmap_merge"),
    "How can I fix my code for the new jax.pmap?": (NEW_PMAP, "Errors", ""),
    "Received incompatible devices": (NEW_PMAP, "Received incompatible devices", "device_put"),
    "The context mesh should match the mesh passed to shard_map": (
        NEW_PMAP,
        "The context mesh should match the mesh passed to shard_map",
        "jax.smap",
    ),
    "CopyArrays ... same size": (
        NEW_PMAP,
        "CopyArrays only supports destination device list of the same size",
        "addressable_shards",
    ),
    "Use static indices": (
        NEW_PMAP,
        "CopyArrays only supports destination device list of the same size",
        "use `range`",
    ),
    "Using jax.stages.Lowered": (
        NEW_PMAP,
        "A lowered pmap in several processes",
        "host_local_array_to_global_array",
    ),
    "Core halted unexpectedly": (NEW_PMAP, "Core halted unexpectedly", "sync_global_devices"),
    "Performance implications": (NEW_PMAP, "What became slow", ""),
    "int indexing into sharded arrays": (NEW_PMAP, "x[0]", "unreplicate"),
    "Option 1: Prevent unintended sharding": (NEW_PMAP, "x[0]", "out_axes=None"),
    "Option 2: Access local data directly": (NEW_PMAP, "x[0]", "addressable_shards[0].data"),
    "Host local array to global array round-trip conversion": (
        NEW_PMAP,
        "Host-local to global arrays and back",
        "It is not",
    ),
    "Transforming jax.pmap e.g., jax.jit": (NEW_PMAP, "pmap inside jit", "outermost"),
    "Buffer donation with donate_argnums": (NEW_PMAP, "Donation", "briefly holds two copies"),
    "Drop-in replacements for device_put_sharded and device_put_replicated": (
        NEW_PMAP,
        "jax.device_put_replicated, jax.device_put_sharded",
        "np.stack",
    ),
    "Migrating to jax.shard_map": (SHARD_MAP, "From pmap to shard_map", "three things"),
    "Update your mapped function": (SHARD_MAP, "The function", "squeeze(0)"),
    "Broadcasting vs. Stacking": (SHARD_MAP, "The function", "in_axes=None"),
    "Rewriting pmap to jit(shard_map)": (SHARD_MAP, "The call", "out_specs"),
    "Basic Map": (SHARD_MAP, "A simple map", "shard_map"),
    "Unmapped axes and replicated outputs": (
        SHARD_MAP,
        "Unmapped arguments, replicated results",
        "out_specs=P()",
    ),
    "Multiple axes of parallelism": (SHARD_MAP, "Two axes", 'P("i", "j")'),
    "Buffer donation": (SHARD_MAP, "Donation", "donate_argnums"),
    "Collectives": (SHARD_MAP, "Collectives", "out_specs"),
    "Input data preparation": (SHARD_MAP, "What goes in", ""),
    "Host-local vs. Global Views": (SHARD_MAP, "Host-local and global arrays", "global"),
    "Addressability and Topology": (
        SHARD_MAP,
        "Host-local and global arrays",
        "is_fully_addressable",
    ),
    "Shardings": (SHARD_MAP, "Shardings", "SingleDeviceSharding"),
    'The Migration Pattern: "Stitching"': (
        SHARD_MAP,
        "Stitching",
        "make_array_from_process_local_data",
    ),
    "Output consumption": (SHARD_MAP, "What comes out", "One array"),
    "Global View": (SHARD_MAP, "What comes out", "jnp.mean(out)"),
    "The unreplicate Anti-pattern": (SHARD_MAP, "What comes out", "Do not stack"),
    "Host access": (SHARD_MAP, "What comes out", "jax.device_get"),
    "Related documentation": (SHARD_MAP, "Read on", "Explicit sharding"),
    "Appendix A: What should x[0] return?": (NEW_PMAP, "What x[0] is", "communication"),
    "Appendix A: The common performance pitfall": (
        NEW_PMAP,
        "How a program gets there",
        "8 copies",
    ),
    "Appendix A: The consequence": (NEW_PMAP, "How a program gets there", "_gather"),
    "Appendix A: Why was old jax.pmap fast?": (
        NEW_PMAP,
        "Why the original was fast",
        "PmapSharding",
    ),
    "Appendix A: A note on the multi-host setting": (NEW_PMAP, "In several processes", "hangs"),
}

# What that guide gets wrong on today's JAX, and where ours says what is right.
CORRECTED = {
    "H1: the gradient is N times too large": (SHARD_MAP, "Three traps", "check_vma=False"),
    "H2: make_mesh is Explicit": (SHARD_MAP, "Three traps", "AxisType.Auto"),
    "H3: a mesh of processes": (SHARD_MAP, "Three traps", "jax.process_count()"),
    "H3: the reshape": (SHARD_MAP, "Stitching", "make_array_from_process_local_data"),
    "H4: the flag is gone": (NEW_PMAP, "Make it run now", "JAX 0.10 removed it"),
    "H5: the round trip": (NEW_PMAP, "Host-local to global arrays and back", "It is not"),
}


def under_headings(page):
    """The text under each heading of a page, up to the next one of any level."""
    outside_code = re.compile(r"^```.*?^```$|^#+ ([^\n]+)$", re.MULTILINE | re.DOTALL)
    text = (GUIDE / page).read_text("utf-8")
    heads = [found for found in outside_code.finditer(text) if found.group(1)]
    ends = [*(head.start() for head in heads[1:]), len(text)]
    return {head.group(1): text[head.end() : end] for head, end in zip(heads, ends, strict=True)}


@pytest.mark.parametrize("section", [*SECTIONS, *CORRECTED])
def test_a_section_of_jaxs_guide_has_its_place_in_ours(section):
    page, heading, words = (SECTIONS | CORRECTED)[section]
    assert words in " ".join(under_headings(page)[heading].split())


def test_what_is_wrong_in_jaxs_guide_is_run_as_it_is_right():
    # The pages are run by test_pages.py; these lines are what it checks there.
    traps = under_headings(SHARD_MAP)["Three traps"]
    assert "assert np.allclose(checked, 8 * true_gradient" in traps
    assert "assert np.allclose(unchecked, true_gradient" in traps
    assert "assert joined.shape ==" in under_headings(SHARD_MAP)["Stitching"]
