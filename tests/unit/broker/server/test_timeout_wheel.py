"""How long a peer has been quiet."""

from __future__ import annotations

from ottla.broker.server.timeout_wheel import QuietTime


def test_activity_in_either_direction_and_an_excuse_start_again() -> None:
    quiet = QuietTime()
    assert quiet.measure(1.0, 0, is_excused=False) is None, "a new connection counts as active"
    assert quiet.measure(3.0, 0, is_excused=False) == 2000
    quiet.heard = True
    assert quiet.measure(4.0, 0, is_excused=False) is None
    assert quiet.measure(5.0, 0, is_excused=False) == 1000
    assert quiet.measure(6.0, 100, is_excused=False) is None, "the peer has read, or got something to read"
    assert quiet.measure(7.0, 100, is_excused=False) == 1000
    assert quiet.measure(8.0, 100, is_excused=True) is None
    assert quiet.measure(8.5, 100, is_excused=False) == 500
