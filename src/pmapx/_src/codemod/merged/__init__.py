"""Batches that are split over the devices, ``(n, b, ...)``, written as global ``(n * b, ...)``.

``splits`` recognizes the expressions that split a batch or merge it again, and ``nested_batching``
pipelines that batch by the number of devices and by the batch of each.
``batch_flow``, with ``applied_functions``, follows such batches to the maps that take them, and the
results of maps to where they are merged. ``merging`` chooses the groups of values that are merged:
every place of a group agrees, or it stays stacked. ``leftovers`` takes off what only split.
"""
