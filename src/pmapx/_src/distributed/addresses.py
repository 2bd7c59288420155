"""``host:port`` as people write it, with brackets around an IPv6 host."""

from __future__ import annotations

import contextlib
import socket


def split(address: str) -> tuple[str, int] | None:
    """Returns host and port; None for what is no address.

    >>> split("[::1]:1234"), split("node-3:80"), split("::1")
    (('::1', 1234), ('node-3', 80), None)
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    return (host, int(port)) if host and port.isdigit() else None


def join(host: str, port: int) -> str:
    """Returns an address that ``split`` takes apart.

    >>> join("::1", 1234)
    '[::1]:1234'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def family_of(host: str, port: int) -> socket.AddressFamily:
    """Returns the address family in which a host is reached; IPv4 if it cannot be resolved."""
    with contextlib.suppress(OSError):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.AF_INET


def local_address_towards(host: str, port: int) -> str:
    """Returns this machine's address on the interface that leads to a host."""
    family = family_of(host, port)
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # Nothing is sent: this only chooses the interface.
        return str(probe.getsockname()[0])
    return "::1" if family == socket.AF_INET6 else "127.0.0.1"
