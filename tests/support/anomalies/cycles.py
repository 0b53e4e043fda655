"""A short cycle of a directed graph."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)

STARTS_MAX = 20


def short_cycle(successors: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """Returns the nodes of a cycle, each once, or nothing if there is none. It is the shortest one through any of the
    first nodes of the cycle that was found first."""
    predecessors: defaultdict[Node, set[Node]] = defaultdict(set)
    for node, following in successors.items():
        for each in following:
            predecessors[each].add(node)
    try:
        TopologicalSorter(predecessors).prepare()
    except CycleError as error:
        found: list[Node] = error.args[1][:-1]
        return min((_cycle_through(node, successors) for node in found[:STARTS_MAX]), key=len)
    return []


def _cycle_through(start: Node, successors: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """Returns the shortest cycle through a node that is on one."""
    came_from: dict[Node, Node] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for following in successors.get(node, ()):
            if following == start:
                path = [node]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if following not in came_from:
                came_from[following] = node
                queue.append(following)
    raise ValueError(f"{start} is on no cycle")
