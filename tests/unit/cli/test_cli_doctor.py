"""`ottla doctor` parses kernel files, and finds this machine able to run a broker."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ottla.cli import main
from ottla.cli.doctor.checks import Status, chosen_option
from ottla.cli.doctor.disk_checks import disk_checks, mount_of, nearest_existing
from ottla.cli.doctor.kernel_checks import device_interrupts, kernel_checks
from ottla.cli.doctor.software_checks import software_checks

MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
tmpfs /run tmpfs rw 0 0
/dev/vdb /srv/data xfs rw,nobarrier 0 0
/dev/vdc /srv/my\\040disk ext4 rw 0 0
"""

INTERRUPTS = """\
           CPU0       CPU1
  9:          0          4   IO-APIC   9-fasteoi   acpi
 24:        100        900   PCI-MSI  virtio0-req.0
NMI:       7777       7777   Non-maskable interrupts
"""


@pytest.mark.parametrize(
    ("path", "kind"), [("/var/lib", "ext4"), ("/run/x", "tmpfs"), ("/srv/data/a/b", "xfs"), ("/srv/my disk", "ext4")]
)
def test_the_mount_of_a_path(path: str, kind: str) -> None:
    mount = mount_of(Path(path), MOUNTS)
    assert mount is not None
    assert mount.kind == kind


def test_only_real_devices_are_counted() -> None:
    assert device_interrupts(INTERRUPTS) == [100, 904]
    assert device_interrupts("") == []


def test_the_kernels_way_to_mark_a_choice() -> None:
    assert chosen_option("always [madvise] never") == "madvise"
    assert chosen_option("none") == "none"


def test_the_disk_of_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    assert nearest_existing(directory) == tmp_path
    found = {check.name: check for check in disk_checks(directory)}
    assert "does not exist yet" in found["data directory"].value
    assert "p99" in found["sync latency"].value
    assert found["free space"].value
    assert not any(tmp_path.iterdir()), "the probe leaves nothing behind"


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator can write everywhere")
def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    found = {check.name: check for check in disk_checks(tmp_path)}
    assert found["data directory"].status is Status.bad


def test_every_warning_says_what_to_do(tmp_path: Path) -> None:
    for check in [*disk_checks(tmp_path), *kernel_checks(), *software_checks()]:
        assert check.name
        assert check.value
        assert check.status is Status.ok or check.advice


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--data", str(tmp_path), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is (code == 0)
    assert {check["group"] for check in report["checks"]} == {"disk", "kernel", "software"}
    assert {check["status"] for check in report["checks"]} <= {"ok", "warn", "bad"}


def test_a_configuration_file_of_kafka(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "server.properties"
    config.write_text("num.io.threads=8\nnum.partitions=3\nfoo=1\n")
    main(["doctor", "--data", str(tmp_path), "--config", str(config), "--json"])
    rows = [each for each in json.loads(capsys.readouterr().out)["checks"] if each["group"] == "settings"]
    assert [each["status"] for each in rows] == ["ok", "warn", "warn"]
    assert "num.io.threads" in rows[1]["advice"]


def test_every_setting_that_is_refused_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "server.properties"
    config.write_text("authorizer.class.name=x\nnum.partitions=3\nssl.engine.factory.class=x\n")
    assert main(["doctor", "--data", str(tmp_path), "--config", str(config), "--json"]) != 0
    rows = [each for each in json.loads(capsys.readouterr().out)["checks"] if each["group"] == "settings"]
    assert [(each["name"], each["status"]) for each in rows] == [
        ("server.properties, line 1", "bad"),
        ("server.properties, line 3", "bad"),
    ]


@pytest.mark.parametrize(("days", "status"), [(397, "ok"), (3, "warn")])
def test_the_expiry_of_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str], days: int, status: str) -> None:
    from ottla.net.private_authority import PrivateAuthority

    keys = tmp_path / "broker.pem"
    keys.write_text(PrivateAuthority.new().issue("broker-1", ["localhost"], days=days).pem)
    config = tmp_path / "server.properties"
    config.write_text(f"listeners=SSL://:9093\nssl.keystore.location={keys}\n")
    main(["doctor", "--data", str(tmp_path), "--config", str(config), "--json"])
    rows = [each for each in json.loads(capsys.readouterr().out)["checks"] if each["name"] == "certificate of SSL"]
    assert [each["status"] for each in rows] == [status]
