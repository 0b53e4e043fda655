# Walks through the records of a batch, and rewrites some of them.

cdef enum:
    HEADER_BYTES = 61
    LOG_OVERHEAD_BYTES = 12
    CRC_COVERS_FROM = 21
    APPEND_TIME_BIT = 0x08
    HORIZON_BIT = 0x40
    GENERAL_BITS = 0x37  # compressed, transactional or control: needs the general path

cdef enum Fault:
    FINE, MALFORMED, NO_MEMORY

cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end

cdef struct View:
    const uint8_t* begin  # after its length
    const uint8_t* after_time
    const uint8_t* end
    int64_t offset
    int64_t timestamp_ms
    const uint8_t* key
    int32_t key_size  # -1 is null
    int32_t value_size

cdef struct Batch:
    Cursor body
    int64_t base_offset
    int64_t base_timestamp
    int64_t max_timestamp
    bint has_append_time
    int32_t last_offset_delta
    int32_t record_count
    int32_t previous_delta

cdef struct Kept:
    int32_t records
    int32_t tombstones
    int64_t max_timestamp

cdef struct Growing:
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t capacity


cdef object failure(int fault):
    return MemoryError() if fault == NO_MEMORY else CorruptRecords("the records of a batch are malformed")


cdef int reserve(Growing* buffer, Py_ssize_t more) noexcept nogil:
    cdef Py_ssize_t wanted
    cdef uint8_t* moved
    if more <= buffer.capacity - buffer.size:
        return FINE
    wanted = max(buffer.size + more, 2 * buffer.capacity)
    moved = <uint8_t*>realloc(buffer.data, wanted)
    if moved == NULL:
        return NO_MEMORY
    buffer.data, buffer.capacity = moved, wanted
    return FINE


cdef inline void put(Growing* buffer, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    memcpy(buffer.data + buffer.size, data, size)
    buffer.size += size


cdef inline void put_varlong(Growing* buffer, int64_t value) noexcept nogil:
    cdef uint64_t raw = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    while raw > 0x7F:
        buffer.data[buffer.size] = <uint8_t>(raw & 0x7F | 0x80)
        buffer.size += 1
        raw >>= 7
    buffer.data[buffer.size] = <uint8_t>raw
    buffer.size += 1


cdef inline int varlong_size(int64_t value) noexcept nogil:
    cdef uint64_t raw = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef int size = 1
    while raw > 0x7F:
        size += 1
        raw >>= 7
    return size


# -- numbers of a header ---------------------------------------------------------------------------------------------


cdef inline uint32_t u32_at(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline int64_t i64_at(const uint8_t* at) noexcept nogil:
    return <int64_t>((<uint64_t>u32_at(at) << 32) | u32_at(at + 4))


cdef inline void put_u32_at(uint8_t* at, uint32_t value) noexcept nogil:
    cdef int i
    for i in range(4):
        at[i] = <uint8_t>(value >> (24 - 8 * i))


cdef inline void put_i64_at(uint8_t* at, int64_t value) noexcept nogil:
    put_u32_at(at, <uint32_t>(<uint64_t>value >> 32))
    put_u32_at(at + 4, <uint32_t>(<uint64_t>value & 0xFFFFFFFFu))


# -- records ---------------------------------------------------------------------------------------------------------


cdef inline int read_varlong(Cursor* cursor, int64_t* value, int bits) noexcept nogil:
    cdef uint64_t raw = 0
    cdef uint8_t byte
    cdef int shift = 0
    while cursor.at < cursor.end and shift < bits:
        byte = cursor.at[0]
        cursor.at += 1
        if bits - shift < 8 and byte >> (bits - shift):
            return MALFORMED
        raw |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = <int64_t>((raw >> 1) ^ (<uint64_t>0 - (raw & 1)))
            return FINE
        shift += 7
    return MALFORMED


cdef inline int read_bytes(Cursor* cursor, const uint8_t** data, int32_t* size) noexcept nogil:
    cdef int64_t length = 0
    if read_varlong(cursor, &length, 32):
        return MALFORMED
    data[0] = cursor.at
    size[0] = <int32_t>length
    if length == -1:
        return FINE
    if length < 0 or length > cursor.end - cursor.at:
        return MALFORMED
    cursor.at += length
    return FINE


cdef int check_headers(Cursor* cursor) noexcept nogil:
    cdef int64_t count = 0, index
    cdef const uint8_t* data = NULL
    cdef int32_t size = 0
    if read_varlong(cursor, &count, 32) or count < 0 or count > (cursor.end - cursor.at) // 2:
        return MALFORMED
    for index in range(count):
        if read_bytes(cursor, &data, &size) or size < 0 or read_bytes(cursor, &data, &size):
            return MALFORMED
    return FINE if cursor.at == cursor.end else MALFORMED


cdef int next_record(Batch* batch, View* view) noexcept nogil:
    cdef Cursor record
    cdef int64_t length = 0, time_delta = 0, offset_delta = 0
    cdef const uint8_t* value = NULL
    # At least one byte: the attributes, which have no meaning yet.
    if read_varlong(&batch.body, &length, 32) or length < 1 or length > batch.body.end - batch.body.at:
        return MALFORMED
    view.begin = batch.body.at
    record.at = batch.body.at + 1
    record.end = view.end = batch.body.at + length
    batch.body.at = record.end
    if read_varlong(&record, &time_delta, 64):
        return MALFORMED
    view.after_time = record.at
    if (read_varlong(&record, &offset_delta, 32) or read_bytes(&record, &view.key, &view.key_size)
            or read_bytes(&record, &value, &view.value_size) or check_headers(&record)):
        return MALFORMED
    if offset_delta <= batch.previous_delta or offset_delta > batch.last_offset_delta:
        return MALFORMED
    batch.previous_delta = <int32_t>offset_delta
    view.offset = batch.base_offset + offset_delta
    if batch.has_append_time:
        view.timestamp_ms = batch.max_timestamp
    elif __builtin_add_overflow(batch.base_timestamp, time_delta, &view.timestamp_ms):
        return MALFORMED
    return FINE


cdef int copy_kept(Batch* batch, const uint8_t* keeps, int64_t base_timestamp, Growing* out) noexcept nogil:
    cdef View view
    cdef int32_t index
    cdef int64_t delta = 0
    cdef bint has_new_base = base_timestamp != batch.base_timestamp and not batch.has_append_time
    # A changed timestamp takes at most ten bytes, and may make the length one byte longer.
    if reserve(out, (batch.body.end - batch.body.at) + <Py_ssize_t>batch.record_count * 12):
        return NO_MEMORY
    for index in range(batch.record_count):
        if next_record(batch, &view):
            return MALFORMED
        if not keeps[index]:
            continue
        if not has_new_base:
            put_varlong(out, view.end - view.begin)
            put(out, view.begin, view.end - view.begin)
            continue
        if __builtin_sub_overflow(view.timestamp_ms, base_timestamp, &delta):
            return MALFORMED
        put_varlong(out, 1 + varlong_size(delta) + (view.end - view.after_time))
        put(out, view.begin, 1)
        put_varlong(out, delta)
        put(out, view.after_time, view.end - view.after_time)
    return FINE


cdef bint is_plain(const uint8_t* at, const uint8_t* end, int64_t next_offset, Batch* batch) noexcept nogil:
    """Reports whether a complete, intact batch that needs no special treatment begins here."""
    cdef uint32_t length
    if end - at < HEADER_BYTES:
        return False
    length = u32_at(at + 8)
    if length < HEADER_BYTES - LOG_OVERHEAD_BYTES or length > INT32_MAX - LOG_OVERHEAD_BYTES:
        return False
    if end - at < <Py_ssize_t>length + LOG_OVERHEAD_BYTES or at[16] != 2 or at[22] & GENERAL_BITS:
        return False
    batch.base_offset = i64_at(at)
    batch.last_offset_delta = <int32_t>u32_at(at + 23)
    batch.base_timestamp = i64_at(at + 27)
    batch.max_timestamp = i64_at(at + 35)
    batch.has_append_time = at[22] & APPEND_TIME_BIT
    batch.record_count = <int32_t>u32_at(at + 57)
    batch.previous_delta = -1
    batch.body.at = at + HEADER_BYTES
    batch.body.end = at + length + LOG_OVERHEAD_BYTES
    if batch.base_offset != next_offset or batch.last_offset_delta < 0 or batch.record_count < 0:
        return False
    return ottla_crc32c(at + CRC_COVERS_FROM, batch.body.end - at - CRC_COVERS_FROM) == u32_at(at + 17)
