"""What a job refuses to do, in a sentence for the person who started it."""

from __future__ import annotations


class PipelineError(Exception):
    """A job cannot do what it was asked. The message says why and what to do."""


class LostOffsetsError(PipelineError):
    """Records are gone from the broker before a job has read them."""


class BadRecordsError(PipelineError):
    """A change log has records that say nothing about a table."""


class DamagedError(PipelineError):
    """An archive or a table is not as the job left it."""
