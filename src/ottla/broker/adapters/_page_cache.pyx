"""Compiled reads that do not wait for the disk. The pure Python version is in `_disk_py.py`."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, EINTR, ENOSYS, EOPNOTSUPP, errno
from libc.stdint cimport int64_t

import os

cdef extern from "sys/uio.h" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <sys/uio.h>

    /* Where there is no such flag, no read can be asked not to wait. */
    static ssize_t ottla_read_nowait(int fd, struct iovec *vectors, int count, off_t offset) {
    #ifdef RWF_NOWAIT
        return preadv2(fd, vectors, count, offset, RWF_NOWAIT);
    #else
        errno = EOPNOTSUPP;
        return -1;
    #endif
    }
    """
    ssize_t ottla_read_nowait(int, iovec*, int, int64_t)


def read_nowait(int fd, int64_t offset, target):
    """Reads the cached part of a range, from its start, into memory of the range's size. Returns the number of bytes;
    None if nothing is cached.

    Raises OSError with EOPNOTSUPP if the kernel or the file system does not support such reads.
    """
    cdef Py_buffer view
    cdef iovec vector
    cdef ssize_t count
    PyObject_GetBuffer(target, &view, PyBUF_WRITABLE)
    try:
        vector.iov_base = view.buf
        vector.iov_len = view.len
        while True:
            count = ottla_read_nowait(fd, &vector, 1, offset)
            if count >= 0:
                return count
            if errno == EAGAIN:
                return None
            if errno == ENOSYS:
                raise OSError(EOPNOTSUPP, os.strerror(EOPNOTSUPP))
            if errno != EINTR:
                raise OSError(errno, os.strerror(errno))
    finally:
        PyBuffer_Release(&view)
