# Types for the compiled sockets; without a compiler, sockets.py runs as it is.

cimport cython

from ottla.sim.pipes cimport Pipe

cdef class SimSocket:
    cdef readonly object host
    cdef readonly object local
    cdef readonly object remote
    cdef readonly Pipe inbound
    cdef readonly Pipe outbound
    cdef readonly object number
    cdef public object listening
    cdef public object notify
    cdef readonly object error
    cdef readonly bint has_eof
    cdef readonly Py_ssize_t received_bytes
    cdef object _received
    cdef bint _ended
    cdef bint _closed

    cpdef Py_ssize_t recv_into(self, buffer)
    @cython.locals(taken=list, taken_bytes=Py_ssize_t, room_bytes=Py_ssize_t, rest=Py_ssize_t)
    cpdef Py_ssize_t send_from(self, queue)
    cdef object _push_in_pieces(self, bytes data)
    cdef object _tell(self)
