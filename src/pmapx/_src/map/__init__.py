"""``pmap``: the life of a call, from the arguments to the compiled program."""
