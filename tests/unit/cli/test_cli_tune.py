"""`ottla tune` on a copy of /proc and /sys: what it proposes, changes, records and restores."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from ottla.cli import main
from ottla.cli.doctor.checks import Status
from ottla.cli.doctor.tuning_checks import tuning_checks
from ottla.cli.tune.coalescing import adaptive_path, read_adaptive, write_adaptive
from ottla.cli.tune.plan import GROUPS, plan
from ottla.cli.tune.settings import Setting

SYSTEM = {
    "proc/sys/fs/nr_open": "1048576",
    "proc/sys/fs/file-max": "9000000000",
    "proc/sys/fs/aio-max-nr": "65536",
    "proc/sys/vm/swappiness": "60",
    "proc/sys/vm/dirty_background_bytes": "0",
    "proc/sys/vm/dirty_background_ratio": "10",
    "proc/sys/vm/dirty_bytes": "0",
    "proc/sys/vm/dirty_ratio": "20",
    "proc/sys/net/core/somaxconn": "128",
    "proc/sys/net/ipv4/tcp_max_syn_backlog": "65536",
    "proc/sys/net/ipv4/tcp_slow_start_after_idle": "1",
    "proc/sys/net/ipv4/tcp_wmem": "4096\t16384\t4194304",
    "proc/1/comm": "init",
    "proc/irq/30/smp_affinity_list": "0-3",
    "proc/irq/31/smp_affinity_list": "0-3",
    "proc/irq/40/smp_affinity_list": "0",
    "proc/irq/41/smp_affinity_list": "2",
    "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_available_governors": "performance powersave",
    "sys/devices/system/cpu/cpu1/online": "1",
    "sys/devices/pci0/virtio1/msi_irqs/30": "msi",
    "sys/devices/pci0/virtio1/msi_irqs/31": "msi",
    "sys/devices/pci0/nvme0/msi_irqs/40": "msi",
    "sys/devices/pci0/nvme0/msi_irqs/41": "msi",
}
QUEUE = {"rotational": "0", "scheduler": "mq-deadline kyber [bfq] none", "nomerges": "0"}


class System:
    """A directory that looks like /proc and /sys of a machine with a network card and a data disk."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.record = directory / "state" / "tune.json"
        self.data = directory / "data"
        self.data.mkdir()
        device = os.stat(self.data).st_dev
        self.queue = f"sys/dev/block/{os.major(device)}:{os.minor(device)}/queue"
        files = SYSTEM | {f"{self.queue}/{name}": value for name, value in QUEUE.items()}
        for name, value in files.items():
            self.set(name, value)
        for kind, name, target in (("net", "ottla0", "virtio1"), ("block", "nvme0n1", "nvme0")):
            link = self.root / "sys/class" / kind / name
            link.mkdir(parents=True)
            (link / "device").symlink_to(self.root / "sys/devices/pci0" / target)

    def set(self, name: str, value: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")

    def get(self, name: str) -> str:
        return (self.root / name).read_text().strip()

    def settings(self) -> dict[str, Setting]:
        return {each.path.lstrip("/"): each for each in plan(self.root, self.root / self.queue)}

    def tune(self, *options: str) -> int:
        places = ["--root", self.root, "--record", self.record, "--data", self.data]
        return main(["tune", *map(str, places), *options])


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_the_settings_of_a_machine(system: System) -> None:
    wanted = {path: each.wanted for path, each in system.settings().items() if not each.is_tuned}
    assert wanted == {
        f"{system.queue}/scheduler": "none",
        f"{system.queue}/nomerges": "2",
        "proc/irq/30/smp_affinity_list": "0",
        "proc/irq/31/smp_affinity_list": "1",
        "proc/sys/fs/aio-max-nr": "1048576",
        "proc/sys/vm/swappiness": "1",
        "proc/sys/vm/dirty_background_bytes": "268435456",
        "proc/sys/vm/dirty_bytes": "1073741824",
        "sys/kernel/mm/transparent_hugepage/enabled": "madvise",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
        "proc/sys/net/core/somaxconn": "4096",
        "proc/sys/net/ipv4/tcp_slow_start_after_idle": "0",
        "proc/sys/net/ipv4/tcp_wmem": "4096 16384 16777216",
    }
    assert {each.group for each in system.settings().values()} == set(GROUPS)
    assert all(each.reason for each in system.settings().values())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("proc/sys/vm/swappiness", "0"),
        ("proc/sys/net/core/somaxconn", "65535"),
        ("proc/sys/vm/dirty_bytes", "1000000"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"),
        ("proc/sys/net/ipv4/tcp_wmem", "4096 16384 33554432"),
    ],
)
def test_a_value_that_is_better_already_stays(system: System, name: str, value: str) -> None:
    system.set(name, value)
    assert system.settings()[name].is_tuned


def test_a_disk_that_turns_keeps_an_order_by_deadline(system: System) -> None:
    system.set(f"{system.queue}/rotational", "1")
    assert system.settings()[f"{system.queue}/scheduler"].wanted == "mq-deadline"
    assert f"{system.queue}/nomerges" not in system.settings()


def test_interrupts_are_left_to_irqbalance(system: System) -> None:
    system.set("proc/77/comm", "irqbalance")
    assert not any(path.startswith("proc/irq") for path in system.settings())


def test_what_a_system_does_not_have_is_left_out(tmp_path: Path) -> None:
    assert plan(tmp_path, None) == []


def test_nothing_changes_without_being_asked(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    assert system.tune() == 0
    assert "16 settings, 13 to change: ottla tune --apply" in capsys.readouterr().out
    assert system.get("proc/sys/vm/swappiness") == "60"
    assert not system.record.exists()


def test_apply_and_undo(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: each.value for path, each in system.settings().items()}
    assert system.tune("--apply") == 0
    assert all(each.is_tuned for each in system.settings().values())
    assert "13 settings changed" in capsys.readouterr().err
    assert system.tune("--apply") == 0
    assert "0 settings changed" in capsys.readouterr().err
    # As the kernel does when the other one is written.
    for ratio in ("dirty_background_ratio", "dirty_ratio"):
        system.set(f"proc/sys/vm/{ratio}", "0")
    assert system.tune("--undo") == 0
    assert system.get("proc/sys/vm/dirty_background_ratio") == "10"
    assert system.get("proc/sys/vm/dirty_ratio") == "20"
    bytes_of_kernel = {"proc/sys/vm/dirty_background_bytes", "proc/sys/vm/dirty_bytes"}
    after = {path: each.value for path, each in system.settings().items()}
    assert {path: after[path] for path in before.keys() - bytes_of_kernel} == {
        path: before[path] for path in before.keys() - bytes_of_kernel
    }
    assert not system.record.exists()


def test_a_second_apply_keeps_the_first_values(system: System) -> None:
    assert system.tune("--apply", "--only", "swap") == 0
    system.set("proc/sys/vm/swappiness", "30")
    assert system.tune("--apply") == 0
    assert system.tune("--undo") == 0
    assert system.get("proc/sys/vm/swappiness") == "60"


def test_only_one_group(system: System) -> None:
    assert system.tune("--apply", "--only", "swap", "--only", "huge-pages") == 0
    assert [path for path, each in system.settings().items() if each.group in ("swap", "huge-pages")] == [
        "proc/sys/vm/swappiness",
        "sys/kernel/mm/transparent_hugepage/enabled",
    ]
    assert system.get("proc/sys/vm/swappiness") == "1"
    assert system.get("proc/sys/net/core/somaxconn") == "128"


def test_a_setting_that_cannot_be_changed_does_not_stop_the_others(
    system: System, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everything, so the refusal is one of the kernel: a value that it does not keep."""
    import ottla.cli.tune.changes as changes

    def write(root: Path, path: str, value: str) -> None:
        if path.endswith("swappiness"):
            raise OSError(errno.EROFS, "Read-only file system")
        if path.endswith("irq/31/smp_affinity_list"):
            raise OSError(errno.EPERM, "Operation not permitted")
        if not path.endswith("aio-max-nr"):
            (root / path.lstrip("/")).write_text(value)

    monkeypatch.setattr(changes, "write_value", write)
    assert system.tune("--apply", "--json") == 1
    captured = capsys.readouterr()
    outcomes = json.loads(captured.out)
    assert [each["setting"] for each in outcomes if each["note"]] == ["/proc/irq/31/smp_affinity_list"]
    errors = {each["setting"]: each["error"] for each in outcomes if each["error"]}
    assert errors == {
        "/proc/sys/vm/swappiness": "Read-only file system",
        "/proc/sys/fs/aio-max-nr": "the kernel keeps 65536",
    }
    assert "2 settings could not be changed" in captured.err
    assert system.get("proc/sys/net/core/somaxconn") == "4096"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2, "values": {}}', '{"version": 1, "values": {"a": 1}}'])
def test_a_damaged_record_is_not_used(system: System, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    system.record.parent.mkdir()
    system.record.write_text(text)
    for option in ("--apply", "--undo"):
        assert system.tune(option) == 1
        assert "is not a record of `ottla tune`" in capsys.readouterr().err
    assert system.record.read_text() == text
    assert system.get("proc/sys/vm/swappiness") == "60"


@pytest.mark.parametrize("options", [("--apply", "--undo"), ("--undo", "--only", "swap"), ("--only", "nonsense")])
def test_wrong_options_change_nothing(system: System, options: tuple[str, ...]) -> None:
    assert system.tune(*options) == 1
    assert system.get("proc/sys/vm/swappiness") == "60"


def test_the_doctor_reports_what_is_not_tuned(system: System) -> None:
    (found,) = tuning_checks(system.data, system.root)
    assert found.status is Status.warn
    assert found.value.startswith("13 of 16 settings are not tuned: disk, interrupts, limits")
    assert system.tune("--apply") == 0
    (found,) = tuning_checks(system.data, system.root)
    assert found.status is Status.ok


def test_a_card_without_coalescing() -> None:
    """The loopback device exists everywhere and has none."""
    assert read_adaptive(adaptive_path("lo")) is None
    with pytest.raises(OSError, match=r".+"):
        write_adaptive(adaptive_path("lo"), "1")
    with pytest.raises(OSError, match="unknown setting"):
        write_adaptive("ethtool:lo/other", "1")
