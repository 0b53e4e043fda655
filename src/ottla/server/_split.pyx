# cython: language_level=3
"""The small frames of one read, each copied out; the plain twin is in `frames.py`."""

from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from libc.stdint cimport int32_t, uint8_t, uint32_t


def split_small_frames(memoryview source not None, Py_ssize_t end, Py_ssize_t size_min, Py_ssize_t size_max):
    cdef const char* data = <const char*>PyMemoryView_GET_BUFFER(source).buf
    cdef const uint8_t* head
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t size
    cdef list frames = []
    if end > PyMemoryView_GET_BUFFER(source).len:
        raise ValueError("more was read than there is memory")
    while end - at >= 4:
        head = <const uint8_t*>data + at
        size = <int32_t>((<uint32_t>head[0] << 24) | (<uint32_t>head[1] << 16) | (<uint32_t>head[2] << 8) | head[3])
        if size < size_min or size > size_max or end - at - 4 < size:
            break
        frames.append(PyMemoryView_FromObject(PyByteArray_FromStringAndSize(data + at + 4, size)))
        at += 4 + size
    return frames, at
