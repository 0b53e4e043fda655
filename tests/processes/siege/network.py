"""A private network for a siege: hosts are network namespaces behind one router, which can drop forwarded packets.

A cut is silent, as on a real network: packets are dropped, not rejected. It has a direction. Without root there are no
namespaces: all hosts are this machine, and cuts are left out.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWNET = 0x40000000
FIRST_RULE = 100


class CannotError(Exception):
    """An operation that this machine does not allow. Says which."""


def command(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Network:
    """Hosts by name, each with an address. `enter` moves this process and its children to one of them."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._prefix = f"siege{os.getpid()}"
        self._router = f"{self._prefix}-router"
        self._numbers = {host: number for number, host in enumerate(hosts, 1)}
        self._made: list[str] = []
        self._cuts: dict[tuple[str, str], int] = {}
        self._rules = FIRST_RULE
        try:
            self._make(self._router)
            command("nsenter", f"--net=/run/netns/{self._router}", "sysctl", "-qw", "net.ipv4.ip_forward=1")
            for host in hosts:
                self._connect(host)
        except BaseException:
            self.close()
            raise

    def _make(self, name: str) -> None:
        command("ip", "netns", "add", name)
        self._made.append(name)
        command("ip", "-n", name, "link", "set", "lo", "up")

    def _connect(self, host: str) -> None:
        name, number = self._namespace(host), self._numbers[host]
        self._make(name)
        link = f"to{number}"
        command("ip", "link", "add", link, "netns", self._router, "type", "veth", "peer", "name", "eth0", "netns", name)
        command("ip", "-n", self._router, "addr", "add", f"10.213.{number}.254/24", "dev", link)
        command("ip", "-n", self._router, "link", "set", link, "up")
        command("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        command("ip", "-n", name, "link", "set", "eth0", "up")
        command("ip", "-n", name, "route", "add", "default", "via", f"10.213.{number}.254")

    def _namespace(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def address(self, host: str) -> str:
        return f"10.213.{self._numbers[host]}.1"

    def on(self, host: str, words: Sequence[str]) -> list[str]:
        """Returns the command that runs `words` on a host, in the same process."""
        return ["nsenter", f"--net=/run/netns/{self._namespace(host)}", *words]

    def enter(self, host: str) -> None:
        """Moves this process to a host. Call it before threads are started."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/run/netns/{self._namespace(host)}").open() as file:
            if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
                raise CannotError(f"setns: {os.strerror(ctypes.get_errno())}")

    def cut(self, source: str, target: str) -> None:
        """Drops packets from `source` to `target`, in that direction only."""
        if (source, target) in self._cuts:
            return
        self._rules += 1
        self._cuts[source, target] = self._rules
        self._rule("add", source, target, self._rules)

    def mend(self, source: str, target: str) -> None:
        number = self._cuts.pop((source, target), None)
        if number is not None:
            self._rule("del", source, target, number)

    def mend_all(self) -> None:
        for source, target in list(self._cuts):
            self.mend(source, target)

    def _rule(self, verb: str, source: str, target: str, number: int) -> None:
        where = ["from", self.address(source), "to", self.address(target)]
        command("ip", "-n", self._router, "rule", verb, "pref", str(number), *where, "blackhole")

    def close(self) -> None:
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        self._made.clear()


class OneHost:
    """A substitute for a network without root."""

    def __init__(self, hosts: Sequence[str]) -> None:
        pass

    def address(self, host: str) -> str:
        return "127.0.0.1"

    def on(self, host: str, words: Sequence[str]) -> list[str]:
        return list(words)

    def enter(self, host: str) -> None:
        pass

    def cut(self, source: str, target: str) -> None:
        raise CannotError("links cannot be cut without network namespaces")

    def mend(self, source: str, target: str) -> None:
        pass

    def mend_all(self) -> None:
        pass

    def close(self) -> None:
        pass
