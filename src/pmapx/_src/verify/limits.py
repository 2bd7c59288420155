"""The bounds of a verification; options of the user override the first two."""

# Calls of each function that are recorded.
CALLS = 50
# Seconds after which a run is stopped.
TIMEOUT = 3600.0
# The values of larger arrays are sampled.
ALL_VALUES_UP_TO = 1 << 20
SAMPLES = 4096
BLOCKS = 256
# The values of one process take no more than this on disk; hashes are always kept.
MOST_BYTES = 256 << 20
