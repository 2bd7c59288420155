"""``jax.pmap`` on ``shard_map`` where one map is inside another."""

import jax
import numpy


class InnerAxisMet(Exception):
    """Another pmap is inside: the name and size of the axis that the mesh needs for it."""


def over_mesh(body, shards, name, size, devices, specs, axes, out):
    """Maps body over one axis of the mesh that nested pmaps share."""

    def shard_map(mesh=None):
        return jax.shard_map(
            body,
            mesh=mesh,
            axis_names={name},
            in_specs=(specs(axes, name),),
            out_specs=specs(out, name),
            check_vma=False,  # body reduces its gradients itself, as under pmap
        )(shards)

    around = jax.sharding.get_abstract_mesh()
    depth = around.axis_types.count(jax.sharding.AxisType.Manual)
    name = name or f"devices {depth} {size}"
    if depth:
        if around.shape.get(name) != size:
            raise InnerAxisMet(name, size)
        return shard_map()
    inner = {}
    while True:
        shape = (size, *inner.values())
        used = numpy.array(devices[: numpy.prod(shape)]).reshape(shape)
        try:
            return shard_map(jax.sharding.Mesh(used, (name, *inner)))
        except InnerAxisMet as met:
            name_met, size_met = met.args
            if name_met in (name, *inner):
                raise ValueError(f"nested pmaps over the same axis {name_met!r}") from None
            inner[name_met] = size_met
