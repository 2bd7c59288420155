"""Network addresses: ``host:port``, with brackets around an IPv6 host."""

import contextlib
import socket


def split(address: str) -> tuple[str, int] | None:
    """Returns host and port, or None if it is not an address.

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
    """Returns ``host:port``, the inverse of ``split``.

    >>> join("::1", 1234)
    '[::1]:1234'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def family_of(host: str, port: int) -> socket.AddressFamily:
    """Returns the address family of a host; IPv4 if it cannot be resolved."""
    with contextlib.suppress(OSError):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.AF_INET


def local_address_towards(host: str, port: int) -> str:
    """Returns the address of this machine on the interface that routes to a host."""
    family = family_of(host, port)
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # Sends nothing; only selects the interface.
        return str(probe.getsockname()[0])
    return "::1" if family == socket.AF_INET6 else "127.0.0.1"
