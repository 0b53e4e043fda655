"""The SASL mechanisms: right and wrong logins, hostile messages, and an independent implementation of SCRAM."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramClient as OtherClient
from scramp import ScramMechanism as OtherMechanism

from ottla.machines.sasl.outcomes import Authenticated, Rejected
from ottla.machines.sasl.plain import check_plain
from ottla.machines.sasl.scram import ScramServer
from ottla.protocol.sasl.scram import ScramClient, ScramError, new_credential

MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
SALT, NONCE, SECRET = b"0123456789abcdef", b"server nonce 18 by", b"the secret of the cluster"
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30)


def challenged(mechanism: str, password: str | None, first: bytes) -> tuple[ScramServer, bytes]:
    server = ScramServer(mechanism, NONCE)
    user = server.receive_first(first)
    assert isinstance(user, str), user
    credential = None if password is None else new_credential(mechanism, password, SALT)
    return server, server.challenge(credential, SECRET).message


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_another_client_authenticates_here(mechanism: str) -> None:
    client = OtherClient([mechanism], "alice", "a password")
    server, challenge = challenged(mechanism, "a password", client.get_client_first().encode())
    client.set_server_first(challenge.decode())
    outcome = server.receive_final(client.get_client_final().encode())
    assert isinstance(outcome, Authenticated)
    assert outcome.user == "alice"
    client.set_server_final(outcome.message.decode())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_our_client_authenticates_at_another_server(mechanism: str) -> None:
    other = OtherMechanism(mechanism=mechanism)
    stored = other.make_auth_info("a password", iteration_count=4096)
    server = other.make_server({"alice": stored}.get)
    client = ScramClient(mechanism, "alice", "a password", b"client nonce")
    server.set_client_first(client.first().decode())
    server.set_client_final(client.final(server.get_server_first().encode()).decode())
    client.verify(server.get_server_final().encode())
    with pytest.raises(ScramError, match="impostor"):
        client.verify(b"v=AAAA")


@given(NAMES, NAMES, st.sampled_from(MECHANISMS))
def test_names_and_passwords_of_any_characters(user: str, password: str, mechanism: str) -> None:
    client = ScramClient(mechanism, user, password, b"client nonce")
    server, challenge = challenged(mechanism, password, client.first())
    outcome = server.receive_final(client.final(challenge))
    assert isinstance(outcome, Authenticated)
    assert outcome.user == user
    client.verify(outcome.message)


@pytest.mark.parametrize("password", ["another password", None])
def test_a_wrong_password_and_an_unknown_user_look_alike(password: str | None) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "a password", b"client nonce")
    server, challenge = challenged("SCRAM-SHA-256", password, client.first())
    assert server.receive_final(client.final(challenge)) == Rejected("the user name or the password is wrong")
    _, again = challenged("SCRAM-SHA-256", password, client.first())
    assert again == challenge  # the salt of an unknown user does not change either


def test_a_replayed_proof_does_not_fit_another_exchange() -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "a password", b"client nonce")
    first, credential = client.first(), new_credential("SCRAM-SHA-256", "a password", SALT)
    _, challenge = challenged("SCRAM-SHA-256", "a password", first)
    recorded = client.final(challenge)
    server = ScramServer("SCRAM-SHA-256", b"another nonce")
    server.receive_first(first)
    server.challenge(credential, SECRET)
    assert isinstance(server.receive_final(recorded), Rejected)
    assert isinstance(server.receive_final(recorded), Rejected)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_hostile_messages_are_rejected(first: bytes, last: bytes) -> None:
    server = ScramServer("SCRAM-SHA-256", NONCE)
    user = server.receive_first(first)
    if isinstance(user, str):
        server.challenge(None, SECRET)
    assert isinstance(server.receive_final(last), Rejected)


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=alice,r=x",
        b"n,a=bob,n=alice,r=x",
        b"n,,m=1,n=alice,r=x",
        b"n,,n=alice",
        b"n,,n=,r=x",
        b"n,,n=al=ice,r=x",
        b"n,,n=alice,n=bob,r=x",
        b"n,,n=alice,r=" + b"x" * 5000,
    ],
)
def test_first_messages_that_are_refused(first: bytes) -> None:
    assert isinstance(ScramServer("SCRAM-SHA-256", NONCE).receive_first(first), Rejected)


WRONG = (b"\0alice\0b", b"\0bob\0a password", b"bob\0alice\0a password", b"alice", b"", b"\0\0", b"\xff\0a\0b")


def test_plain() -> None:
    users = {"alice": "a password", "empty": ""}
    assert check_plain(b"\0alice\0a password", users) == Authenticated("alice", b"")
    assert check_plain(b"alice\0alice\0a password", users) == Authenticated("alice", b"")
    for wrong in WRONG:
        assert isinstance(check_plain(wrong, users), Rejected), wrong
