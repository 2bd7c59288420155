"""Batches that are split over the devices, ``(n, b, ...)``, written as global ``(n * b, ...)``.

``splits`` recognizes the expressions that split a batch or merge it again, ``device_counts`` the
numbers of devices that they split by, and ``nested_batching`` pipelines that batch by both.
``batch_flow``, with ``applied_functions``, follows such batches to the maps that take them, and the
results of maps to where they are merged. ``merging`` chooses the groups of values that are merged:
every place of a group agrees, or it stays stacked. ``leftovers`` takes off what only split.
"""
