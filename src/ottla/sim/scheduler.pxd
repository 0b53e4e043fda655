# Types for the compiled scheduler; without a compiler, scheduler.py runs as it is.

cdef class Scheduler:
    cdef public object seed
    cdef public object rng
    cdef readonly object _random
    cdef public double now_s
    cdef public object running
    cdef readonly object trace
    cdef public list failures
    cdef readonly Py_ssize_t event_count
    cdef list _events
    cdef Py_ssize_t _scheduled
    cdef list _processes
    cdef object _hooked
    cdef public bint _open

    cdef object _schedule(self, double time_s, object callback, tuple args)
    cdef object _step(self)
