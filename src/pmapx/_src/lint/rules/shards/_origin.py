"""Where a value with a leading device axis comes from, in the words of a finding."""

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Stacked

HINT = (
    "pmapx.unreplicate reads this process's first shard without communication; "
    "by hand it is x.addressable_shards[0].data.squeeze(0)"
)


def origin(stacked: Stacked, module: Module) -> str:
    """Describes where a stacked value comes from, with its line."""
    where = f"line {stacked.place.line}"
    if stacked.place.path != module.path:
        where += f" of {stacked.place.path}"
    if stacked.from_map:
        return f"what {stacked.origin} returned on {where}"
    return f"what {stacked.origin} stacked on {where}"
