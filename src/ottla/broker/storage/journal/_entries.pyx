# cython: language_level=3
"""Packs the entry headers of many batches, compiled. `format.py` has their layout, `entries.py` the pure Python
version.

Every field except the kind and the log's key comes from the first 27 bytes of the batch, in the same byte order.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_Check, PyMemoryView_GET_BUFFER
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

cdef enum:
    APPEND = 1
    KEY_BYTES = 24
    ENTRY_BYTES = 56
    BATCH_HEADER_BYTES = 61


cdef inline uint64_t number_at(const uint8_t* at, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int place
    for place in range(size):
        value = (value << 8) | at[place]
    return value


cdef inline void put_number(uint8_t* at, uint64_t value, int size) noexcept nogil:
    cdef int place
    for place in range(size):
        at[place] = <uint8_t>(value >> (8 * (size - 1 - place)))


def pack_appends_into(bytearray into not None, Py_ssize_t at, bytes packed_key not None, list batches not None):
    cdef Py_buffer* batch
    cdef const uint8_t* header
    cdef uint8_t* entry = <uint8_t*>PyByteArray_AS_STRING(into) + at
    if at < 0 or at + len(batches) * ENTRY_BYTES > PyByteArray_GET_SIZE(into):
        raise ValueError("the entries do not fit")
    if PyBytes_GET_SIZE(packed_key) != KEY_BYTES:
        raise ValueError("a packed key must have 24 bytes")
    for view in batches:
        if not PyMemoryView_Check(view):
            raise TypeError("a batch must be a memoryview")
        batch = PyMemoryView_GET_BUFFER(view)
        if batch.len < BATCH_HEADER_BYTES:
            raise ValueError("a batch is shorter than its header")
        header = <const uint8_t*>batch.buf
        memset(entry, 0, 4)
        entry[0] = APPEND
        memcpy(entry + 4, PyBytes_AS_STRING(packed_key), KEY_BYTES)
        memcpy(entry + 28, header, 8)  # base offset
        put_number(entry + 36, number_at(header, 8) + number_at(header + 23, 4) + 1, 8)  # next offset
        memcpy(entry + 44, header + 12, 4)  # leader epoch
        memcpy(entry + 48, header + 17, 4)  # CRC
        put_number(entry + 52, <uint64_t>batch.len, 4)
        entry += ENTRY_BYTES
