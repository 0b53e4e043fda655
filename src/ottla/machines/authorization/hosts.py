"""The hosts that an ACL applies to: one address, a range of addresses, or all of them."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ottla.protocol.model.acl import WILDCARD

Address = IPv4Address | IPv6Address
HostPattern = Address | IPv4Network | IPv6Network | str | None
"""None means all hosts. Text that is not an address equals only itself."""


@lru_cache(maxsize=1024)
def parse_address(host: str) -> Address | str:
    """Parses a client's address, so that all spellings of one address are equal. An IPv4 address that reached the
    broker through an IPv6 socket is an IPv4 address."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def parse_host_pattern(host: str) -> HostPattern:
    """Parses the host of an ACL, which was checked when the ACL was created."""
    if host == WILDCARD:
        return None
    return ip_network(host) if "/" in host else parse_address(host)


def matches_host(pattern: HostPattern, address: Address | str) -> bool:
    """Returns whether the pattern includes the address."""
    if pattern is None:
        return True
    if isinstance(pattern, IPv4Network | IPv6Network):
        return not isinstance(address, str) and address.version == pattern.version and address in pattern
    return pattern == address
