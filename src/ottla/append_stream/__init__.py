"""The gRPC front door: a write-ahead log's append stream (`wal.proto`). It calls broker/, never a second write path."""
