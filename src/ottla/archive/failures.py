"""The errors of jobs, as sentences for the user who started them."""

from __future__ import annotations


class PipelineError(Exception):
    """A job cannot do what was requested. The message says why and what to do."""


class LostOffsetsError(PipelineError):
    """Records were deleted from the broker before a job read them."""


class BadRecordsError(PipelineError):
    """A change log has records that are not changes of a table."""


class DamagedError(PipelineError):
    """An archive or a table is not as the job left it."""
