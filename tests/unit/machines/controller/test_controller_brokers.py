"""Registration, the data that a new incarnation keeps, draining, failures, the controller's election.

(safety: one-history, isr-incarnations, lost-incarnation)
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.coordination.port import Committed, Conflict, LeaseId
from ottla.machines.controller import keys
from ottla.machines.controller.broker_requests import (
    BrokerStart,
    RegistrationWrite,
    become_controller,
    is_drained,
    register_broker,
    report_failures,
    resign_as_controller,
    resume_registration,
    start_draining,
    stop_draining,
)
from ottla.machines.controller.state import ControllerEntry, FailedLogs, Member, Registration, RetainedSince
from ottla.machines.controller.writes import Write
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused
from tests.support.controller_store import P0, Store, partition

START = BrokerStart(broker_id=1, host="h", port=9092, machine="m", directory_id="d", boot_id="b", rack="r")


def register(store: Store, start: BrokerStart = START, lease: int = 1) -> Registration:
    registering = register_broker(store.image(), start, LeaseId(lease))
    assert isinstance(registering, RegistrationWrite)
    assert isinstance(store.commit(registering.write), Committed)
    assert store.image().registration(start.broker_id) == registering.registration
    return registering.registration


def commit(store: Store, write: Write | Refused | None) -> None:
    assert isinstance(write, Write), write
    assert isinstance(store.commit(write), Committed)


# -- data that a new incarnation keeps ------------------------------------------------------------------------------


def test_the_first_start() -> None:
    store = Store()
    assert register(store) == Registration(1, 1, "h", 9092, "m", RetainedSince(1, 1, 1), "r")
    assert store.entries[keys.broker(1)].lease == 1
    assert store.entries[keys.incarnation(1)].lease is None


@pytest.mark.parametrize(
    ("then", "kept"),
    [
        (START, RetainedSince(disk=1, cache=1, memory=2)),
        (replace(START, boot_id="other"), RetainedSince(disk=1, cache=2, memory=2)),
        (replace(START, boot_id="other", clean_shutdown_epoch=1), RetainedSince(disk=1, cache=1, memory=2)),
        (replace(START, boot_id="other", clean_shutdown_epoch=0), RetainedSince(disk=1, cache=2, memory=2)),
        (replace(START, directory_id="new"), RetainedSince(disk=2, cache=2, memory=2)),
        (replace(START, directory_id="new", clean_shutdown_epoch=1), RetainedSince(disk=2, cache=2, memory=2)),
        (replace(START, damaged={Durability.DISK}), RetainedSince(disk=2, cache=1, memory=2)),
        (replace(START, damaged={Durability.CACHE}), RetainedSince(disk=1, cache=2, memory=2)),
        (replace(START, process_id="other"), RetainedSince(disk=1, cache=1, memory=2)),
    ],
)
def test_a_restart_keeps_what_the_class_says(then: BrokerStart, kept: RetainedSince) -> None:
    store = Store()
    register(store)
    store.end_lease(LeaseId(1))
    assert register(store, then, lease=2).kept == kept


def test_a_process_that_lost_its_lease_keeps_its_memory() -> None:
    store = Store()
    process = replace(START, process_id="one")
    register(store, process)
    store.end_lease(LeaseId(1))
    assert register(store, process, lease=2).kept == RetainedSince(disk=1, cache=1, memory=1)
    store.end_lease(LeaseId(2))
    assert register(store, replace(START, process_id="two"), lease=3).kept == RetainedSince(disk=1, cache=1, memory=3)


def test_what_was_lost_once_stays_lost() -> None:
    store = Store()
    register(store)
    register(store, replace(START, boot_id="after a power cut"), lease=2)
    again = register(store, replace(START, boot_id="after a power cut"), lease=3)
    assert again.kept == RetainedSince(disk=1, cache=2, memory=3)


def test_the_epoch_goes_on_though_the_registration_is_gone() -> None:
    store = Store()
    for lease in range(1, 5):
        assert register(store, lease=lease).epoch == lease
        store.end_lease(LeaseId(lease))


def test_a_restart_inside_the_lease_takes_the_old_one_s_place() -> None:
    store = Store()
    register(store)
    assert register(store, lease=2).epoch == 2
    store.end_lease(LeaseId(1))
    assert store.image().registration(1) is not None


def test_another_directory_waits_for_the_end_of_the_lease() -> None:
    store = Store()
    register(store)
    refused = register_broker(store.image(), replace(START, directory_id="other"), LeaseId(2))
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.duplicate_broker_registration


def test_two_that_start_at_once_do_not_get_one_epoch() -> None:
    store = Store()
    image = store.image()
    writes = [register_broker(image, START, LeaseId(lease)) for lease in (1, 2)]
    first, second = (each.write for each in writes if isinstance(each, RegistrationWrite))
    assert isinstance(store.commit(first), Committed)
    assert isinstance(store.commit(second), Conflict)


def test_an_incarnation_that_cannot_be_read_is_not_guessed() -> None:
    store = Store()
    store.put(keys.incarnation(1), b'{"format":9}')
    assert isinstance(register_broker(store.image(), START, LeaseId(1)), Refused)


def test_failures_of_an_earlier_incarnation_go_and_known_ones_come_with_it() -> None:
    store = Store()
    register(store)
    commit(store, report_failures(store.image(), 1, FailedLogs(1, all_disk=True), LeaseId(1)))
    assert store.image().has_failed(1, P0, Durability.DISK)
    register(store, lease=2)
    assert keys.failures(1) not in store.entries
    register(store, replace(START, failed={P0}), lease=3)
    assert store.image().has_failed(1, P0, Durability.DISK)
    store.end_lease(LeaseId(3))
    assert keys.failures(1) not in store.entries


def test_a_new_incarnation_ends_the_reign_of_the_old_one() -> None:
    store = Store()
    register(store)
    commit(store, become_controller(store.image(), Member(1, 1), LeaseId(1)))
    register(store, lease=2)
    assert store.image().controller is None


def test_the_same_process_goes_on_as_the_same_incarnation() -> None:
    """Its lease expired while the store was unreachable; it still has all its data, in memory too."""
    store = Store()
    registration = register(store)
    store.end_lease(LeaseId(1))
    commit(store, resume_registration(store.image(), registration, LeaseId(2)))
    assert store.image().registration(1) == registration


def test_its_registration_outlives_the_old_lease() -> None:
    """The old lease has expired for its owner, and only later for the store."""
    store = Store()
    registration = register(store)
    commit(store, resume_registration(store.image(), registration, LeaseId(2)))
    store.end_lease(LeaseId(1))
    assert store.image().registration(1) == registration
    store.end_lease(LeaseId(2))
    assert store.image().registration(1) is None


def test_but_not_after_another_incarnation() -> None:
    store = Store()
    registration = register(store)
    store.end_lease(LeaseId(1))
    write = resume_registration(store.image(), registration, LeaseId(3))
    register(store, lease=2)
    assert isinstance(write, Write)
    assert isinstance(store.commit(write), Conflict)
    store.end_lease(LeaseId(2))
    assert isinstance(resume_registration(store.image(), registration, LeaseId(3)), Refused)


# -- failures, draining ---------------------------------------------------------------------------------------------


def test_a_process_of_before_reports_no_failures() -> None:
    store = Store()
    register(store)
    write = report_failures(store.image(), 1, FailedLogs(1, all_disk=True), LeaseId(1))
    register(store, lease=2)
    assert isinstance(store.commit(write), Conflict)


def test_draining_and_back() -> None:
    store = Store()
    register(store)
    commit(store, start_draining(store.image(), 1))
    assert store.entries[keys.broker(1)].lease == 1
    registration = store.image().registration(1)
    assert registration is not None
    assert registration.is_draining
    assert start_draining(store.image(), 1) is None
    commit(store, stop_draining(store.image(), 1))
    assert stop_draining(store.image(), 1) is None
    refused = start_draining(store.image(), 9)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.broker_id_not_registered


def test_a_broker_is_drained_when_it_leads_nothing_that_another_could() -> None:
    store = Store()
    for broker_id in (1, 2):
        store.add_broker(broker_id)
    store.add_topic([partition("1 2", "1"), partition("1", "1")])
    assert not is_drained(store.image(), 1)
    store.set_partition(partition("1 2", "2"))
    assert is_drained(store.image(), 1)
    store.set_partition(partition("1 2", "1", isr="1"))
    assert is_drained(store.image(), 1)
    store.set_partition(partition("1 2", "1"))
    commit(store, start_draining(store.image(), 2))
    assert is_drained(store.image(), 1)


# -- the controller -------------------------------------------------------------------------------------------------


def test_one_broker_controls() -> None:
    store = Store()
    for broker_id in (1, 2):
        store.add_broker(broker_id)
    image = store.image()
    first, second = (become_controller(image, Member(broker_id, 1), LeaseId(broker_id)) for broker_id in (1, 2))
    commit(store, first)
    assert isinstance(second, Write)
    assert isinstance(store.commit(second), Conflict)
    controller = store.image().controller
    assert controller is not None
    assert controller.value == ControllerEntry(1, 1)
    assert become_controller(store.image(), Member(2, 1), LeaseId(2)) is None
    store.end_lease(LeaseId(1))
    commit(store, become_controller(store.image(), Member(2, 1), LeaseId(2)))


def test_only_a_registered_incarnation_controls() -> None:
    store = Store()
    store.add_broker(1, epoch=2)
    assert become_controller(store.image(), Member(1, 1), LeaseId(1)) is None
    write = become_controller(store.image(), Member(1, 2), LeaseId(1))
    store.end_lease(LeaseId(1))
    assert isinstance(write, Write)
    assert isinstance(store.commit(write), Conflict)


def test_the_entry_of_an_incarnation_that_is_gone_is_taken_over() -> None:
    store = Store()
    store.add_broker(1, epoch=2)
    store.add_broker(2)
    store.add_controller(1, 1)
    commit(store, become_controller(store.image(), Member(1, 2), LeaseId(1)))
    store.add_controller(3, 1)
    commit(store, become_controller(store.image(), Member(2, 1), LeaseId(2)))


def test_resigning() -> None:
    store = Store()
    store.add_broker(1)
    commit(store, become_controller(store.image(), Member(1, 1), LeaseId(1)))
    assert resign_as_controller(store.image(), Member(2, 1)) is None
    commit(store, resign_as_controller(store.image(), Member(1, 1)))
    assert store.image().controller is None
