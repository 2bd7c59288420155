"""Functions called from many threads that start together."""

import threading


def at_once(read, count=16):
    """What `read(k)` returned in each of `count` threads."""
    seen = [None] * count
    together = threading.Barrier(count)

    def run(k):
        together.wait()
        seen[k] = read(k)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    return seen
