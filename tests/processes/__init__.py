"""Real broker processes that are killed, starved of disk space, damaged and started twice."""
