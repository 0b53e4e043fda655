"""Writes of a broker about itself: registration, retained data, failed logs, draining, and becoming the controller."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ottla.coordination.port import Delete, LeaseId, Operation, Put
from ottla.machines.controller import encoding, keys
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.state import (
    BrokerState,
    ControllerEntry,
    FailedLogs,
    Incarnation,
    Member,
    PartitionKey,
    Registration,
    RetainedSince,
)
from ottla.machines.controller.writes import Write
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused

FIRST_EPOCH = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStart:
    """What a process knows about itself before it registers."""

    broker_id: int
    host: str
    port: int
    machine: str
    directory_id: str
    """Created together with the data directory. A directory is used by one process at a time."""
    boot_id: str
    """Boot id of the operating system. While it is unchanged, so is the page cache."""
    process_id: str = ""
    """Unique to the process. While it is unchanged, memory contents are kept. Empty means unknown."""
    rack: str | None = None
    wal_port: int = 0
    inter_broker: tuple[str, int] | None = None
    """Host and port for other brokers, if they differ from those for clients."""
    endpoints: tuple[tuple[str, str, int], ...] = ()
    """Name, host and port of every listener."""
    clean_shutdown_epoch: int | None = None
    """The broker epoch that a clean shutdown left in the directory."""
    damaged: Collection[Durability] = ()
    """The durability classes in which recovery found damage."""
    failed: Collection[PartitionKey] = ()
    """Logs that are known to lack data from the start of this incarnation."""


@dataclass(frozen=True, slots=True)
class RegistrationWrite:
    """The write that registers a broker, and the resulting registration."""

    write: Write
    registration: Registration


def register_broker(image: ClusterImage, start: BrokerStart, lease: LeaseId) -> RegistrationWrite | Refused:
    """Registers a new incarnation with the next broker epoch (safety: one-history, isr-incarnations, lost-incarnation).

    Two processes cannot use the same directory, so a registration that still exists for this directory belongs to a
    process that is gone. A registration with another directory may belong to a second broker with this id; it has to
    expire with its lease first.
    """
    last = image.incarnation(start.broker_id)
    if last is None and image.version_of(keys.incarnation(start.broker_id)) is not None:
        # A broker epoch is never used twice, so the next one must not be guessed.
        return Refused(ErrorCode.unknown_server_error, f"'{keys.incarnation(start.broker_id)}' cannot be read.")
    previous = None if last is None else last.value
    is_standing = image.version_of(keys.broker(start.broker_id)) is not None
    if is_standing and (previous is None or previous.directory_id != start.directory_id):
        return Refused(
            ErrorCode.duplicate_broker_registration,
            f"Another broker is registered with the id {start.broker_id}, from another data directory. If that "
            "broker is dead, its registration ends with its lease.",
        )
    epoch = FIRST_EPOCH if previous is None else previous.epoch + 1
    kept = kept_since(epoch, start, previous)
    registration = Registration(
        start.broker_id,
        epoch,
        start.host,
        start.port,
        start.machine,
        kept,
        start.rack,
        wal_port=start.wal_port,
        inter_broker=start.inter_broker,
        endpoints=start.endpoints,
    )
    return RegistrationWrite(_registration_write(image, start, registration, lease), registration)


def _registration_write(image: ClusterImage, start: BrokerStart, registration: Registration, lease: LeaseId) -> Write:
    broker_id, epoch = registration.broker_id, registration.epoch
    incarnation = Incarnation(epoch, start.directory_id, start.boot_id, registration.kept, start.process_id)
    of_me = [keys.broker(broker_id), keys.incarnation(broker_id)]
    operations: list[Operation] = [
        Put(of_me[0], encoding.encode_registration(registration), lease),
        Put(of_me[1], encoding.encode_incarnation(incarnation)),
        _failures(broker_id, FailedLogs(epoch, partitions=frozenset(start.failed)), lease),
    ]
    controller = image.controller
    if controller is not None and controller.value.broker_id == broker_id:
        # The previous incarnation was the controller: nobody has to wait until its lease expires.
        of_me.append(keys.CONTROLLER)
        operations.append(Delete(keys.CONTROLLER))
    conditions = tuple(image.unchanged(key) for key in of_me)
    return Write(conditions, tuple(operations), f"broker {broker_id} starts in epoch {epoch}")


def kept_since(epoch: int, start: BrokerStart, previous: Incarnation | None) -> RetainedSince:
    """Returns, for each durability class, the epoch since which this broker has kept its data."""
    disk = cache = memory = epoch
    if previous is not None and previous.directory_id == start.directory_id:
        if Durability.DISK not in start.damaged:
            disk = previous.kept.disk
        had_its_pages = start.boot_id == previous.boot_id or start.clean_shutdown_epoch == previous.epoch
        if had_its_pages and Durability.CACHE not in start.damaged:
            cache = previous.kept.cache
        if start.process_id and start.process_id == previous.process_id:
            memory = previous.kept.memory  # only its lease was lost
    return RetainedSince(disk=disk, cache=cache, memory=memory)


def resume_registration(image: ClusterImage, registration: Registration, lease: LeaseId) -> Write | Refused:
    """Re-registers a process whose lease expired, as the same incarnation: it still has all its data.

    This is allowed only while nobody else has registered with its id. Its own registration may still exist under a
    lease that has expired for this process but not yet for the store. ISR memberships and leaderships are what the
    store now has.
    """
    broker_id = registration.broker_id
    last, standing = image.incarnation(broker_id), image.registration(broker_id)
    is_last = last is not None and last.value.epoch == registration.epoch
    if not is_last or (standing is not None and standing.member != registration.member):
        return Refused(
            ErrorCode.stale_broker_epoch,
            f"Broker {broker_id} in epoch {registration.epoch} is not the last incarnation.",
        )
    of_me = keys.broker(broker_id), keys.incarnation(broker_id)
    put = Put(of_me[0], encoding.encode_registration(registration), lease)
    why = f"broker {broker_id} continues in epoch {registration.epoch}"
    return Write(tuple(image.unchanged(key) for key in of_me), (put,), why)


# -- draining -------------------------------------------------------------------------------------------------------


def start_draining(image: ClusterImage, broker_id: int) -> Write | Refused | None:
    """Marks the broker as draining; returns None if it already is."""
    return _set_state(image, broker_id, BrokerState.DRAINING)


def stop_draining(image: ClusterImage, broker_id: int) -> Write | Refused | None:
    """Marks the broker as active again; returns None if it already is."""
    return _set_state(image, broker_id, BrokerState.ACTIVE)


def is_drained(image: ClusterImage, broker_id: int) -> bool:
    """Returns whether the broker leads no partition that another broker could lead, or is gone."""
    return not any(_could_move(image, key, broker_id) for key in image.led_by(broker_id))


def _could_move(image: ClusterImage, key: PartitionKey, broker_id: int) -> bool:
    found = image.partition(key)
    assert found is not None, "a partition with a leader is in the image"
    others = [image.registration(member.broker_id) for member in found.value.isr if member.broker_id != broker_id]
    return any(other is not None and not other.is_draining for other in others)


def _set_state(image: ClusterImage, broker_id: int, state: BrokerState) -> Write | Refused | None:
    found = image.registration_entry(broker_id)
    if found is None:
        return Refused(ErrorCode.broker_id_not_registered, f"Broker {broker_id} is not registered.")
    if found.value.state is state:
        return None
    key = keys.broker(broker_id)
    put = Put(key, encoding.encode_registration(replace(found.value, state=state)), found.lease)
    return Write((image.unchanged(key),), (put,), f"broker {broker_id} is {state.value}")


# -- failed logs ------------------------------------------------------------------------------------------------------


def report_failures(image: ClusterImage, broker_id: int, failed: FailedLogs, lease: LeaseId) -> Write:
    """Replaces the failures reported so far by the current ones.

    A log that is being rebuilt stays listed until it again has everything that the ISR has. Otherwise an ISR member or
    eligible replica that counts as alive could be elected with an incomplete log.
    """
    conditions = image.standing(broker_id)
    return Write(conditions, (_failures(broker_id, failed, lease),), f"failed logs of broker {broker_id}")


def _failures(broker_id: int, failed: FailedLogs, lease: LeaseId) -> Operation:
    if failed.all_disk or failed.partitions:
        return Put(keys.failures(broker_id), encoding.encode_failures(failed), lease)
    return Delete(keys.failures(broker_id))


# -- the controller ---------------------------------------------------------------------------------------------------


def become_controller(image: ClusterImage, me: Member, lease: LeaseId) -> Write | None:
    """Claims the controller role. Returns None while another live incarnation is the controller, or while this one is
    not registered."""
    registration, found = image.registration(me.broker_id), image.controller
    if registration is None or registration.member != me:
        return None
    conditions = [image.unchanged(keys.broker(me.broker_id)), image.unchanged(keys.CONTROLLER)]
    if found is not None:
        holder = image.registration(found.value.broker_id)
        if holder is not None and holder.epoch == found.value.broker_epoch:
            return None
        conditions.append(image.unchanged(keys.broker(found.value.broker_id)))
    value = encoding.encode_controller(ControllerEntry(me.broker_id, me.broker_epoch))
    unique = {condition.key: condition for condition in conditions}
    return Write(
        tuple(unique.values()), (Put(keys.CONTROLLER, value, lease),), f"broker {me.broker_id} becomes the controller"
    )


def resign_as_controller(image: ClusterImage, me: Member) -> Write | None:
    """Gives up the controller role; returns None if `me` does not have it."""
    found = image.controller
    if found is None or found.value != ControllerEntry(*me):
        return None
    return Write(
        (image.unchanged(keys.CONTROLLER),),
        (Delete(keys.CONTROLLER),),
        f"broker {me.broker_id} resigns as the controller",
    )
