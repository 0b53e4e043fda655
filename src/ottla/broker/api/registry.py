"""The explicit list of this broker's APIs. It generates the ApiVersions reply and docs/reference/protocol.md.

python -m ottla.broker.api.registry > docs/reference/protocol.md
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ottla.broker.api import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    replica_acknowledged,
    replica_wait_over,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from ottla.broker.api.api import Api, Context, Reply

MODULES: list[ModuleType] = [
    produce,
    fetch,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    find_coordinator,
    join_group,
    heartbeat,
    leave_group,
    sync_group,
    describe_groups,
    list_groups,
    sasl_handshake,
    api_versions,
    create_topics,
    delete_topics,
    delete_records,
    init_producer_id,
    offset_for_leader_epoch,
    add_partitions_to_txn,
    add_offsets_to_txn,
    end_txn,
    write_txn_markers,
    txn_offset_commit,
    describe_acls,
    create_acls,
    delete_acls,
    describe_configs,
    alter_configs,
    describe_log_dirs,
    sasl_authenticate,
    create_partitions,
    delete_groups,
    elect_leaders,
    incremental_alter_configs,
    alter_partition_reassignments,
    list_partition_reassignments,
    offset_delete,
    describe_user_scram_credentials,
    alter_user_scram_credentials,
    describe_cluster,
    describe_producers,
    describe_transactions,
    list_transactions,
    consumer_group_heartbeat,
    consumer_group_describe,
    describe_topic_partitions,
]
"""In order of their keys."""


@dataclass(frozen=True, slots=True)
class Handler:
    """An API with its handler function, of which exactly one is set."""

    api: Api
    handle: Callable[[Context, Any], Awaitable[object]] | None
    handle_raw: Callable[[Context, memoryview], Reply] | None


BETWEEN_BROKERS: list[ModuleType] = [replica_acknowledged, replica_wait_over]
"""Ottla's own APIs between brokers, which are not announced to clients."""

HANDLERS: dict[int, Handler] = {
    module.API.key: Handler(module.API, getattr(module, "handle", None), getattr(module, "handle_raw", None))
    for module in [*MODULES, *BETWEEN_BROKERS]
}
APIS: list[Api] = [module.API for module in MODULES]


def render_protocol_table() -> str:
    """Renders `docs/reference/protocol.md` from the headers of the handler modules."""
    lines = [
        "# The Kafka protocol in Ottla",
        "",
        "Generated from `src/ottla/broker/api` by `python -m ottla.broker.api.registry`; do not edit.",
        "",
        "Requests for other APIs or versions fail with UNSUPPORTED_VERSION.",
        "",
        "| API | key | versions | not implemented |",
        "|---|---|---|---|",
    ]
    for module in MODULES:
        api: Api = module.API
        low, high = api.versions
        versions = f"v{low}" if low == high else f"v{low}-{high}"
        lines.append(f"| {api.name} | {api.key} | {versions} | {_section(module, 'Not implemented')} |")
    for module in MODULES:
        lines += ["", f"## {module.API.name}", "", f"Behaviour: {_section(module, 'Behaviour')}"]
        lines += ["", f"Versions: {_section(module, 'Versions')}"]
    return "\n".join(lines) + "\n"


def _section(module: ModuleType, title: str) -> str:
    """Returns a section of the module's docstring, from its title to the next one, as one line."""
    text = (module.__doc__ or "").partition(f"{title}:")[2]
    for following in ("\n\n", "Behaviour:", "Versions:", "Not implemented:"):
        text = text.partition(following)[0]
    sentence = " ".join(text.split())
    assert sentence, f"{module.__name__} has no section {title!r}"
    return sentence


if __name__ == "__main__":
    print(render_protocol_table(), end="")
