# Types for the compiled turns of event loops; without a compiler, turns.py runs as it is.

cimport cython

from ottla.sim.host_time cimport HostTime
from ottla.sim.scheduler cimport Scheduler

cdef class Callback:
    cdef object _callback
    cdef tuple _args
    cdef object _context
    cdef bint _is_cancelled
    cdef object __weakref__

    cdef object _run(self, Turns turns)

cdef class TimerCallback(Callback):
    cdef double _when_s

cdef class Turns:
    cdef readonly Scheduler scheduler
    cdef readonly bint is_paused
    cdef readonly HostTime _host_time
    cdef readonly bint _dead
    cdef bint _in_turn
    cdef object _ready
    cdef readonly list _timers
    cdef Py_ssize_t _timer_count
    cdef Py_ssize_t _timers_max
    cdef double _wakes_at_s
    cdef double _busy_until_s
    cdef list _turn_end

    cdef object _wake(self, double at_s)
    @cython.locals(timer=TimerCallback)
    cpdef object look_again(self)
    @cython.locals(scheduler=Scheduler, handle=Callback, count=Py_ssize_t)
    cpdef object _turn(self, double at_s)
    cdef object _end_turn(self)
    cpdef object at_turn_end(self, object callback)
    @cython.locals(timer=TimerCallback, until_s=double)
    cdef object _take_due_timers(self)
    @cython.locals(timers=list, timer=TimerCallback)
    cdef TimerCallback _next_timer(self)
    cdef object _drop_cancelled_timers(self)
    cdef Callback _call_soon(self, object callback, tuple args, object context)
    cdef TimerCallback _call_at(self, double when_s, object callback, tuple args, object context)

cdef class HostClock:
    cdef HostTime _host
    cdef Turns _turns
