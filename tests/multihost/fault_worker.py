"""One of several processes in which something goes wrong, as the first argument says."""

import os
import signal
import sys
import time

import jax
import numpy as np

HERE = int(os.environ["PMAPX_TEST_PROCESS"])
PROCESSES = int(os.environ["PMAPX_TEST_PROCESSES"])
COORDINATOR = os.environ["PMAPX_TEST_COORDINATOR"]


def join(address=COORDINATOR, timeout=60):
    import pmapx

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    return pmapx.initialize(address, PROCESSES, HERE, timeout=timeout, heartbeat_timeout=10)


def steps(count, on_step=lambda k: None):
    import pmapx

    step = pmapx.pmap(lambda x: x + jax.lax.psum(x, "i"), "i")
    x = np.ones((jax.local_device_count(), 3), np.float32)
    for k in range(count):
        on_step(k)
        x = jax.block_until_ready(step(x) * 0 + 1)
    return x


LOST = int(os.environ.get("PMAPX_TEST_LOST", PROCESSES - 1))


def die():
    if HERE == LOST:
        os.kill(os.getpid(), signal.SIGKILL)


def killed_before():
    join()
    die()
    steps(1)


def killed_during():
    join()
    steps(50, lambda k: die() if k == 20 else None)


def killed_after():
    join()
    steps(3)
    die()
    time.sleep(60)


def fault_of_its_own(k):
    if HERE == LOST and k == 3:
        raise RuntimeError("a fault of its own")


def raises():
    join()
    steps(10**6, fault_of_its_own)


def raises_elsewhere():
    """Process LOST fails while the others wait for it at JAX's exit barrier."""
    join()
    steps(3)
    if HERE == LOST:
        time.sleep(2)
        raise RuntimeError("a fault of its own")


def raises_in_a_thread():
    import threading

    join()
    failing = threading.Thread(target=lambda: 1 / 0)
    failing.start()
    failing.join()
    steps(3)


def excepthook_by_hand():
    join()
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        sys.excepthook(*sys.exc_info())
    steps(3)


def stopped():
    join()
    steps(10**6, lambda k: os.kill(os.getpid(), signal.SIGSTOP) if (HERE, k) == (LOST, 3) else None)


def ends():
    join()
    steps(3)
    time.sleep(0 if HERE == LOST else 2)


def joins_over_ipv6():
    join(COORDINATOR.replace("127.0.0.1", "[::1]"))
    steps(3)
    from pmapx._src.distributed import liveness

    address = liveness.key_value_store.get(liveness.ADDRESS)
    print("lifeline", address)


def never_joins():
    if HERE == PROCESSES - 1:
        time.sleep(20)
    else:
        join(timeout=8)


def wrong_address():
    join("127.0.0.1:9" if HERE else COORDINATOR, timeout=8)


def busy_address():
    import socket

    if HERE == 0:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            join(f"127.0.0.1:{taken.getsockname()[1]}", timeout=8)
    else:
        time.sleep(3)


def unequal_devices():
    import pmapx

    join()
    x = np.ones(jax.local_device_count(), np.float32)
    total = pmapx.pmap(lambda x: jax.lax.psum(x, "i"), "i")(x)
    assert float(total[0]) == jax.device_count(), total
    assert total.shape == x.shape
    index = pmapx.pmap(lambda x: jax.lax.axis_index("i"), "i")(x)
    print("rows", np.asarray(index).tolist())
    if HERE == 0:
        try:
            pmapx.pmap(lambda x: x)(np.ones(jax.local_device_count() - 1))
        except pmapx.PmapxError as error:
            print("refused", error.code)
    if HERE == 2:
        others = [device for device in jax.devices() if device.process_index != HERE]
        try:
            pmapx.pmap(lambda x: x, devices=others)(np.ones(2))
        except pmapx.PmapxError as error:
            print("refused", error.code)


def donated_memory():
    import resource
    import warnings

    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import pmapx

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    join()
    warnings.simplefilter("ignore", pmapx.PmapxWarning)
    step = pmapx.pmap(lambda state: [x + 1 for x in state], donate_argnums=0)
    reverse = NamedSharding(Mesh(np.array(jax.local_devices()[::-1]), ("r",)), PartitionSpec("r"))
    shape = (jax.local_device_count(), 2, 1 << 20)  # 16 MiB a leaf on two devices.
    jax.block_until_ready(step([jax.device_put(np.zeros((2, 2, 8), np.float32), reverse)] * 1))
    state = [jax.device_put(np.full(shape, k, np.float32), reverse) for k in range(16)]
    jax.block_until_ready(state)
    before = peak()
    out = jax.block_until_ready(step(state))
    grown = peak() - before
    assert all(x.is_deleted() for x in state)
    assert [float(x[1, 0, 0]) for x in out] == [k + 1.0 for k in range(16)]
    print("state 256 MiB, grown", grown, "MiB")
    assert grown < 192  # Twice the whole would be 256.


def soak():
    import resource

    import pmapx

    join()
    step = pmapx.pmap(
        lambda s, x: s + jax.lax.pmean(x.sum(), "i"), "i", donate_argnums=0, in_axes=(0, 0)
    )
    own = np.full((jax.local_device_count(), 64), HERE, np.float32)
    state = np.zeros((jax.local_device_count(), 64), np.float32)
    early = 0
    for k in range(3000):
        state = step(state, own)
        if k % 100 == 0:
            jax.block_until_ready(state)
        if k == 600:
            early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - early
    rows = np.asarray(state)
    assert (rows == rows[0]).all()
    print("final", rows[0, 0], "grown", grown, "KiB")
    assert grown < 20_000


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done", flush=True)
