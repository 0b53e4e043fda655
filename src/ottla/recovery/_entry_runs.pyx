# cython: language_level=3
"""Splits runs of similar log entries into keys and payloads. `entry_runs` has the pure Python twin."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.string cimport memcmp

cdef enum:
    HEADER_BYTES = 12
    CHECKSUM_FLAG = 0x08


def split_run(list data not None, Py_ssize_t begin, list keys not None, list payloads not None):
    cdef Py_ssize_t count = len(data), index, size, key_at, payload_at
    cdef const char* first
    cdef const char* entry
    cdef const uint8_t* head
    if begin < 0 or begin >= count or not PyBytes_CheckExact(data[begin]):
        return begin
    size = PyBytes_GET_SIZE(data[begin])
    first = PyBytes_AS_STRING(data[begin])
    if size < HEADER_BYTES or first[0] & CHECKSUM_FLAG:
        return begin
    key_at = HEADER_BYTES + <uint8_t>first[1]
    if key_at > size:
        return begin
    for index in range(begin, count):
        each = data[index]
        if not PyBytes_CheckExact(each):
            return index
        size = PyBytes_GET_SIZE(each)
        if size < key_at:
            return index
        entry = PyBytes_AS_STRING(each)
        head = <const uint8_t*>entry
        # Same version and kind, same length of the table name, no transaction, same table name.
        if entry[0] != first[0] or entry[1] != first[1]:
            return index
        if head[4] | head[5] | head[6] | head[7] | head[8] | head[9] | head[10] | head[11]:
            return index
        if key_at > HEADER_BYTES and memcmp(entry + HEADER_BYTES, first + HEADER_BYTES, key_at - HEADER_BYTES) != 0:
            return index
        payload_at = key_at + head[2] + (head[3] << 8)
        if payload_at > size:
            return index
        keys.append(PyBytes_FromStringAndSize(entry + key_at, payload_at - key_at))
        payloads.append(PyBytes_FromStringAndSize(entry + payload_at, size - payload_at))
    return count
