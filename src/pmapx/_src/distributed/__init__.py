"""Multi-process programs: joining, waiting, failing and ending together.

- ``launcher``: ``pmapx run -n``: starts the processes on this machine and merges their output.
- ``addresses``: parses ``host:port``, IPv6 included.
- ``initialize``: ``initialize()`` and ``barrier()``.
- ``key_value_store``: the store of JAX's coordination service, which all processes share.
- ``liveness``: detects lost processes by broken connections.
- ``stall_report``: reports where each process waits when there is no progress.
- ``shutdown``: ends all processes soon after one fails.
- ``failure_record``: what a failing process reports to its peers and to the launcher.
"""
