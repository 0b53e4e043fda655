"""Between brokers: a follower asks its leader to answer the fetch that waits on this connection. No body, no reply.

What a follower wants to fetch changes while its request waits, and replies keep the order of requests: without this
message it would have to wait as well, or to give up the connection.
"""

from __future__ import annotations

API_KEY = 20_001
