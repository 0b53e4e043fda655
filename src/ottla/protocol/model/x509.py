"""Reads the subject and the validity of an X.509 certificate.

Python's `ssl` verifies certificates, but does not show the distinguished name in the form that Kafka's rules expect,
and says nothing about the certificate of this side. So this module reads the few fields that are needed, in DER.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

_SEQUENCE, _SET, _OID = 0x30, 0x31, 0x06
_UTC_TIME = 0x17
_VERSION = 0xA0
_TEXT = {
    0x0C: "utf-8",
    0x12: "ascii",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attribute types with a keyword in RFC 2253. Java writes all others as numbers, with the value in hexadecimal."""


class MalformedCertificateError(ValueError):
    """The bytes are not a certificate."""


class Certificate(NamedTuple):
    """The fields of a certificate that a broker looks at."""

    subject: str
    """The distinguished name as in RFC 2253, the most specific part first: CN=alice,OU=billing,O=example."""
    not_before: datetime
    not_after: datetime


class _Element(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def read_certificate(der: bytes) -> Certificate:
    """Reads a certificate in DER. Raises MalformedCertificateError."""
    try:
        (certificate,) = _elements(der)
        body = next(_elements(_expect(certificate, _SEQUENCE)))
        fields = [each for each in _elements(_expect(body, _SEQUENCE)) if each.tag != _VERSION]
        validity, subject = fields[3], fields[4]
        begin, end = (_time(each) for each in _elements(_expect(validity, _SEQUENCE)))
        return Certificate(_name(_expect(subject, _SEQUENCE)), begin, end)
    except MalformedCertificateError:
        raise
    except (ValueError, IndexError, StopIteration) as cause:
        raise MalformedCertificateError(f"this is not an X.509 certificate: {cause}") from cause


def _elements(data: bytes) -> Iterator[_Element]:
    at = 0
    while at < len(data):
        start, tag, length = at, data[at], data[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + length > len(data):
            raise MalformedCertificateError("this is not an X.509 certificate: it is cut off")
        yield _Element(tag, data[at : at + length], data[start : at + length])
        at += length


def _expect(element: _Element, tag: int) -> bytes:
    if element.tag != tag:
        raise MalformedCertificateError(f"this is not an X.509 certificate: tag {element.tag:#x} instead of {tag:#x}")
    return element.content


def _time(element: _Element) -> datetime:
    text = element.content.decode("ascii")
    if element.tag == _UTC_TIME:  # two digits for the years from 1950 to 2049
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _name(content: bytes) -> str:
    parts = []
    for relative in _elements(content):
        values = []
        for pair in _elements(_expect(relative, _SET)):
            kind, value = _elements(_expect(pair, _SEQUENCE))
            values.append(_attribute(_oid(_expect(kind, _OID)), value))
        parts.append("+".join(values))
    return ",".join(reversed(parts))


def _attribute(oid: str, value: _Element) -> str:
    keyword, encoding = _KEYWORDS.get(oid), _TEXT.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or oid}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(value.content.decode(encoding))}"


def _escaped(text: str) -> str:
    escaped = "".join(f"\\{character}" if character in ',+"\\<>;' else character for character in text)
    if escaped[:1] in ("#", " "):
        escaped = f"\\{escaped}"
    if len(escaped) > 1 and escaped.endswith(" ") and not escaped.endswith("\\ "):
        escaped = f"{escaped[:-1]}\\ "
    return escaped


def _oid(content: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
