# Types for the compiled transports; without a compiler, transport.py runs as it is.

cimport cython

from ottla.sim.sockets cimport SimSocket
from ottla.sim.turns cimport Turns

cdef class SimTransport:
    cdef Turns _loop
    cdef SimSocket _sock
    cdef object _network
    cdef object _protocol
    cdef bint _is_buffered
    cdef object _context
    cdef object _out
    cdef Py_ssize_t _out_bytes
    cdef Py_ssize_t _high
    cdef Py_ssize_t _low
    cdef bint _is_writing_paused
    cdef bint _is_flush_due
    cdef bint _has_written_eof
    cdef bint _is_reading
    cdef bint _wants_reading
    cdef bint _has_read_eof
    cdef bint _is_look_due
    cdef bint _is_closing
    cdef bint _is_lost
    cdef object __weakref__

    @cython.locals(sock=SimSocket, limit=Py_ssize_t)
    cdef bint _read(self)
    cdef bint _may_read(self)
    cdef object _lose(self, error)
    cdef object _maybe_pause_writing(self)
