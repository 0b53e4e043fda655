"""Between brokers: a follower asks its leader to answer the fetch that is parked on this connection. No body, no reply.

The set of partitions that a follower wants to fetch changes while its request is parked, and replies keep the order of
requests. Without this message the change would have to wait, or the follower would have to close the connection.
"""

from __future__ import annotations

API_KEY = 20_001
