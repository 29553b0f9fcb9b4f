"""Addresses and hosts that images may come from."""

from __future__ import annotations

import ipaddress

import pytest

from openai_bls.core.settings import OpenAiBlsSettings, SettingsError, load
from openai_bls.pipeline.media.addresses import is_internal, is_public
from openai_bls.pipeline.media.hosts import Hosts

PUBLIC = ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.63.255.255", "2606:4700::1111", "2a00:1450:4001::8"]
PRIVATE = ["10.1.2.3", "172.16.0.1", "192.168.1.1", "127.0.0.1", "127.8.8.8", "::1", "fd00::1", "100.64.0.1"]
NEVER = [
    *("0.0.0.0", "169.254.169.254", "224.0.0.1", "239.1.1.1", "255.255.255.255", "198.18.0.1", "192.0.2.1"),
    *("::", "fe80::1", "ff02::1", "::ffff:8.8.8.8", "::ffff:169.254.169.254", "::7f00:1", "64:ff9b::a9fe:a9fe"),
    *("64:ff9b:1::1", "2002:a9fe:a9fe::1", "2002:0808:0808::1", "2001:0:1::1", "2001:db8::1", "fd00:ec2::254"),
]


@pytest.mark.parametrize("text", [*PUBLIC, *PRIVATE, *NEVER])
def test_addresses(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert is_public(address) == (text in PUBLIC)
    if text in PUBLIC:
        assert is_internal(address)
    if "169.254" in text or "a9fe" in text or text in ("fe80::1", "fd00:ec2::254", "0.0.0.0", "::", "224.0.0.1"):
        assert not is_internal(address)
    if text in ("10.1.2.3", "192.168.1.1", "127.0.0.1", "::1", "fd00::1"):
        assert is_internal(address)


def test_hosts_by_name_and_port() -> None:
    hosts = Hosts(("Images.example.com", "*.cdn.example", "other.example:8443"), ("store.internal", "[::1]:9000"))
    allowed = [
        *(("images.example.com", 443, "https"), ("images.example.com", 80, "http"), ("a.b.cdn.example", 443, "https")),
        *(("other.example", 8443, "https"), ("store.internal", 80, "http"), ("::1", 9000, "http")),
    ]
    refused = [
        *(("images.example.com", 8080, "http"), ("images.example.com", 80, "https"), ("cdn.example", 443, "https")),
        *(("evilcdn.example", 443, "https"), ("other.example", 443, "https"), ("x.images.example.com", 443, "https")),
        ("::1", 80, "http"),
    ]
    assert all(hosts.allows(*place) for place in allowed)
    assert not any(hosts.allows(*place) for place in refused)
    assert [hosts.may_be_private(*place) for place in allowed] == [False] * 4 + [True] * 2
    assert Hosts(("*",)).allows("anything.example", 443, "https")
    assert not Hosts(("*",)).allows("anything.example", 22, "http")
    assert not Hosts()


@pytest.mark.parametrize(
    "text", ["https://a.example", "a b", "a.example:", "a.example:0", "a.example/x", "**", "::1", ",a"]
)
def test_what_is_no_host_is_refused_by_the_setting(text: str) -> None:
    with pytest.raises(SettingsError, match="image_url_hosts"):
        load(OpenAiBlsSettings, {"image_url_hosts": text}, {})


def test_what_is_a_host() -> None:
    text = "a.example, *.b.example:8443 ,*,[::1]:9,127.0.0.1:80"
    found = load(OpenAiBlsSettings, {"image_url_hosts": text, "image_url_private_hosts": ""}, {})
    assert found.image_hosts == ("a.example", "*.b.example:8443", "*", "[::1]:9", "127.0.0.1:80")
    Hosts(found.image_hosts)
