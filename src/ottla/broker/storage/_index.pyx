# cython: language_level=3
"""Compiled version of `index.note_run_plainly`: the index entries of many batches."""

from cpython cimport array
from libc.stdint cimport UINT32_MAX, int64_t, uint32_t


def note_run(
    array.array offsets not None,
    array.array positions not None,
    array.array times not None,
    int64_t due,
    int64_t interval_bytes,
    list bases not None,
    int64_t base_offset,
    list begins not None,
    int64_t begin,
    list timestamps not None,
    int64_t newest,
):
    cdef Py_ssize_t count = len(bases)
    cdef Py_ssize_t number
    cdef int64_t position
    cdef int64_t relative
    cdef int64_t timestamp
    cdef uint32_t entry[2]
    if len(begins) != count or len(timestamps) != count:
        raise ValueError("each batch needs an offset, a position and a timestamp")
    if offsets.ob_descr.typecode != b"I" or positions.ob_descr.typecode != b"I" or times.ob_descr.typecode != b"q":
        raise TypeError("the index has entries of an unexpected type")
    for number in range(count):
        timestamp = timestamps[number]
        if timestamp > newest:
            newest = timestamp
        position = begin + <int64_t>begins[number]
        if position < due:
            continue
        relative = <int64_t>bases[number] - base_offset
        if relative < 0 or relative > UINT32_MAX or position > UINT32_MAX:
            raise OverflowError("too many records or bytes for one segment")
        entry[0] = <uint32_t>relative
        entry[1] = <uint32_t>position
        array.extend_buffer(offsets, <char*>&entry[0], 1)
        array.extend_buffer(positions, <char*>&entry[1], 1)
        array.extend_buffer(times, <char*>&newest, 1)  # last, because its length is the length of the index
        due = position + interval_bytes
    return due, newest
