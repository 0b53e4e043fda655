# cython: language_level=3
"""Encodes Python rows or columns as a batch's records, compiled. `encoding` is the pure Python version and test oracle.

Both encoders measure a record before they write it. Columns are measured for a whole batch at a time, so that its
buffer has the right size from the start. Their buffers are checked row by row, because their offsets cannot be trusted.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from ottla.protocol.records.envelope import RecordBytes
from ottla.protocol.records.errors import TooLarge

cdef extern from *:
    bint __builtin_sub_overflow(int64_t, int64_t, int64_t*) nogil
    int __builtin_clzll(unsigned long long) nogil

cdef enum:
    HEADER_BYTES = 61
    CAPACITY_BYTES_MIN = 1024

cdef enum Fault:
    FINE, BAD_OFFSETS, BAD_HEADER_ENDS, NULL_HEADER_KEY, TIMES_APART, RECORD_TOO_LARGE


cdef object failure(int fault):
    if fault == RECORD_TOO_LARGE:
        return TooLarge("a record does not fit into a batch")
    if fault == TIMES_APART:
        return ValueError("two timestamps of a batch are further apart than 64 bits")
    if fault == NULL_HEADER_KEY:
        return ValueError("a header's key is null")
    if fault == BAD_HEADER_ENDS:
        return ValueError("a column's offsets are outside of its headers")
    return ValueError("a column's offsets are outside of its data")


cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t>number << 1) ^ (<uint64_t>0 - <uint64_t>(number < 0))


cdef inline int64_t varint_size(int64_t number) noexcept nogil:
    return (70 - __builtin_clzll(zigzag(number) | 1)) // 7


cdef inline uint8_t* put_varint(uint8_t* at, int64_t number) noexcept nogil:
    cdef uint64_t raw = zigzag(number)
    while raw > 0x7F:
        at[0] = <uint8_t>(raw & 0x7F) | 0x80
        at += 1
        raw >>= 7
    at[0] = <uint8_t>raw
    return at + 1


cdef inline int64_t bytes_size(int64_t size) noexcept nogil:
    """Writes bytes with their length in front; a size of -1 is null."""
    return 1 if size < 0 else varint_size(size) + size


cdef inline uint8_t* put_bytes(uint8_t* at, const uint8_t* data, int64_t size) noexcept nogil:
    at = put_varint(at, size)
    if size > 0:
        memcpy(at, data, size)
        at += size
    return at


cdef inline uint8_t* put_start(uint8_t* at, int64_t size, int64_t timestamp_delta, int64_t offset_delta) noexcept nogil:
    at = put_varint(at, size)
    at[0] = 0  # attributes
    at = put_varint(at + 1, timestamp_delta)
    return put_varint(at, offset_delta)


cdef inline bytes as_bytes(object data):
    if data is None or PyBytes_CheckExact(data):
        return data
    return memoryview(data).tobytes()  # rejects a str, which has no buffer


cdef inline int64_t size_of(bytes data) noexcept:
    return -1 if data is None else PyBytes_GET_SIZE(data)


cdef inline uint8_t* put_object(uint8_t* at, bytes data) noexcept:
    if data is None:
        return put_varint(at, -1)
    return put_bytes(at, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef list encode_headers(object headers):
    cdef list encoded = []
    for name, value in headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's key must be a str, not {type(name).__name__}")
        encoded.append((<str>name).encode())
        encoded.append(as_bytes(value))
    return encoded


cdef class RowEncoder:
    cdef readonly int64_t budget_bytes
    cdef readonly int64_t record_count
    cdef bytearray _buffer  # allocated to its capacity; the used part ends at _size
    cdef int64_t _size
    cdef int64_t _base_timestamp, _max_timestamp

    def __cinit__(self, int64_t budget_bytes):
        self.budget_bytes = min(budget_bytes, <int64_t>INT32_MAX - HEADER_BYTES)
        self._reset()

    @property
    def size_bytes(self):
        return self._size - HEADER_BYTES

    cpdef bint append(self, object key, object value, object headers, int64_t timestamp_ms) except *:
        cdef bytes key_bytes = as_bytes(key), value_bytes = as_bytes(value)
        cdef list parts = encode_headers(headers) if headers else None
        cdef int64_t header_count = len(parts) // 2 if parts is not None else 0
        cdef int64_t base = timestamp_ms if self.record_count == 0 else self._base_timestamp
        cdef int64_t timestamp_delta, size, whole
        cdef bytes part
        if __builtin_sub_overflow(timestamp_ms, base, &timestamp_delta):
            raise failure(TIMES_APART)
        size = 1 + varint_size(timestamp_delta) + varint_size(self.record_count) + varint_size(header_count)
        size += bytes_size(size_of(key_bytes)) + bytes_size(size_of(value_bytes))
        if parts is not None:
            for part in parts:
                size += bytes_size(size_of(part))
        if size > INT32_MAX - HEADER_BYTES:
            raise failure(RECORD_TOO_LARGE)
        whole = size + varint_size(size)
        if self.record_count and self._size - HEADER_BYTES + whole > self.budget_bytes:
            return False
        self._reserve(whole)
        self._write(size, timestamp_delta, key_bytes, value_bytes, parts)
        if self.record_count == 0:
            self._base_timestamp = self._max_timestamp = timestamp_ms
        self._max_timestamp = max(self._max_timestamp, timestamp_ms)
        self.record_count += 1
        return True

    cdef int _reserve(self, int64_t more) except -1:
        cdef int64_t capacity = len(self._buffer)
        if self._size + more > capacity:
            PyByteArray_Resize(self._buffer, max(self._size + more, 2 * capacity))
        return 0

    cdef void _write(self, int64_t size, int64_t timestamp_delta, bytes key, bytes value, list parts):
        cdef uint8_t* start = <uint8_t*>PyByteArray_AS_STRING(self._buffer)
        cdef uint8_t* at = put_start(start + self._size, size, timestamp_delta, self.record_count)
        cdef bytes part
        at = put_object(at, key)
        at = put_object(at, value)
        at = put_varint(at, len(parts) // 2 if parts is not None else 0)
        if parts is not None:
            for part in parts:
                at = put_object(at, part)
        self._size = at - start

    def extend(self, rows, Py_ssize_t start=0):
        cdef Py_ssize_t index, length = len(rows)
        for index in range(start, length):
            key, value, headers, timestamp_ms = rows[index]
            if not self.append(key, value, headers, timestamp_ms):
                return index
        return length

    def take(self):
        cdef bytearray buffer = self._buffer
        cdef int64_t count = self.record_count
        PyByteArray_Resize(buffer, self._size)
        taken = RecordBytes(buffer, count, max(0, count - 1), self._base_timestamp, self._max_timestamp)
        self._reset()
        return taken

    cdef void _reset(self) except *:
        self._buffer = bytearray(min(CAPACITY_BYTES_MIN, max(0, self.budget_bytes)) + HEADER_BYTES)
        self._size = HEADER_BYTES
        self.record_count = 0
        self._base_timestamp = self._max_timestamp = -1


cdef class Held:
    """A buffer held while a column is read; None becomes an empty buffer."""

    cdef Py_buffer buffer

    def __cinit__(self, data):
        if data is not None:
            PyObject_GetBuffer(data, &self.buffer, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


cdef struct Column:
    bint is_there
    const uint8_t* validity
    const uint8_t* ends
    bint wide
    const uint8_t* data
    int64_t data_size
    int64_t first
    int64_t length


cdef inline bint is_null(const Column* column, int64_t row) noexcept nogil:
    if not column.is_there:
        return True
    row += column.first
    return column.validity != NULL and not (column.validity[row >> 3] >> (row & 7)) & 1


cdef inline int64_t end_at(const Column* column, int64_t row) noexcept nogil:
    cdef int32_t narrow
    cdef int64_t wide
    if column.wide:
        memcpy(&wide, column.ends + (column.first + row) * 8, 8)
        return wide
    memcpy(&narrow, column.ends + (column.first + row) * 4, 4)
    return narrow


cdef inline int64_t number_at(const Column* column, int64_t row, int64_t default) noexcept nogil:
    cdef int64_t number
    if is_null(column, row):
        return default
    memcpy(&number, column.data + (column.first + row) * 8, 8)
    return number


cdef inline int part_at(const Column* column, int64_t row, const uint8_t** data, int64_t* size) noexcept nogil:
    cdef int64_t start, end
    size[0] = -1
    if is_null(column, row):
        return FINE
    start, end = end_at(column, row), end_at(column, row + 1)
    if start < 0 or end < start or end > column.data_size:
        return BAD_OFFSETS
    data[0] = column.data + start
    size[0] = end - start
    return FINE


cdef struct Item:
    # The parts of a row's record, and its encoded size.
    const uint8_t* key
    int64_t key_size
    const uint8_t* value
    int64_t value_size
    int64_t first_header
    int64_t end_header
    int64_t timestamp_ms
    int64_t timestamp_delta
    int64_t size


cdef class ColumnEncoder:
    cdef list _held
    cdef int64_t _rows, _default_timestamp_ms
    cdef Column _keys, _values, _timestamps, _headers, _header_keys, _header_values

    def __cinit__(self, source):
        self._held = []
        self._rows = source.row_count
        self._default_timestamp_ms = source.default_timestamp_ms
        self._hold(source.keys, self._rows, &self._keys)
        self._hold(source.values, self._rows, &self._values)
        self._hold_numbers(source.timestamps)
        if source.headers is not None:
            self._hold_ends(source.headers, self._rows, &self._headers)
            self._hold(source.headers.keys, source.headers.keys.length, &self._header_keys)
            self._hold(source.headers.values, source.headers.keys.length, &self._header_values)

    cdef Held _keep(self, data):
        cdef Held held = Held(data)
        self._held.append(held)
        return held

    cdef int _hold_rows(self, column, int64_t rows, Column* into) except -1:
        cdef Held validity
        into.first, into.length = column.first, column.length
        if into.length < rows or into.first < 0 or into.first > (1 << 56) or rows > (1 << 56):
            raise ValueError("a column is shorter than the others")
        if column.validity is not None:
            validity = self._keep(column.validity)
            if validity.buffer.len * 8 < into.first + rows:
                raise ValueError("a column's validity bitmap is too short")
            into.validity = <const uint8_t*>validity.buffer.buf
        into.is_there = True
        return 0

    cdef int _hold_ends(self, column, int64_t rows, Column* into) except -1:
        cdef Held ends = self._keep(column.offsets)
        self._hold_rows(column, rows, into)
        into.wide = column.wide
        if rows and ends.buffer.len < (into.first + rows + 1) * (8 if into.wide else 4):
            raise ValueError("a column's offsets are too short")
        into.ends = <const uint8_t*>ends.buffer.buf
        return 0

    cdef int _hold(self, column, int64_t rows, Column* into) except -1:
        cdef Held data
        if column is None:
            return 0
        self._hold_ends(column, rows, into)
        data = self._keep(column.data)
        into.data, into.data_size = <const uint8_t*>data.buffer.buf, data.buffer.len
        return 0

    cdef int _hold_numbers(self, column) except -1:
        cdef Held data
        if column is None:
            return 0
        self._hold_rows(column, self._rows, &self._timestamps)
        data = self._keep(column.data)
        if data.buffer.len < (self._timestamps.first + self._rows) * 8:
            raise ValueError("a column's data is too short")
        self._timestamps.data = <const uint8_t*>data.buffer.buf
        return 0

    def encode(self, int64_t start, int64_t budget_bytes):
        cdef int64_t row = start, total = 0, base_timestamp = 0, max_timestamp = 0
        cdef uint8_t* at
        cdef int fault
        if start < 0 or start >= self._rows:
            raise ValueError(f"there is no row {start}")
        budget_bytes = min(budget_bytes, <int64_t>INT32_MAX - HEADER_BYTES)
        with nogil:
            base_timestamp = number_at(&self._timestamps, start, self._default_timestamp_ms)
            fault = self._measure(start, budget_bytes, base_timestamp, &row, &total, &max_timestamp)
        if fault:
            raise failure(fault)
        buffer = PyByteArray_FromStringAndSize(NULL, HEADER_BYTES + total)
        at = <uint8_t*>PyByteArray_AS_STRING(buffer)
        memset(at, 0, HEADER_BYTES)
        with nogil:
            at = self._write(start, row, base_timestamp, at + HEADER_BYTES, at + HEADER_BYTES + total)
        if at == NULL:
            raise RuntimeError("a column changed while it was read")
        return row, RecordBytes(buffer, row - start, row - start - 1, base_timestamp, max_timestamp)

    cdef int _item(self, int64_t row, int64_t offset_delta, int64_t base_timestamp, Item* item) noexcept nogil:
        cdef int fault = (part_at(&self._keys, row, &item.key, &item.key_size)
                          or part_at(&self._values, row, &item.value, &item.value_size))
        if fault:
            return fault
        item.first_header = item.end_header = 0
        item.timestamp_ms = number_at(&self._timestamps, row, self._default_timestamp_ms)
        if __builtin_sub_overflow(item.timestamp_ms, base_timestamp, &item.timestamp_delta):
            return TIMES_APART
        item.size = 1 + varint_size(item.timestamp_delta) + varint_size(offset_delta)
        item.size += bytes_size(item.key_size) + bytes_size(item.value_size)
        if is_null(&self._headers, row):
            item.size += 1
        else:
            fault = self._measure_headers(row, item)
        if fault:
            return fault
        return RECORD_TOO_LARGE if item.size > INT32_MAX - HEADER_BYTES else FINE

    cdef int _measure_headers(self, int64_t row, Item* item) noexcept nogil:
        cdef const uint8_t* data
        cdef int64_t header, size
        item.first_header, item.end_header = end_at(&self._headers, row), end_at(&self._headers, row + 1)
        if (item.first_header < 0 or item.end_header < item.first_header
                or item.end_header > self._header_keys.length):
            return BAD_HEADER_ENDS
        item.size += varint_size(item.end_header - item.first_header)
        for header in range(item.first_header, item.end_header):
            if part_at(&self._header_keys, header, &data, &size):
                return BAD_OFFSETS
            if size < 0:
                return NULL_HEADER_KEY
            item.size += bytes_size(size)
            if part_at(&self._header_values, header, &data, &size):
                return BAD_OFFSETS
            item.size += bytes_size(size)
            if item.size > INT32_MAX:
                return RECORD_TOO_LARGE  # before the sum can overflow
        return FINE

    cdef int _measure(self, int64_t start, int64_t budget_bytes, int64_t base_timestamp,
                      int64_t* stop, int64_t* total, int64_t* max_timestamp) noexcept nogil:
        """Determines how many rows fit, at least one, and how many bytes they take."""
        cdef Item item
        cdef int64_t row, whole
        cdef int fault
        max_timestamp[0] = base_timestamp
        for row in range(start, min(self._rows, start + INT32_MAX)):
            fault = self._item(row, row - start, base_timestamp, &item)
            if fault:
                return fault
            whole = item.size + varint_size(item.size)
            if row > start and total[0] + whole > budget_bytes:
                break
            total[0] += whole
            max_timestamp[0] = max(max_timestamp[0], item.timestamp_ms)
            stop[0] = row + 1
        return FINE

    cdef uint8_t* _write(self, int64_t start, int64_t stop, int64_t base_timestamp,
                         uint8_t* at, uint8_t* end) noexcept nogil:
        """Writes the rows. Returns NULL if their size differs from what was measured, because the caller's buffers
        changed meanwhile."""
        cdef Item item
        cdef int64_t row, header, size
        cdef const uint8_t* data
        for row in range(start, stop):
            if self._item(row, row - start, base_timestamp, &item):
                return NULL
            if item.size + varint_size(item.size) > end - at:
                return NULL
            at = put_start(at, item.size, item.timestamp_delta, row - start)
            at = put_bytes(at, item.key, item.key_size)
            at = put_bytes(at, item.value, item.value_size)
            at = put_varint(at, item.end_header - item.first_header)
            for header in range(item.first_header, item.end_header):
                if part_at(&self._header_keys, header, &data, &size) or bytes_size(size) > end - at:
                    return NULL
                at = put_bytes(at, data, size)
                if part_at(&self._header_values, header, &data, &size) or bytes_size(size) > end - at:
                    return NULL
                at = put_bytes(at, data, size)
        return at if at == end else NULL
