"""Writes `src/ottla/broker/wal_service/wal.pb` for the append stream's reflection. Run it when wal.proto changes."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "ottla" / "broker" / "wal_service" / "wal.proto"
TARGET = SOURCE.with_suffix(".pb")
NAME = "ottla/wal/v1/wal.proto"


def described() -> bytes:
    """Returns protoc's descriptor, under the name that importers use."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as directory:
        proto, target = Path(directory, NAME), Path(directory, "wal.pb")
        proto.parent.mkdir(parents=True)
        proto.write_bytes(SOURCE.read_bytes())
        if protoc.main(["protoc", f"-I{directory}", f"--descriptor_set_out={target}", NAME]):
            raise SystemExit("protoc rejected wal.proto")
        return target.read_bytes()


if __name__ == "__main__":
    TARGET.write_bytes(described())
    print(f"wrote {TARGET.relative_to(ROOT)}")
    sys.exit(0)
