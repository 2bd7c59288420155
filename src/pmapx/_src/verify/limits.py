"""What a verification is bounded by, unless the user says otherwise."""

# Virtual devices, where there is nothing but a CPU.
DEVICES = 8
# Calls of each function that are recorded.
CALLS = 50
# Seconds after which a run is stopped.
TIMEOUT = 3600.0
# Above so many bytes an array's values are sampled.
WHOLE_UP_TO = 1 << 20
SAMPLES = 4096
BLOCKS = 256
# The values of one process take no more than this on disk; hashes go on.
MOST_BYTES = 256 << 20
