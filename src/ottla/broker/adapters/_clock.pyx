# cython: language_level=3
"""Compiled reads of the clocks: each of them runs several times per request. The pure Python version is in
`clock.py`."""

from libc.stdint cimport int64_t

cdef extern from * nogil:
    """
    #include <time.h>

    #ifndef CLOCK_BOOTTIME
    #define CLOCK_BOOTTIME CLOCK_MONOTONIC
    #endif
    #define OTTLA_MONOTONIC CLOCK_BOOTTIME
    """
    struct timespec:
        int64_t tv_sec
        int64_t tv_nsec
    int OTTLA_MONOTONIC
    int CLOCK_REALTIME
    int clock_gettime(int, timespec*)


def monotonic_ms():
    cdef timespec now
    clock_gettime(OTTLA_MONOTONIC, &now)
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6


def now_ms():
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return now.tv_sec * 1000 + now.tv_nsec // 1000000
