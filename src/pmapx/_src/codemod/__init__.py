"""``pmapx migrate``: from pmap to shard_map, or to pmapx's own functions. Nothing read here is run.

Data goes through the packages in this order:

- ``migration`` puts the rest together; ``program`` has the files below some paths.
- ``decide`` answers what must be known of each use of pmap; ``evidence`` has what a run shows.
- ``forms`` has what a use can become, a module a form.
- ``write`` plans a form for each use and edits the file, by means of ``text``.
- ``current_names`` replaces the names that JAX removed, in every file.
- ``unused_names`` removes what lost its last use, ``hidden_uses`` has uses that no statement shows.
- ``comments`` renames pmap in the comments beside what was rewritten.
- ``report`` shows what was done; ``verified`` runs both versions before anything is written.

Three ways beside: ``replicated`` takes the leading device axis off state that is equal on all
devices, before the rest; ``to_jit`` writes batch-parallel steps as plain ``jax.jit``, after it;
``to_pmapx`` replaces functions of JAX and Flax by pmapx's.
"""
