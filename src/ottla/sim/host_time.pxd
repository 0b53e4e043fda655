# Types for the compiled clocks of hosts; without a compiler, host_time.py runs as it is.

from ottla.sim.scheduler cimport Scheduler

cdef class HostTime:
    cdef public object name
    cdef public object incarnation
    cdef Scheduler _scheduler
    cdef double _rate
    cdef double _wall_s
    cdef double _monotonic_s
    cdef double _anchor_s

    cpdef double wall_s(self)
    cpdef double monotonic_s(self)
    cpdef double virtual_s(self, double monotonic_s)
