"""One partition's log: segments, indexes, the tail cache, recovery, retention; and the journal that they share."""
