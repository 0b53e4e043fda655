"""Errors of a log. Each states whether the records are in the log."""

from __future__ import annotations

from ottla.protocol.wire.wal_append import Code, WalFailure


class WalError(Exception):
    """Base class of all errors. The message is meant for a person."""


class FencedError(WalError):
    """Another writer has fenced this one. The records are not in the log, and this handle can never write again."""

    def __init__(self, message: str, epoch: int = 0) -> None:
        super().__init__(message)
        self.epoch = epoch
        """Epoch of the writer that holds the log now; 0 if it is not known."""


class UnexpectedEndError(WalError):
    """The log does not end where the append expected. The records are not in it."""

    def __init__(self, message: str, end: int) -> None:
        super().__init__(message)
        self.end = end
        """The actual end of the log. It is committed, so the log will never end before it again."""


class LogNotFoundError(WalError):
    """The topic or partition does not exist."""


class TrimmedError(WalError):
    """The records to read have been removed."""

    def __init__(self, message: str, start: int) -> None:
        super().__init__(message)
        self.start = start
        """The start of the log now."""


class UnavailableError(WalError):
    """No leader could be reached in time. Appends that fail with this error are not in the log."""


class UnknownOutcomeError(WalError):
    """The append was sent, but no reply arrived in time: the records may or may not be in the log."""


class TooLargeError(WalError):
    """The append exceeds what the log accepts at once (max.message.bytes). The records are not in the log."""


class TooMuchInFlightError(WalError):
    """Too many bytes are unacknowledged, so the append was not accepted. Wait with `ready`, or for some of
    the futures."""


class LogClosedError(WalError):
    """The handle was closed."""


class InvalidRequestError(WalError):
    """The broker will never accept this request."""


def error_of(failure: WalFailure) -> WalError:
    """Converts a failure reported by the service to the error that the program sees."""
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
