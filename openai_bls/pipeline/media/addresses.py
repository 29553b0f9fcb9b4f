"""Addresses that images may be fetched from: those of the public internet, unless the operator named the host."""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_V4 = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        # Shared by carriers for NAT.
        "100.64.0.0/10",
        "127.0.0.0/8",
        # Link-local: metadata services of clouds.
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        # 6to4 relays.
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        # Multicast and what is reserved, broadcast too.
        "224.0.0.0/3",
    )
]
# All else in IPv6 is no global unicast: ::1, IPv4-mapped and -compatible, NAT64 (64:ff9b::), unique local, link-local.
_V6_GLOBAL = ipaddress.ip_network("2000::/3")
_V6 = [
    ipaddress.ip_network(text)
    for text in (
        # Teredo and other protocols, which carry other addresses.
        "2001::/23",
        "2001:db8::/32",
        # 6to4, which carries an IPv4 address.
        "2002::/16",
        "3fff::/20",
    )
]
_LINK_LOCAL = [ipaddress.ip_network("169.254.0.0/16"), ipaddress.ip_network("fe80::/10")]
# EC2's metadata service has one among the unique local addresses.
_METADATA = {ipaddress.ip_address("fd00:ec2::254")}


def is_public(address: Address) -> bool:
    """True for a unicast address of the public internet that carries no other address inside."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _V4)
    return address in _V6_GLOBAL and not any(address in network for network in _V6)


def is_internal(address: Address) -> bool:
    """True for an address that a host may have which the operator named as private: a private or loopback one, or a
    public one; never a link-local one or that of a metadata service, however it is written."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return False
        if address in _METADATA:
            return False
    if any(address in network for network in _LINK_LOCAL if network.version == address.version):
        return False
    return is_public(address) or address.is_loopback or (address.is_private and not address.is_unspecified)
