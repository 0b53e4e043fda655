"""The faults of a siege. A fault begins, lasts for a while and ends; it names the hosts that it needs exclusively."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tests.processes.siege.cluster import CLIENTS, MEMORY, POWER, SESSION_MS, Cluster
from tests.processes.siege.node import Node
from tests.processes.siege.store import HOST

SESSION_S = SESSION_MS / 1000
STORE = "store"


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    detail: str
    hold_s: float
    begin: Callable[[], None]
    end: Callable[[], None]
    takes: frozenset[str]
    """Hosts that no other fault may use at the same time."""
    destroys: bool = False
    """Whether a replica of at least one class is lost. Never two at a time, since only one loss is tolerated."""


Make = Callable[[Cluster, Random, Sequence[Node]], Fault]


def _kill(kind: str, count: int | None) -> Make:
    def make(cluster: Cluster, chance: Random, free: Sequence[Node]) -> Fault:
        nodes = list(free) if count is None else chance.sample(free, count)

        def begin() -> None:
            for node in nodes:
                node.kill()

        def end() -> None:
            for node in nodes:
                node.start()

        return _of(kind, nodes, chance.uniform(0.1, 1.5 * SESSION_S), begin, end)

    return make


def _pause(kind: str, least_s: float, most_s: float) -> Make:
    def make(cluster: Cluster, chance: Random, free: Sequence[Node]) -> Fault:
        node = chance.choice(free)
        return _of(kind, [node], chance.uniform(least_s, most_s), node.pause, node.resume)

    return make


def _of(
    kind: str,
    nodes: Sequence[Node],
    hold_s: float,
    begin: Callable[[], None],
    end: Callable[[], None],
    *,
    destroys: bool = False,
) -> Fault:
    hosts = [node.host for node in nodes]
    return Fault(kind, " ".join(hosts), hold_s, begin, end, frozenset(hosts), destroys)


def _wipe(cluster: Cluster, chance: Random, free: Sequence[Node]) -> Fault:
    node = chance.choice(free)

    def begin() -> None:
        node.kill()
        node.disk.wipe()

    return _of("wiped disk", [node], chance.uniform(0.1, 1.5 * SESSION_S), begin, node.start, destroys=True)


def _power_cut(cluster: Cluster, chance: Random, free: Sequence[Node]) -> Fault:
    """Begins with a restart, after which the broker keeps all unsynced data in its own memory."""
    node = chance.choice(free)

    def begin() -> None:
        node.kill()
        node.start(volatile=True)

    def end() -> None:
        node.kill()
        node.start()

    return _of("power cut", [node], chance.uniform(5.0, 8.0), begin, end, destroys=True)


def _lost_page_cache(kind: str, count: int | None) -> Make:
    """The page caches and unsynced names of the brokers' file systems are lost. For topics of the class `disk` only:
    the machine did not boot again, so that a broker takes its logs of the class `cache` for complete."""

    def make(cluster: Cluster, chance: Random, free: Sequence[Node]) -> Fault:
        nodes = list(free) if count is None else chance.sample(free, count)

        def begin() -> None:
            for node in nodes:
                node.kill()
            for node in nodes:
                node.disk.cut_power()

        def end() -> None:
            for node in nodes:
                node.start()

        return _of(kind, nodes, chance.uniform(0.1, 1.5 * SESSION_S), begin, end)

    return make


def _full_disk(cluster: Cluster, chance: Random, free: Sequence[Node]) -> Fault:
    node = chance.choice(free)

    def begin() -> None:
        """A broker on a new disk refuses a directory with foreign files, so it begins with its own first."""
        if node.has_data(SESSION_S):
            node.disk.fill()

    return _of("full disk", [node], chance.uniform(5.0, 8.0), begin, node.disk.free)


def _slow_disk(cluster: Cluster, chance: Random, free: Sequence[Node]) -> Fault:
    node, sync_ms = chance.choice(free), chance.choice([20, 50, 100])
    hosts = frozenset([node.host])
    detail = f"{node.host}, {sync_ms} ms a sync"
    return Fault("slow disk", detail, 8.0, lambda: node.slow_down(sync_ms), node.speed_up, hosts)


def _store_stopped(cluster: Cluster, chance: Random, free: Sequence[Node]) -> Fault:
    hold_s = chance.uniform(1.0, 2 * SESSION_S)
    return Fault("store stopped", "", hold_s, cluster.store.stop, cluster.store.start, frozenset([STORE]))


Links = list[tuple[str, str]]


def _cut(kind: str, links: Callable[[str, list[str], Random], Links]) -> Make:
    """`links` selects the links of one broker to cut, given the other brokers."""

    def make(cluster: Cluster, chance: Random, free: Sequence[Node]) -> Fault:
        node = chance.choice(free)
        others = [one.host for one in cluster.nodes if one is not node]
        chosen = links(node.host, others, chance)

        def begin() -> None:
            for source, target in chosen:
                cluster.network.cut(source, target)

        def end() -> None:
            for source, target in chosen:
                cluster.network.mend(source, target)

        return _of(kind, [node], chance.uniform(1.0, 2 * SESSION_S), begin, end)

    return make


def _both_ways(host: str, others: list[str]) -> Links:
    return [(host, other) for other in others] + [(other, host) for other in others]


def _one_way(host: str, others: list[str], chance: Random) -> Links:
    outwards = chance.random() < 0.5
    return [(host, other) if outwards else (other, host) for other in others]


def _one_link(host: str, others: list[str], chance: Random) -> Links:
    return _both_ways(host, [chance.choice(others)])


FAULTS: dict[str, Make] = {
    "kill": _kill("kill", 1),
    "kill of two": _kill("kill of two", 2),
    "kill of all": _kill("kill of all", None),
    "pause": _pause("pause", 0.3, 0.8 * SESSION_S),
    "long pause": _pause("long pause", 1.2 * SESSION_S, 2.5 * SESSION_S),
    "power cut": _power_cut,
    "lost page cache": _lost_page_cache("lost page cache", 1),
    "power cut of all": _lost_page_cache("power cut of all", None),
    "wiped disk": _wipe,
    "slow disk": _slow_disk,
    "full disk": _full_disk,
    "store stopped": _store_stopped,
    "cut from brokers": _cut("cut from brokers", lambda host, others, _: _both_ways(host, others)),
    "one link cut": _cut("one link cut", _one_link),
    "one way to brokers": _cut("one way to brokers", _one_way),
    "cut from clients": _cut("cut from clients", lambda host, _, __: _both_ways(host, [CLIENTS])),
    "cut from all": _cut("cut from all", lambda host, others, _: _both_ways(host, [*others, CLIENTS, HOST])),
    "cut from store": _cut("cut from store", lambda host, _, __: _both_ways(host, [HOST])),
}


ENDS_PROCESSES = {"kill", "power cut", "wiped disk"}
ENDS_SEVERAL = {"kill of two", "kill of all"}
LOSES_PAGES = {"lost page cache", "power cut of all"}


def destroys(fault: Fault, cluster: Cluster) -> bool:
    """Returns whether a fault destroys a replica of this cluster's topics. `memory` replicas live in processes."""
    return fault.destroys or (cluster.shape.classes == MEMORY and fault.kind in ENDS_PROCESSES)


def possible(cluster: Cluster) -> list[str]:
    """Returns the kinds of faults that this machine and this store allow."""
    kinds = list(FAULTS)
    if not cluster.can_cut:
        kinds = [kind for kind in kinds if not kind.startswith(("cut", "one"))]
    if not cluster.store.is_remote:
        kinds = [kind for kind in kinds if kind != "cut from store"]
    if cluster.shape.classes == MEMORY:
        kinds = [kind for kind in kinds if kind not in ENDS_SEVERAL]
    if cluster.shape.classes != POWER or not cluster.can_cut_power:
        kinds = [kind for kind in kinds if kind not in LOSES_PAGES]
    if not cluster.can_fill:
        kinds.remove("full disk")
    if cluster.slow_syncs.why_not:
        kinds.remove("slow disk")
    return kinds
