"""From pmap to shard_map: finding every use, saying what is wrong with it, rewriting it.

Code is read here and never run or imported. ``sources`` finds and reads files; ``project`` knows
which module a name leads to; ``interpret``, ``evaluate``, ``calls`` and ``known`` follow values
through a module and write down ``facts``; each file in ``rules`` turns facts into findings;
``check`` puts these together and ``formats`` prints them. ``sifting`` sets files apart that can
have findings; ``excerpts`` leaves out what cannot matter in one; ``division``, ``parallel`` and
``share`` have shares of the files read by several processes.

``sites`` finds the uses of pmap; ``plans`` says what becomes of each; ``changer``, ``spelling`` and
``imports`` write it with LibCST; ``emitted`` has the functions that a file is given; ``rewrite``,
``migration`` and ``writing`` put these together for a file, for many, and on disk.

``replicated`` takes the axis of devices off state that is equal on all of them; ``to_pmapx`` and
``moved_imports`` put pmapx's functions in the place of JAX's; ``spans`` changes parts of a text.
"""
