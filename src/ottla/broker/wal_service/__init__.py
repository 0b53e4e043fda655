"""The gRPC server of the append stream (`wal.proto`). It calls broker/ and has no write path of its own."""
