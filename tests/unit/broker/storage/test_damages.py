"""The known damage of one log."""

from __future__ import annotations

from ottla.broker.storage.contract import Damage
from ottla.broker.storage.damages import Damages

DAMAGE = Damage("00000000000000000000.log", 100, 3, 5, "a checksum does not match")


def test_a_damage_is_reported_once() -> None:
    reports: list[str] = []
    damages = Damages(reports.append)
    damages.record(DAMAGE)
    damages.record(DAMAGE)
    assert damages == [DAMAGE]
    assert reports == [str(DAMAGE)]


def test_a_damage_covers_its_offsets() -> None:
    damages = Damages(lambda _: None)
    damages.record(DAMAGE)
    assert [damages.at(offset) for offset in range(2, 6)] == [None, DAMAGE, DAMAGE, None]
