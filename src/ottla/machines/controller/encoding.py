"""Encodes the values of the cluster state: compact JSON with sorted keys and a format number.

A reader ignores unknown fields, and the next writer of the entry drops them. A field that older readers must not ignore
needs a higher format number. A value of a higher format, or one that cannot be parsed, is `UnreadableEntry`: the broker
reports it and continues without that entry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from ottla.coordination.port import Entry, Revision
from ottla.machines.controller.state import (
    NO_BROKER_EPOCH,
    NO_LEADER,
    BrokerState,
    ControllerEntry,
    DeletedTopic,
    FailedLogs,
    Incarnation,
    Member,
    PartitionKey,
    PartitionState,
    Registration,
    RetainedSince,
    TopicCreation,
    TopicState,
)
from ottla.protocol.model import acl_entries
from ottla.protocol.model.acl_bindings import AclBinding
from ottla.protocol.model.ids import TopicId

FORMAT = 1

T = TypeVar("T")

_encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class UnreadableEntry:
    """An entry that this version cannot read. It is left alone, and so is everything that depends on it."""

    key: str
    reason: str
    version: Revision

    def __str__(self) -> str:
        return f"The entry '{self.key}' of the coordination store cannot be read: {self.reason}."


class MalformedError(ValueError):
    """Describes what is wrong with a value. `read` turns it into an `UnreadableEntry`."""


# -- writing --------------------------------------------------------------------------------------------------------


def _value(**fields: object) -> bytes:
    fields["format"] = FORMAT
    return _encode(fields).encode()


def encode_registration(registration: Registration) -> bytes:
    """Returns the value of `brokers/<id>`. Optional fields are left out if they have their defaults."""
    return _value(
        epoch=registration.epoch,
        host=registration.host,
        port=registration.port,
        rack=registration.rack,
        machine=registration.machine,
        kept=_kept_fields(registration.kept),
        state=registration.state.value,
        **({"wal_port": registration.wal_port} if registration.wal_port else {}),
        **_inter_broker_fields(registration),
        **({"endpoints": registration.endpoints} if registration.endpoints else {}),
    )


def _inter_broker_fields(registration: Registration) -> dict[str, object]:
    """Returns the inter-broker fields. An older version ignores them and uses the address for clients."""
    if registration.inter_broker is None:
        return {}
    host, port = registration.inter_broker
    return {"inter_broker_host": host, "inter_broker_port": port}


def encode_incarnation(incarnation: Incarnation) -> bytes:
    """Returns the value of `incarnations/<id>`."""
    return _value(
        epoch=incarnation.epoch,
        directory_id=incarnation.directory_id,
        boot_id=incarnation.boot_id,
        process_id=incarnation.process_id,
        kept=_kept_fields(incarnation.kept),
    )


def _kept_fields(kept: RetainedSince) -> dict[str, int]:
    return {"disk": kept.disk, "cache": kept.cache, "memory": kept.memory}


def encode_partition(state: PartitionState) -> bytes:
    """Encodes a partition. Fields that are usually empty are omitted, because there are many partitions."""
    fields: dict[str, object] = {
        "format": FORMAT,
        "replicas": state.replicas,
        "leader_epoch": state.leader_epoch,
        "isr": state.isr,
    }
    if state.has_leader:
        fields["leader"] = state.leader_member
    if state.eligible:
        fields["eligible"] = state.eligible
    if state.adding:
        fields["adding"] = state.adding
    if state.removing:
        fields["removing"] = state.removing
    if state.anew_in_epoch:
        fields["anew_in_epoch"] = state.anew_in_epoch
    return _encode(fields).encode()


def encode_topic(topic: TopicState) -> bytes:
    """Returns the value of `topics/<topic id>`."""
    return _value(
        name=topic.name,
        partition_count=topic.partition_count,
        configs=dict(topic.configs),
        created_ms=topic.created_ms,
        **({"replicas_wanted": topic.replicas_wanted} if topic.replicas_wanted else {}),
    )


def encode_name(topic_id: TopicId) -> bytes:
    """Returns the value of `names/<topic name>`: the topic's id."""
    return _value(topic_id=str(topic_id))


def encode_controller(controller: ControllerEntry) -> bytes:
    """Returns the value of the controller's entry."""
    return _value(broker_id=controller.broker_id, broker_epoch=controller.broker_epoch)


def encode_configs(configs: Mapping[str, str]) -> bytes:
    """Returns the value of `configs/<broker id or default>`: dynamic settings by name."""
    return _value(configs=dict(configs))


def encode_creating(creating: TopicCreation) -> bytes:
    """Returns the value of `creating/<topic id>`."""
    return _value(name=creating.name, creator=creating.creator)


def encode_deleted(deleted: DeletedTopic) -> bytes:
    """Returns the value of `deleted/<topic id>`: the brokers that may still have logs of it."""
    return _value(name=deleted.name, brokers=sorted(deleted.brokers))


def encode_failures(failed: FailedLogs) -> bytes:
    """Returns the value of `failures/<broker id>`."""
    by_topic: dict[str, list[int]] = {}
    for topic_id, index in sorted(failed.partitions):
        by_topic.setdefault(str(topic_id), []).append(index)
    return _value(broker_epoch=failed.broker_epoch, all_disk=failed.all_disk, partitions=by_topic)


# -- reading --------------------------------------------------------------------------------------------------------


def read(entry: Entry, decode: Callable[[Entry], T]) -> T | UnreadableEntry:
    """Decodes an entry; returns Unreadable if its value is malformed."""
    try:
        return decode(entry)
    except MalformedError as error:
        return UnreadableEntry(entry.key, str(error), entry.version)


def _read_fields(entry: Entry) -> dict[str, Any]:
    try:
        fields = json.loads(entry.value)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"it is not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise MalformedError("it is not a JSON object")
    number = _integer(fields, "format", low=1)
    if number > FORMAT:
        raise MalformedError(f"its format is {number}, and this version reads formats up to {FORMAT}")
    return fields


def decode_registration(entry: Entry, broker_id: int) -> Registration:
    """Decodes the entry of a live broker. Raises MalformedError."""
    fields = _read_fields(entry)
    rack = fields.get("rack")
    if rack is not None and not isinstance(rack, str):
        raise MalformedError("'rack' is neither a string nor null")
    state = _text(fields, "state")
    if state not in {known.value for known in BrokerState}:
        raise MalformedError(f"'state' is {state!r}")
    return Registration(
        broker_id,
        epoch=_integer(fields, "epoch"),
        host=_text(fields, "host"),
        port=_integer(fields, "port"),
        machine=_text(fields, "machine"),
        kept=_kept(fields),
        rack=rack,
        state=BrokerState(state),
        wal_port=_integer(fields, "wal_port") if "wal_port" in fields else 0,
        inter_broker=(_text(fields, "inter_broker_host"), _integer(fields, "inter_broker_port"))
        if "inter_broker_host" in fields
        else None,
        endpoints=_endpoints(fields),
    )


def _endpoints(fields: Mapping[str, Any]) -> tuple[tuple[str, str, int], ...]:
    found = fields.get("endpoints", [])
    if not isinstance(found, list):
        raise MalformedError("'endpoints' is not a list")
    for each in found:
        match each:
            case [str(), str(), int()]:
                continue
        raise MalformedError("'endpoints' has an element that is not [name, host, port]")
    return tuple((name, host, port) for name, host, port in found)


def decode_incarnation(entry: Entry) -> Incarnation:
    """Decodes the entry of a broker's last incarnation. Raises MalformedError."""
    fields = _read_fields(entry)
    process_id = _text(fields, "process_id") if "process_id" in fields else ""
    return Incarnation(
        _integer(fields, "epoch"), _text(fields, "directory_id"), _text(fields, "boot_id"), _kept(fields), process_id
    )


def decode_partition(entry: Entry) -> PartitionState:
    """Decodes the entry of a partition. Raises MalformedError, also if the replicas or the ISR are empty."""
    fields = _read_fields(entry)
    replicas = _integers(fields, "replicas")
    if not replicas:
        raise MalformedError("'replicas' is empty")
    isr = _members(fields, "isr")
    if not isr:
        raise MalformedError("'isr' is empty")
    leader = fields.get("leader")
    leader_id, leader_broker_epoch = (NO_LEADER, NO_BROKER_EPOCH) if leader is None else _member(leader, "leader")
    return PartitionState(
        replicas,
        leader_id,
        leader_broker_epoch,
        _integer(fields, "leader_epoch"),
        isr,
        _members(fields, "eligible") if "eligible" in fields else (),
        _integers(fields, "adding") if "adding" in fields else (),
        _integers(fields, "removing") if "removing" in fields else (),
        _integer(fields, "anew_in_epoch") if "anew_in_epoch" in fields else 0,
    )


def decode_topic(entry: Entry, topic_id: TopicId) -> TopicState:
    """Decodes the entry of a topic. Raises MalformedError."""
    fields = _read_fields(entry)
    return TopicState(
        topic_id,
        _text(fields, "name"),
        _integer(fields, "partition_count"),
        _texts(fields, "configs"),
        _integer(fields, "created_ms"),
        _integer(fields, "replicas_wanted") if "replicas_wanted" in fields else 0,
    )


def decode_name(entry: Entry) -> TopicId:
    """Decodes the entry of a topic name. Raises MalformedError."""
    return _topic_id(_text(_read_fields(entry), "topic_id"))


def decode_controller(entry: Entry) -> ControllerEntry:
    """Decodes the controller's entry. Raises MalformedError."""
    fields = _read_fields(entry)
    return ControllerEntry(_integer(fields, "broker_id"), _integer(fields, "broker_epoch"))


def decode_configs(entry: Entry) -> Mapping[str, str]:
    """Decodes the entry of dynamic settings. Raises MalformedError."""
    return _texts(_read_fields(entry), "configs")


def decode_acl(entry: Entry) -> AclBinding:
    """Decodes an ACL."""
    try:
        return acl_entries.decode_acl(entry.value)
    except ValueError as error:
        raise MalformedError(str(error)) from error


def decode_creating(entry: Entry) -> TopicCreation:
    """Decodes the entry of a topic that is being created. Raises MalformedError."""
    fields = _read_fields(entry)
    return TopicCreation(_text(fields, "name"), _member(fields.get("creator"), "creator"))


def decode_deleted(entry: Entry) -> DeletedTopic:
    """Decodes the entry of a deleted topic. Raises MalformedError."""
    fields = _read_fields(entry)
    return DeletedTopic(_text(fields, "name"), frozenset(_integers(fields, "brokers")))


def decode_failures(entry: Entry) -> FailedLogs:
    """Decodes the entry of failed logs. Raises MalformedError."""
    fields = _read_fields(entry)
    all_disk, by_topic = fields.get("all_disk"), fields.get("partitions")
    if not isinstance(all_disk, bool) or not isinstance(by_topic, dict):
        raise MalformedError("'all_disk' or 'partitions' is missing or of another type")
    partitions = {
        PartitionKey(_topic_id(topic_text), index)
        for topic_text in by_topic
        for index in _integers(by_topic, topic_text)
    }
    return FailedLogs(_integer(fields, "broker_epoch"), all_disk, frozenset(partitions))


# -- fields ---------------------------------------------------------------------------------------------------------


def _integer(fields: Mapping[str, Any], name: str, low: int = 0) -> int:
    found = fields.get(name)
    # isinstance accepts a bool as an int.
    if type(found) is not int or found < low:
        raise MalformedError(f"'{name}' is not an integer of at least {low}")
    return found


def _text(fields: Mapping[str, Any], name: str) -> str:
    found = fields.get(name)
    if not isinstance(found, str):
        raise MalformedError(f"'{name}' is not a string")
    return found


def _texts(fields: Mapping[str, Any], name: str) -> dict[str, str]:
    found = fields.get(name)
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise MalformedError(f"'{name}' is not an object of strings")
    return found


def _integers(fields: Mapping[str, Any], name: str) -> tuple[int, ...]:
    found = fields.get(name)
    if not isinstance(found, list):
        raise MalformedError(f"'{name}' is not a list")
    for number in found:
        if type(number) is not int or number < 0:
            raise MalformedError(f"'{name}' does not contain only non-negative integers")
    return tuple(found)


def _member(found: object, name: str) -> Member:
    if isinstance(found, list) and len(found) == 2:
        broker_id, broker_epoch = found
        if type(broker_id) is int and type(broker_epoch) is int and broker_id >= 0 and broker_epoch >= 0:
            return Member(broker_id, broker_epoch)
    raise MalformedError(f"'{name}' does not contain only pairs of broker id and broker epoch")


def _members(fields: Mapping[str, Any], name: str) -> tuple[Member, ...]:
    found = fields.get(name)
    if not isinstance(found, list):
        raise MalformedError(f"'{name}' is not a list")
    return tuple([_member(each, name) for each in found])


def _kept(fields: Mapping[str, Any]) -> RetainedSince:
    found = fields.get("kept")
    if not isinstance(found, dict):
        raise MalformedError("'kept' is not an object")
    return RetainedSince(_integer(found, "disk"), _integer(found, "cache"), _integer(found, "memory"))


def _topic_id(text: str) -> TopicId:
    try:
        return TopicId(UUID(text))
    except ValueError as error:
        raise MalformedError(f"{text!r} is not a topic id") from error
