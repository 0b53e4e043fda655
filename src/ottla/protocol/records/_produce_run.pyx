# cython: language_level=3
"""Runs of produce requests, compiled. `produce_run` describes them, and has the pure Python version and test oracle.

Frames are untrusted: each position is compared with the frame's end before it is read.
"""

cimport cython
from cpython.buffer cimport PyBuffer_IsContiguous
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_Check, PyMemoryView_GET_BUFFER
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from uuid import UUID

from crc32c import crc32c

cdef enum:
    VERSION_MIN = 9
    VERSION_MAX = 13
    TOPIC_IDS_FROM = 13
    BATCH_HEADER_BYTES = 61
    LOG_OVERHEAD_BYTES = 12
    CRC_COVERS_FROM = 21
    COMPRESSION_MAX = 4
    COMPRESSION_MASK = 0x07
    UNUSUAL_BITS = 0x38  # LogAppendTime, transactional, control
    RESULT_BYTES = 39

cdef struct Request:
    int version
    int acks
    int32_t timeout_ms
    int32_t correlation_id
    int32_t partition
    Py_ssize_t client_id_bytes
    Py_ssize_t key_at
    Py_ssize_t key_end
    Py_ssize_t way_end
    Py_ssize_t records_at
    Py_ssize_t records_end
    int32_t last_offset_delta

cdef struct Item:
    int32_t correlation_id
    int32_t last_offset_delta
    Py_ssize_t frame_bytes
    Py_ssize_t size
    uint8_t* batch


cdef inline int16_t i16_at(const uint8_t* at) noexcept nogil:
    return <int16_t>((at[0] << 8) | at[1])


cdef inline uint32_t u32_at(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline int32_t i32_at(const uint8_t* at) noexcept nogil:
    return <int32_t>u32_at(at)


cdef inline int64_t i64_at(const uint8_t* at) noexcept nogil:
    return <int64_t>((<uint64_t>u32_at(at) << 32) | u32_at(at + 4))


cdef inline uint8_t* put_i16(uint8_t* at, int value) noexcept nogil:
    at[0] = <uint8_t>(value >> 8)
    at[1] = <uint8_t>value
    return at + 2


cdef inline uint8_t* put_i32(uint8_t* at, int64_t value) noexcept nogil:
    cdef int shift
    for shift in range(4):
        at[shift] = <uint8_t>(value >> (24 - 8 * shift))
    return at + 4


cdef inline uint8_t* put_i64(uint8_t* at, int64_t value) noexcept nogil:
    return put_i32(put_i32(at, value >> 32), value)


cdef bint parse(const uint8_t* data, Py_ssize_t size, Request* request) noexcept nogil:
    """Reports whether this is one batch for one partition, with no transaction and no tagged fields."""
    cdef Py_ssize_t at
    cdef Py_ssize_t length = 0
    cdef int shift = 0
    if size < 12 or data[0] or data[1]:
        return False
    request.version = i16_at(data + 2)
    if request.version < VERSION_MIN or request.version > VERSION_MAX:
        return False
    request.correlation_id = i32_at(data + 4)
    request.client_id_bytes = i16_at(data + 8)
    if request.client_id_bytes < -1:
        return False
    at = 10 + (request.client_id_bytes if request.client_id_bytes > 0 else 0)
    # No tagged fields, no transaction, acks, timeout, one topic, and the first byte of its key.
    if at + 10 > size or data[at] or data[at + 1] or data[at + 8] != 2:
        return False
    request.acks = i16_at(data + at + 2)
    request.timeout_ms = i32_at(data + at + 4)
    if request.acks < -1 or request.acks > 1:
        return False
    at += 9
    if request.version >= TOPIC_IDS_FROM:
        request.key_at = at
        request.key_end = at + 16
    else:
        if data[at] < 2 or data[at] > 127:
            return False
        request.key_at = at + 1
        request.key_end = at + data[at]
    at = request.key_end
    if at + 6 > size or data[at] != 2:
        return False
    request.partition = i32_at(data + at + 1)
    request.way_end = at = at + 5
    while True:
        if at == size or shift > 28:
            return False
        length |= <Py_ssize_t>(data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            break
        shift += 7
    request.records_at = at
    request.records_end = at + length - 1
    if length - 1 < BATCH_HEADER_BYTES or request.records_end + 3 != size:
        return False
    if data[size - 3] or data[size - 2] or data[size - 1]:
        return False
    request.last_offset_delta = i32_at(data + at + 23)
    return request.last_offset_delta >= 0 and <int64_t>request.last_offset_delta + 1 == i32_at(data + at + 57)


cdef bint is_usual(const Item* item) noexcept nogil:
    """Reports whether a log can accept a batch by its header without further checks, except of its sequence."""
    cdef const uint8_t* batch = item.batch
    cdef int attributes = i16_at(batch + 21)
    if batch[16] != 2 or <int64_t>i32_at(batch + 8) + LOG_OVERHEAD_BYTES != item.size:
        return False
    if attributes & UNUSUAL_BITS or attributes & COMPRESSION_MASK > COMPRESSION_MAX or i64_at(batch + 35) < 0:
        return False
    return i64_at(batch + 43) < 0 or (i16_at(batch + 51) >= 0 and i32_at(batch + 53) >= 0)


@cython.final
cdef class ProduceRun:
    cdef readonly int version
    cdef readonly int acks
    cdef readonly int timeout_ms
    cdef readonly object topic
    cdef readonly int partition
    cdef readonly int64_t record_count
    cdef readonly int64_t size_bytes
    cdef readonly int64_t frame_bytes
    cdef readonly bint has_producers
    cdef readonly list batches
    cdef readonly list max_timestamps
    cdef readonly list bases
    cdef readonly list ends
    cdef readonly int leader_epoch
    cdef bytes _key
    cdef Item* _items
    cdef Py_ssize_t _count

    def __init__(self):
        raise TypeError("create runs with find_run")

    def __dealloc__(self):
        free(self._items)

    def __len__(self):
        return self._count

    def cut(self, Py_ssize_t count):
        cdef Py_ssize_t number
        if count < 0 or count > self._count or self.ends:
            raise ValueError("a run can only be cut to fewer batches, before it is stamped")
        for number in range(count, self._count):
            self.record_count -= <int64_t>self._items[number].last_offset_delta + 1
            self.size_bytes -= self._items[number].size
            self.frame_bytes -= self._items[number].frame_bytes
        del self.batches[count:], self.max_timestamps[count:]
        self._count = count

    def admit(self, int64_t size_bytes_max, int64_t after_max_ms, int64_t before_max_ms, int64_t now_ms):
        cdef Py_ssize_t number
        cdef Item* item
        cdef int64_t base_ms
        cdef int64_t max_ms
        cdef uint32_t crc
        if len(self.batches) != self._count or self.max_timestamps:
            raise ValueError("a run can be admitted only once, as it was found")
        for number in range(self._count):
            item = &self._items[number]
            base_ms = i64_at(item.batch + 27)
            max_ms = i64_at(item.batch + 35)
            if item.size > size_bytes_max or not is_usual(item):
                break
            if max_ms - now_ms > after_max_ms or (base_ms >= 0 and now_ms - base_ms > before_max_ms):
                break
            crc = crc32c(self.batches[number][CRC_COVERS_FROM:])
            if crc != u32_at(item.batch + 17):
                break
            self.max_timestamps.append(max_ms)
            if i64_at(item.batch + 43) >= 0:
                self.has_producers = True
        else:
            return self._count
        self.cut(number)
        return number

    def stamp(self, int64_t base_offset, int32_t leader_epoch):
        cdef Py_ssize_t number
        if len(self.batches) != self._count or self.ends:
            raise ValueError("a run can be stamped only once, with all of its batches")
        self.leader_epoch = leader_epoch
        for number in range(self._count):
            put_i64(self._items[number].batch, base_offset)
            put_i32(self._items[number].batch + 12, leader_epoch)
            self.bases.append(base_offset)
            base_offset += <int64_t>self._items[number].last_offset_delta + 1
            self.ends.append(base_offset)

    def replies(self, int64_t acknowledged_end, int error, int64_t log_start_offset):
        cdef Py_ssize_t key_bytes = len(self._key)
        cdef Py_ssize_t reply_bytes = 4 + 5 + 1 + key_bytes + 1 + RESULT_BYTES
        cdef bytes out = PyBytes_FromStringAndSize(NULL, reply_bytes * self._count)
        cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(out)
        cdef uint8_t* key = <uint8_t*>PyBytes_AS_STRING(self._key)
        cdef Py_ssize_t number
        cdef int64_t end
        if len(self.ends) != self._count:
            raise ValueError("the batches of a run have no offsets before it is stamped")
        for number in range(self._count):
            end = self.ends[number]
            at = put_i32(at, reply_bytes - 4)
            at = put_i32(at, self._items[number].correlation_id)
            at[0] = 0
            at[1] = 2
            memcpy(at + 2, key, key_bytes)
            at += 2 + key_bytes
            at[0] = 2
            at = put_i32(at + 1, self.partition)
            if end <= acknowledged_end:
                at = put_i16(at, 0)
                at = put_i64(at, end - self._items[number].last_offset_delta - 1)
                at = put_i64(at, -1)
                at = put_i64(at, log_start_offset)
            else:
                at = put_i16(at, error)
                at = put_i64(put_i64(put_i64(at, -1), -1), -1)
            # No record errors, no message; the end of the partition, of the topic; no throttling; the end.
            at[0] = 1
            at[1] = at[2] = at[3] = 0
            at = put_i32(at + 4, 0)
            at[0] = 0
            at += 1
        return out


cdef Py_buffer* bytes_of(object frame) except? NULL:
    """Returns the frame's buffer; NULL unless it is contiguous writable memory."""
    cdef Py_buffer* view
    if not PyMemoryView_Check(frame):
        raise TypeError("a frame must be a memoryview")
    view = PyMemoryView_GET_BUFFER(frame)
    if view.readonly or view.itemsize != 1 or not PyBuffer_IsContiguous(view, b"C"):
        return NULL
    return view


def find_run(frames, Py_ssize_t at, Py_ssize_t count_max):
    cdef Request first
    cdef Request request
    cdef Py_ssize_t number
    cdef Py_ssize_t count = len(frames) - at
    cdef const uint8_t* data
    cdef Py_buffer* view = bytes_of(frames[at])
    if view == NULL or not parse(<const uint8_t*>view.buf, view.len, &first):
        return None
    cdef ProduceRun run = new_run(<const uint8_t*>view.buf, &first, min(count, count_max))
    if run is None:
        return None
    add(run, frames[at], view, &first)
    data = <const uint8_t*>view.buf
    for number in range(at + 1, at + min(count, count_max)):
        view = bytes_of(frames[number])
        if view == NULL or not parse(<const uint8_t*>view.buf, view.len, &request):
            break
        if request.way_end != first.way_end or memcmp(view.buf, data, 4):
            break
        if memcmp(<const uint8_t*>view.buf + 8, data + 8, first.way_end - 8):
            break
        add(run, frames[number], view, &request)
    return run


cdef ProduceRun new_run(const uint8_t* data, const Request* first, Py_ssize_t count_max):
    """Returns None if a text field is not valid UTF-8; the general path reports that too."""
    cdef ProduceRun run = ProduceRun.__new__(ProduceRun)
    cdef bytes key = data[first.key_at : first.key_end]
    try:
        if first.client_id_bytes > 0:
            data[10 : 10 + first.client_id_bytes].decode("utf-8")
        if first.version >= TOPIC_IDS_FROM:
            run.topic = UUID(bytes=key)
            run._key = key
        else:
            run.topic = key.decode("utf-8")
            run._key = data[first.key_at - 1 : first.key_end]
    except UnicodeDecodeError:
        return None
    run._items = <Item*>malloc(max(count_max, 1) * sizeof(Item))
    if run._items == NULL:
        raise MemoryError
    run.version = first.version
    run.acks = first.acks
    run.timeout_ms = first.timeout_ms
    run.partition = first.partition
    run.batches = []
    run.max_timestamps = []
    run.bases = []
    run.ends = []
    return run


cdef int add(ProduceRun run, object frame, Py_buffer* view, const Request* request) except -1:
    cdef Item* item = &run._items[run._count]
    item.correlation_id = request.correlation_id
    item.last_offset_delta = request.last_offset_delta
    item.frame_bytes = view.len
    item.size = request.records_end - request.records_at
    item.batch = <uint8_t*>view.buf + request.records_at
    run.batches.append(frame[request.records_at : request.records_end])
    run._count += 1
    run.record_count += <int64_t>request.last_offset_delta + 1
    run.size_bytes += item.size
    run.frame_bytes += view.len
    return 0
