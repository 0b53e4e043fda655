"""The exceptions of failed transactions: what happened, and what to do now."""

from __future__ import annotations

from ottla.client.errors import (
    BrokerRefusedError,
    ClientError,
    CommitFailedError,
    DeliveryError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionUnresolvedError,
)
from ottla.client.groups.offsets import GONE_ON
from ottla.client.producer.settings import ProducerSettings


def fenced(settings: ProducerSettings, refusal: BrokerRefusedError, *, unsure: bool = False) -> ProducerFencedError:
    """The producer was fenced. `unsure` means that an earlier commit request was sent and its reply was lost."""
    message = (
        f'transactional id "{settings.transactional_id}": another producer has started with it, or the '
        f"transaction took longer than transaction_timeout_ms={settings.transaction_timeout_ms} and was "
        "aborted. This producer has stopped. If the other instance should continue, end this one; otherwise "
        "create a new producer"
    )
    if unsure:
        message += ". A response to the commit was lost, so the transaction may already be committed"
    return ProducerFencedError(f"{message} ({refusal})", refusal.error, may_be_written=unsure)


def unresolved(settings: ProducerSettings, failure: ClientError, *, commit: bool) -> TransactionUnresolvedError:
    """The outcome of the transaction is unknown."""
    known = "it is committed or aborted as a whole" if commit else "it will be aborted after its timeout"
    message = (
        f'transactional id "{settings.transactional_id}": the outcome of the transaction is unknown; {known} '
        f"({failure}). This producer has stopped; create a new one"
    )
    return TransactionUnresolvedError(message, may_be_written=commit)


def aborted(cause: ClientError | None, what_now: str) -> TransactionAbortedError:
    """The transaction was aborted because of `cause`."""
    error = cause.error if isinstance(cause, DeliveryError | BrokerRefusedError) else None
    return TransactionAbortedError(f"the transaction was aborted, {what_now}: {cause}", error)


def stopped(failure: ClientError, what: str) -> DeliveryError:
    """The producer has stopped because of `failure`."""
    if isinstance(failure, DeliveryError):
        return failure
    error = failure.error if isinstance(failure, BrokerRefusedError) else None
    return DeliveryError(f"{what} failed permanently, this producer has stopped: {failure}", error)


def offsets_refused(failure: ClientError, group_id: str) -> ClientError:
    """The offsets were refused; a group that continued without the consumer gets a clearer message."""
    if not isinstance(failure, BrokerRefusedError) or failure.error not in GONE_ON:
        return failure
    message = (
        f'group "{group_id}" has rebalanced without this consumer, so another one may have read the same '
        "records; this transaction can only be aborted. The next fetch joins the group again"
    )
    return CommitFailedError(failure.error, f"{message} ({failure})")
