from typing import TypeVar

from ottla.broker.partition.pending_reply import PlainPendingReply

T = TypeVar("T")

class PendingReply(PlainPendingReply[T]): ...
