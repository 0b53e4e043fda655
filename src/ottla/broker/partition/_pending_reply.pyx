# cython: language_level=3
"""A reply that is not ready yet, compiled. `pending_reply` describes it, and has the pure Python version."""

cimport cython

from asyncio import CancelledError, InvalidStateError, get_running_loop


@cython.final
cdef class PendingReply:
    cdef object _reply
    cdef object _error
    cdef object _on_ready
    cdef public object on_end

    def __init__(self, on_end=None):
        self.on_end = on_end

    @classmethod
    def __class_getitem__(cls, item):
        return cls

    def done(self):
        return self._reply is not None or self._error is not None

    def result(self):
        if self._reply is None:
            raise self._error if self._error is not None else InvalidStateError
        return self._reply

    def complete(self, reply not None):
        if self._reply is None and self._error is None:
            self._reply = reply
            self._end()

    def fail(self, error not None):
        if self._reply is None and self._error is None:
            self._error = error
            self._end()

    def cancel(self):
        self._on_ready = None
        self.fail(CancelledError())

    def when_ready(self, callback):
        self._on_ready = callback

    cdef int _end(self) except -1:
        if self.on_end is not None:
            self.on_end()
        if self._on_ready is not None:
            self._on_ready(self)
        return 0

    def __await__(self):
        if self._reply is None and self._error is None:
            woken = get_running_loop().create_future()
            self._on_ready = lambda _: None if woken.done() else woken.set_result(None)
            yield from woken
        return self.result()
