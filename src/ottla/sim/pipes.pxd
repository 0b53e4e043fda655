# Types for the compiled pipes; without a compiler, pipes.py runs as it is.

from ottla.sim.links cimport Link
from ottla.sim.scheduler cimport Scheduler

cdef class Pipe:
    cdef readonly object network
    cdef readonly Link link
    cdef readonly Link back
    cdef public object reader
    cdef public object writer
    cdef public bint wants_room
    cdef Scheduler _scheduler
    cdef object _in_flight
    cdef bint _is_moving
    cdef object _stalled_since_s
    cdef double _last_arrival_s
    cdef Py_ssize_t _sent_bytes
    cdef Py_ssize_t _read_bytes
    cdef Py_ssize_t _acked_bytes
    cdef object _acks

    cpdef Py_ssize_t room_bytes(self)
    cpdef object push(self, object kind, bytes data=*)
    cdef object _await_ack(self)
    cdef object _move(self)
    cdef bint _is_passable(self)
    cdef object _stall(self)
    cpdef object on_read(self, Py_ssize_t byte_count)
    cpdef object acknowledge(self)
