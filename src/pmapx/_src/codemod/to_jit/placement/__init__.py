"""Where the jit form places its arrays: what is changed in it once it is proven, and proven again.

``version`` is one version of the program's files. ``sharded_state`` shards parameters and optimizer
state over the data axis (``--fsdp``): ``step_state`` finds in a run which arguments and outputs of
a step are state, ``fsdp_function`` writes the function that shards them, ``fsdp_edits`` its uses.
``process_batches`` places the batches of multi-process programs.
"""
