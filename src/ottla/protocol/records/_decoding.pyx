# cython: language_level=3
"""Decodes a batch's records to Python records or columns, compiled. `decoding` is the pure Python version and test
oracle.

Every length is checked against the remaining bytes before it is used, so no input makes this read outside its buffer.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from ottla.protocol.records.columns import BinaryColumn, DecodedColumns, HeadersColumn, NumberColumn
from ottla.protocol.records.decoding import Scan, repair_header_keys
from ottla.protocol.records.errors import CorruptRecords, TooLarge
from ottla.protocol.records.record import Record

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_alloc)(PyTypeObject*, Py_ssize_t)
    void PyObject_GC_UnTrack(void*)

cdef extern from *:
    bint __builtin_add_overflow(int64_t, int64_t, int64_t*) nogil

cdef enum Fault:
    FINE, CUT_SHORT, TOO_MANY_BITS, BAD_RECORD, BAD_BYTES, BAD_HEADERS, BAD_OFFSET, BAD_TIMESTAMP, LEFT_OVER
    COLUMN_FULL, NO_MEMORY

_FAULTS = {
    CUT_SHORT: "a number is truncated",
    TOO_MANY_BITS: "a number has too many bits",
    BAD_RECORD: "a record's length does not match its content, or is beyond the end of its batch",
    BAD_BYTES: "a key's or value's length is beyond the end of its record",
    BAD_HEADERS: "a record's headers are malformed",
    BAD_OFFSET: "the offsets of a batch's records do not rise within its range",
    BAD_TIMESTAMP: "a record's timestamp is beyond 64 bits",
    LEFT_OVER: "bytes are left over after the last record",
}


cdef object failure(int fault):
    if fault == NO_MEMORY:
        return MemoryError()
    if fault == COLUMN_FULL:
        return TooLarge("a column of records holds more than 2 GiB")
    return CorruptRecords(_FAULTS[fault])


cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end


cdef struct Bytes:
    const uint8_t* at
    int32_t size  # -1 is null


cdef struct View:
    int64_t offset
    int64_t timestamp_ms
    Bytes key
    Bytes value
    int32_t header_count
    Cursor headers


cdef struct Walk:
    # The position of a walk through a batch's records.
    Cursor body
    int64_t base_offset
    int64_t base_timestamp
    int64_t append_time
    bint has_append_time
    int32_t last_offset_delta
    int32_t previous_delta


cdef inline int read_varint(Cursor* cursor, int32_t* value) noexcept nogil:
    cdef uint32_t raw = 0
    cdef uint8_t byte
    cdef int shift = 0
    while cursor.at < cursor.end:
        byte = cursor.at[0]
        cursor.at += 1
        if shift == 28 and byte > 0x0F:
            return TOO_MANY_BITS
        raw |= <uint32_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = <int32_t>((raw >> 1) ^ (<uint32_t>0 - (raw & 1)))
            return FINE
        shift += 7
    return CUT_SHORT


cdef inline int read_varlong(Cursor* cursor, int64_t* value) noexcept nogil:
    cdef uint64_t raw = 0
    cdef uint8_t byte
    cdef int shift = 0
    while cursor.at < cursor.end:
        byte = cursor.at[0]
        cursor.at += 1
        if shift == 63 and byte > 1:
            return TOO_MANY_BITS
        raw |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = <int64_t>((raw >> 1) ^ (<uint64_t>0 - (raw & 1)))
            return FINE
        shift += 7
    return CUT_SHORT


cdef inline int read_bytes(Cursor* cursor, Bytes* into) noexcept nogil:
    cdef int32_t size = 0
    cdef int fault = read_varint(cursor, &size)
    if fault:
        return fault
    into.at = cursor.at
    into.size = size
    if size == -1:
        return FINE
    if size < 0 or size > cursor.end - cursor.at:
        return BAD_BYTES
    cursor.at += size
    return FINE


cdef inline int read_header(Cursor* cursor, Bytes* key, Bytes* value) noexcept nogil:
    cdef int fault = read_bytes(cursor, key) or read_bytes(cursor, value)
    return BAD_HEADERS if not fault and key.size < 0 else fault


cdef int check_headers(View* view) noexcept nogil:
    """Checks all headers before any is used, so that their count can be trusted afterwards."""
    cdef Cursor cursor = view.headers
    cdef Bytes key, value
    cdef int32_t index
    cdef int fault
    if view.header_count < 0 or view.header_count > (cursor.end - cursor.at) // 2:
        return BAD_HEADERS
    for index in range(view.header_count):
        fault = read_header(&cursor, &key, &value)
        if fault:
            return fault
    return FINE if cursor.at == cursor.end else BAD_RECORD


cdef int next_record(Walk* walk, View* view) noexcept nogil:
    cdef Cursor record
    cdef int32_t length = 0, offset_delta = 0
    cdef int64_t timestamp_delta = 0
    cdef int fault = read_varint(&walk.body, &length)
    if fault:
        return fault
    # At least one byte: the attributes, which have no meaning yet.
    if length < 1 or length > walk.body.end - walk.body.at:
        return BAD_RECORD
    record.at = walk.body.at + 1
    record.end = walk.body.at + length
    walk.body.at = record.end
    fault = (read_varlong(&record, &timestamp_delta) or read_varint(&record, &offset_delta)
             or read_bytes(&record, &view.key) or read_bytes(&record, &view.value)
             or read_varint(&record, &view.header_count))
    if fault:
        return fault
    view.headers = record
    if view.header_count != 0 or record.at != record.end:
        fault = check_headers(view)
        if fault:
            return fault
    if offset_delta <= walk.previous_delta or offset_delta > walk.last_offset_delta:
        return BAD_OFFSET
    walk.previous_delta = offset_delta
    view.offset = walk.base_offset + offset_delta
    if walk.has_append_time:
        view.timestamp_ms = walk.append_time
    elif __builtin_add_overflow(walk.base_timestamp, timestamp_delta, &view.timestamp_ms):
        return BAD_TIMESTAMP
    return FINE


cdef class Opened:
    """The buffer of a batch's records, held for the duration of a walk."""

    cdef Py_buffer buffer
    cdef Walk walk
    cdef int32_t record_count

    def __cinit__(self, header, body):
        PyObject_GetBuffer(body, &self.buffer, PyBUF_SIMPLE)
        self.walk.body.at = <const uint8_t*>self.buffer.buf
        self.walk.body.end = self.walk.body.at + self.buffer.len
        self.walk.base_offset = header.base_offset
        self.walk.base_timestamp = header.base_timestamp
        self.walk.append_time = header.max_timestamp
        self.walk.has_append_time = header.is_log_append_time
        self.walk.last_offset_delta = header.last_offset_delta
        self.walk.previous_delta = -1
        self.record_count = header.record_count

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


cdef inline bytes to_bytes(Bytes* part):
    return None if part.size < 0 else PyBytes_FromStringAndSize(<const char*>part.at, part.size)


cdef tuple to_headers(View* view):
    cdef Cursor cursor = view.headers
    cdef Bytes key, value
    cdef int32_t index
    cdef int fault
    cdef list headers = []
    for index in range(view.header_count):
        fault = read_header(&cursor, &key, &value)
        if fault:
            raise failure(fault)
        headers.append((PyUnicode_DecodeUTF8(<const char*>key.at, key.size, "replace"), to_bytes(&value)))
    return tuple(headers)


cdef inline void give(object row, Py_ssize_t index, object field):
    Py_INCREF(field)  # the tuple steals this reference
    PyTuple_SET_ITEM(row, index, field)


def decode_rows(header, body, int64_t from_offset, list into not None):
    cdef Opened opened = Opened(header, body)
    cdef View view
    cdef int32_t index
    cdef int fault
    cdef object offset, timestamp_ms, key, value, row
    cdef tuple headers, no_headers = ()
    cdef PyTypeObject* record_type = <PyTypeObject*>Record
    for index in range(opened.record_count):
        fault = next_record(&opened.walk, &view)
        if fault:
            raise failure(fault)
        if view.offset < from_offset:
            continue
        offset, timestamp_ms, key, value = view.offset, view.timestamp_ms, to_bytes(&view.key), to_bytes(&view.value)
        headers = to_headers(&view) if view.header_count else no_headers
        row = record_type.tp_alloc(record_type, 5)  # like the constructor of a named tuple, without its call
        give(row, 0, offset)
        give(row, 1, timestamp_ms)
        give(row, 2, key)
        give(row, 3, value)
        give(row, 4, headers)
        if view.header_count == 0:
            PyObject_GC_UnTrack(<void*>row)  # numbers and bytes form no cycles, so the collector can skip it
        into.append(row)
    if opened.walk.body.at != opened.walk.body.end:
        raise failure(LEFT_OVER)


def scan(header, body, int64_t wanted_timestamp_ms):
    cdef Opened opened = Opened(header, body)
    cdef View view
    cdef int32_t index
    cdef int fault = FINE
    cdef bint has_null_key = False, found = False
    cdef int64_t found_timestamp = 0, found_offset = 0, max_timestamp = 0, max_offset = 0
    with nogil:
        for index in range(opened.record_count):
            fault = next_record(&opened.walk, &view)
            if fault:
                break
            if view.key.size < 0:
                has_null_key = True
            if index == 0 or view.timestamp_ms > max_timestamp:
                max_timestamp, max_offset = view.timestamp_ms, view.offset
            if not found and view.timestamp_ms >= wanted_timestamp_ms:
                found, found_timestamp, found_offset = True, view.timestamp_ms, view.offset
    if not fault and opened.walk.body.at != opened.walk.body.end:
        fault = LEFT_OVER
    if fault:
        raise failure(fault)
    return Scan(
        has_null_key,
        (max_timestamp, max_offset) if opened.record_count else None,
        (found_timestamp, found_offset) if found else None,
    )


cdef struct Growing:
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t capacity


cdef inline int reserve(Growing* buffer, Py_ssize_t more) noexcept nogil:
    cdef Py_ssize_t wanted
    cdef uint8_t* moved
    if more <= buffer.capacity - buffer.size:
        return FINE
    wanted = max(buffer.size + more, 2 * buffer.capacity)
    moved = <uint8_t*>realloc(buffer.data, wanted)
    if moved == NULL:
        return NO_MEMORY
    buffer.data = moved
    buffer.capacity = wanted
    return FINE


cdef inline void put_int32(Growing* buffer, int32_t number) noexcept nogil:
    memcpy(buffer.data + buffer.size, &number, 4)
    buffer.size += 4


cdef inline void put_int64(Growing* buffer, int64_t number) noexcept nogil:
    memcpy(buffer.data + buffer.size, &number, 8)
    buffer.size += 8


cdef class Slab:
    """The memory of a finished column, as a read-only buffer."""

    cdef uint8_t* data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 1, flags)

    def __len__(self):
        return self.size

    def __dealloc__(self):
        free(self.data)


cdef Slab finish_buffer(Growing* buffer):
    """Moves the memory and trims unused capacity."""
    cdef Slab slab = Slab()
    cdef uint8_t* shrunk = <uint8_t*>realloc(buffer.data, max(buffer.size, 1))
    slab.data = buffer.data if shrunk == NULL else shrunk
    slab.size = buffer.size
    buffer.data = NULL
    buffer.size = buffer.capacity = 0
    return slab


cdef struct Binary:
    Growing offsets
    Growing data
    Growing validity
    int64_t rows
    int64_t nulls


cdef int reserve_rows(Binary* column, Py_ssize_t rows, Py_ssize_t data_bytes) noexcept nogil:
    """Reserves room for this many rows and bytes, so that `append_bytes` need not check."""
    cdef int fault = (reserve(&column.offsets, (rows + 1) * 4) or reserve(&column.validity, rows // 8 + 1)
                      or reserve(&column.data, data_bytes))
    if not fault and column.offsets.size == 0:
        put_int32(&column.offsets, 0)
    return fault


cdef inline int append_bytes(Binary* column, Bytes* part) noexcept nogil:
    cdef int bit = column.rows & 7
    if bit == 0:
        column.validity.data[column.validity.size] = 0
        column.validity.size += 1
    if part.size < 0:
        column.nulls += 1
    else:
        if part.size > INT32_MAX - column.data.size:
            return COLUMN_FULL
        column.validity.data[column.validity.size - 1] |= <uint8_t>(1 << bit)
        if part.size:
            memcpy(column.data.data + column.data.size, part.at, part.size)
        column.data.size += part.size
    column.rows += 1
    put_int32(&column.offsets, <int32_t>column.data.size)
    return FINE


cdef object finish_column(Binary* column):
    cdef object validity = finish_buffer(&column.validity)
    return BinaryColumn(
        length=column.rows,
        offsets=finish_buffer(&column.offsets),
        data=finish_buffer(&column.data),
        validity=validity if column.nulls else None,
        null_count=column.nulls,
    )


cdef void free_column(Binary* column) noexcept:
    free(column.offsets.data)
    free(column.data.data)
    free(column.validity.data)


cdef class ColumnsBuilder:
    cdef Growing _offsets, _timestamps, _header_ends
    cdef Binary _keys, _values, _header_keys, _header_values
    cdef bint _is_spent
    cdef bint _has_wide_header_keys  # beyond ASCII, so possibly not UTF-8

    def __cinit__(self):
        if (reserve_rows(&self._keys, 0, 0) or reserve_rows(&self._values, 0, 0) or reserve(&self._header_ends, 4)
                or reserve_rows(&self._header_keys, 0, 0) or reserve_rows(&self._header_values, 0, 0)):
            raise MemoryError
        put_int32(&self._header_ends, 0)

    def __dealloc__(self):
        free(self._offsets.data)
        free(self._timestamps.data)
        free(self._header_ends.data)
        free_column(&self._keys)
        free_column(&self._values)
        free_column(&self._header_keys)
        free_column(&self._header_values)

    def append(self, header, body, int64_t from_offset):
        cdef Opened opened = Opened(header, body)
        cdef int fault
        self._check_not_spent()
        with nogil:
            fault = self._append(&opened.walk, opened.record_count, from_offset)
        if fault:
            self._is_spent = True
            raise failure(fault)

    cdef int _check_not_spent(self) except -1:
        if self._is_spent:
            raise RuntimeError("this builder is finished, or has failed")
        return 0

    cdef int _append(self, Walk* walk, int32_t count, int64_t from_offset) noexcept nogil:
        cdef View view
        cdef int32_t index
        cdef int fault = self._reserve(count, walk.body.end - walk.body.at)
        for index in range(count):
            fault = fault or next_record(walk, &view)
            if fault:
                return fault
            if view.offset < from_offset:
                continue
            put_int64(&self._offsets, view.offset)
            put_int64(&self._timestamps, view.timestamp_ms)
            fault = append_bytes(&self._keys, &view.key) or append_bytes(&self._values, &view.value)
            if not fault and view.header_count:
                fault = self._append_headers(&view)
            put_int32(&self._header_ends, <int32_t>self._header_keys.rows)
        if not fault and walk.body.at != walk.body.end:
            fault = LEFT_OVER
        return fault

    cdef int _reserve(self, Py_ssize_t rows, Py_ssize_t body_bytes) noexcept nogil:
        # Keys and values cannot exceed the size of the body. Pages that stay unused cost nothing.
        return (reserve(&self._offsets, rows * 8) or reserve(&self._timestamps, rows * 8)
                or reserve(&self._header_ends, rows * 4)
                or reserve_rows(&self._keys, rows, body_bytes) or reserve_rows(&self._values, rows, body_bytes))

    cdef int _append_headers(self, View* view) noexcept nogil:
        cdef Cursor cursor = view.headers
        cdef Bytes key, value
        cdef int32_t index, at
        cdef Py_ssize_t bytes_max = cursor.end - cursor.at
        cdef int fault = (reserve_rows(&self._header_keys, view.header_count, bytes_max)
                          or reserve_rows(&self._header_values, view.header_count, bytes_max))
        if not fault and self._header_keys.rows + view.header_count > INT32_MAX:
            fault = COLUMN_FULL
        for index in range(view.header_count):
            fault = (fault or read_header(&cursor, &key, &value)
                     or append_bytes(&self._header_keys, &key) or append_bytes(&self._header_values, &value))
            if fault:
                return fault
            for at in range(key.size):
                self._has_wide_header_keys |= key.at[at] >= 0x80
        return fault

    def finish(self):
        cdef int64_t rows = self._keys.rows
        self._check_not_spent()
        self._is_spent = True
        cdef object keys = finish_column(&self._header_keys)
        if self._has_wide_header_keys:
            keys = repair_header_keys(keys)
        cdef object headers = HeadersColumn(
            length=rows,
            offsets=finish_buffer(&self._header_ends),
            keys=keys,
            values=finish_column(&self._header_values),
        )
        return DecodedColumns(
            rows,
            NumberColumn(rows, finish_buffer(&self._offsets)),
            NumberColumn(rows, finish_buffer(&self._timestamps)),
            finish_column(&self._keys),
            finish_column(&self._values),
            headers,
        )
