"""Which addresses may be called, whatever their spelling."""

from __future__ import annotations

import pytest

from butlers.errors import ValidationError
from butlers.webhooks.addresses import AddressGuard, AddressRefused, check_url, problem_with

PUBLIC = ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
PRIVATE = [
    "127.0.0.1",
    "127.255.0.9",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "0.1.2.3",
    "::1",
    "fd12:3456::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::7f00:1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
]
NEVER = [
    "0.0.0.0",
    "::",
    "169.254.169.254",
    "169.254.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "fe80::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "100.100.100.200",
    "168.63.129.16",
    "224.0.0.1",
    "ff02::1",
    "255.255.255.255",
    "240.0.0.1",
    "fec0::1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_may_be_called(address):
    assert problem_with(address, private_allowed=False) is None


@pytest.mark.parametrize("address", PRIVATE)
def test_a_private_address_may_be_called_by_setting_only(address):
    assert "private network" in (problem_with(address, private_allowed=False) or "")
    assert problem_with(address, private_allowed=True) is None


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_never_called(address):
    assert "never called" in (problem_with(address, private_allowed=True) or "")
    assert "never called" in (problem_with(address, private_allowed=False) or "")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://example.com/", "must begin with https://"),
        ("ftp://example.com/", "is not an address"),
        ("https://", "is not an address"),
        ("https:example.com", "is not an address"),
        ("//example.com", "is not an address"),
        ("https://example.com:0/", "is not an address"),
        ("https://example.com:65536/", "is not an address"),
        ("https://0177.0.0.1/", "is not an address"),
        ("https://2130706433/", "usual form"),
        ("https://0x7f.1/", "usual form"),
        ("https://127.1/", "usual form"),
        ("https://%31%32%37.0.0.1/", "usual form"),
        ("https://127.0.0.1/", "private network"),
        ("https://[::1]/", "private network"),
        ("https://[::ffff:7f00:1]/", "private network"),
        ("https://169.254.169.254/latest", "never called"),
        ("https://localhost/", "leads to this machine"),
        ("https://hooks.localhost./", "leads to this machine"),
        ("https://user:word@example.com/", "credentials"),
        ("https://example.com/#part", "fragment"),
        ("https://exa mple.com/", "printable ASCII"),
        ("https://example.com\\@127.0.0.1/", "printable ASCII"),
        ("https://exämple.com/", "printable ASCII"),
        ("https://example.com/" + "a" * 2_048, "at most 2048"),
    ],
)
def test_a_wrong_url_is_refused_with_what_is_wrong(url, problem):
    with pytest.raises(ValidationError, match=problem) as refused:
        check_url(url, private_allowed=False)
    assert refused.value.fields[0].field == "url"


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/x", "http://localhost/", "http://[::1]/", "https://10.0.0.1/"])
def test_by_setting_this_machine_needs_no_tls_and_private_networks_are_open(url):
    assert str(check_url(url, private_allowed=True)) == url
    with pytest.raises(ValidationError):
        check_url(url, private_allowed=False)


@pytest.mark.parametrize("url", ["http://10.0.0.1/", "http://example.com/", "https://169.254.169.254/"])
def test_the_setting_opens_no_more_than_that(url):
    with pytest.raises(ValidationError):
        check_url(url, private_allowed=True)


async def test_one_refused_address_among_good_ones_refuses_the_host():
    async def resolve(_host: str, _port: int) -> list[str]:
        return ["8.8.8.8", "10.0.0.1"]

    with pytest.raises(AddressRefused):
        await AddressGuard(resolve=resolve, private_allowed=False).addresses("example.com", 443)
    assert await AddressGuard(resolve=resolve, private_allowed=True).addresses("example.com", 443) == [
        "8.8.8.8",
        "10.0.0.1",
    ]
