"""Addresses as text, ``host:port``.

Law: an IPv6 host stands in brackets (RFC 3986, 3.2.2), because colons are part of it. Each address that is printed, stored or
parsed goes through these functions.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable


def address_text(host: str, port: int | str) -> str:
    """``127.0.0.1:3181``, ``bookie-1:3181`` or ``[::1]:3181``."""
    return f"{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    """The host as it stands in an address or a URL."""
    return f"[{host}]" if ":" in host else host


def split_address(address: str) -> tuple[str, int]:
    """Host, without brackets, and port. Raises ValueError for a text without a port, or with an IPv6 host without brackets."""
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{address!r}: an IPv6 host stands in brackets")
    if not host or not (port.isascii() and port.isdecimal()):
        raise ValueError(f"{address!r} is not host:port")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Is ``host`` reachable only from this machine?"""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def origin_of(host: str) -> str:
    """The address under which a peer counts: an IPv4 address, or the first 64 bits of an IPv6 address, which one host can fill
    alone."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def names_this_host(header: str, names: Iterable[str] = ()) -> bool:
    """Is the ``Host`` header of a request an IP address, which can't be rebound, or a name of this host? Else a page of another
    site may have led a browser here (DNS rebinding). ``names``: further names of this host."""
    name = header.strip().lower()
    if not name.endswith("]"):
        head, colon, port = name.rpartition(":")
        name = head if colon and port.isascii() and port.isdigit() else name
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name in {"localhost", socket.gethostname().lower(), *(one.lower() for one in names if one)}
    return True
