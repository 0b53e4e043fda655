"""What can go wrong with a log. Each says whether the records are in it."""

from __future__ import annotations

from ottla.wire.wal_append import Code, WalFailure


class WalError(Exception):
    """The base of all. The message is for a person."""


class FencedError(WalError):
    """Another writer has taken the log. These records are not in it, and this handle will never write again."""

    def __init__(self, message: str, epoch: int = 0) -> None:
        super().__init__(message)
        self.epoch = epoch
        """Of the writer that has it now; 0 if that is not known."""


class UnexpectedEndError(WalError):
    """The log does not end where the append expected it. The records are not in it."""

    def __init__(self, message: str, end: int) -> None:
        super().__init__(message)
        self.end = end
        """Where it ended: committed, so it will never end before that again."""


class LogNotFoundError(WalError):
    """There is no such topic or partition."""


class TrimmedError(WalError):
    """What was to be read is gone."""

    def __init__(self, message: str, start: int) -> None:
        super().__init__(message)
        self.start = start
        """Where the log begins now."""


class UnavailableError(WalError):
    """No leader could be reached in the time that was given. Appends that fail with this are not in the log."""


class UnknownOutcomeError(WalError):
    """The append was sent, and no answer came in the time that was given: it may be in the log or not."""


class TooLargeError(WalError):
    """More bytes than the log takes at once (max.message.bytes). The records are not in it."""


class TooMuchInFlightError(WalError):
    """So much waits for its acknowledgement that the append was not taken: wait with `ready`, or for some futures."""


class LogClosedError(WalError):
    """The handle was closed."""


class InvalidRequestError(WalError):
    """The broker will never do this."""


def error_of(failure: WalFailure) -> WalError:
    """As a program sees what the service said."""
    message = failure.message or failure.code.name.lower().replace("_", " ")
    match failure.code:
        case Code.FENCED:
            return FencedError(message, failure.epoch)
        case Code.UNKNOWN_WRITER:
            return FencedError(message)
        case Code.UNEXPECTED_END:
            return UnexpectedEndError(message, failure.offset)
        case Code.TRIMMED:
            return TrimmedError(message, failure.offset)
        case Code.NOT_FOUND:
            return LogNotFoundError(message)
        case Code.TOO_LARGE:
            return TooLargeError(message)
        case Code.INVALID:
            return InvalidRequestError(message)
        case _:
            return UnavailableError(message)
