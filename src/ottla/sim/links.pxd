# Types for the compiled links; without a compiler, links.py runs as it is.

from ottla.sim.scheduler cimport Scheduler

cdef class Link:
    cdef Scheduler _scheduler
    cdef public object delay
    cdef public object bandwidth_bytes_s
    cdef public Py_ssize_t cuts
    cdef public list losses
    cdef public list slowdowns
    cdef double _busy_until_s

    cpdef double arrival_s(self, Py_ssize_t byte_count)
