"""Distinguished names of certificates, and the user names that rules form from them."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.model.principal_rules import PrincipalRules
from ottla.protocol.model.x509 import MalformedCertificateError, read_certificate

KEY = ec.generate_private_key(ec.SECP256R1())
END = datetime(2060, 5, 4, 3, 2, 1, tzinfo=UTC)


def certificate(name: x509.Name, end: datetime = END) -> bytes:
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(KEY.public_key())
    builder = builder.serial_number(77).not_valid_before(end - timedelta(days=1)).not_valid_after(end)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER)


def name_of(*pairs: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in pairs])


def test_the_most_specific_part_is_first() -> None:
    name = name_of(
        (NameOID.COUNTRY_NAME, "DE"),
        (NameOID.ORGANIZATION_NAME, "Example, Inc."),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, "R+D"),
        (NameOID.DOMAIN_COMPONENT, "org"),
        (NameOID.COMMON_NAME, "Zo\u00eb #1"),
    )
    read = read_certificate(certificate(name))
    assert read.subject == "CN=Zo\u00eb #1,DC=org,OU=R\\+D,O=Example\\, Inc.,C=DE"
    assert (read.not_after, read.not_before) == (END, END - timedelta(days=1))


def test_a_type_without_a_keyword_is_written_as_java_does() -> None:
    name = name_of((NameOID.EMAIL_ADDRESS, "a@b"), (NameOID.COMMON_NAME, "x"))
    assert read_certificate(certificate(name)).subject == "CN=x,1.2.840.113549.1.9.1=#1603614062"


def test_several_attributes_in_one_part() -> None:
    pair = [x509.NameAttribute(NameOID.COMMON_NAME, "x"), x509.NameAttribute(NameOID.USER_ID, "7")]
    subject = read_certificate(certificate(x509.Name([x509.RelativeDistinguishedName(pair)]))).subject
    assert sorted(subject.split("+")) == ["CN=x", "UID=7"]


@given(st.binary(max_size=200))
def test_anything_else_is_no_certificate(data: bytes) -> None:
    with pytest.raises(MalformedCertificateError):
        read_certificate(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_certificate_is_read_or_refused(at: int, byte: int) -> None:
    whole = bytearray(certificate(name_of((NameOID.COMMON_NAME, "x"))))
    whole[at % len(whole)] = byte
    with contextlib.suppress(MalformedCertificateError):
        read_certificate(bytes(whole))


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=svc,OU=ServiceUsers,O=x", "svc"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=adam,OU=People", "CN=adam,OU=People"),
        ("RULE:^CN=([^,]+),OU=([^,]+).*$/$1@$2/L, DEFAULT", "CN=Adam,OU=People,O=x", "adam@people"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "CN=eve", "EVE"),
        ("RULE:^CN=x$/y/", "CN=z", None),
        ("RULE:^CN=a\\/b$/slash/", "CN=a/b", "slash"),
    ],
)
def test_rules(rules: str, name: str, user: str | None) -> None:
    assert PrincipalRules(rules).user_of(name) == user


@pytest.mark.parametrize("rules", ["RULE:^CN=(.*$/$1/", "RULE:CN=.*/$1/", "default", "RULE:a/b", "DEFAULT DEFAULT"])
def test_mistakes_in_rules(rules: str) -> None:
    with pytest.raises(ValueError, match=r"RULE|regular expression|group|DEFAULT"):
        PrincipalRules(rules)
