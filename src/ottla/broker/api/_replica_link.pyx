# cython: language_level=3
"""The fast path for a follower's fetches, compiled. `replica_fetch_fast_path` describes it, and has the pure Python
version and test oracle.

Requests are untrusted: their size is compared with the one size that is handled here before anything is read.
"""

cimport cython
from cpython.buffer cimport PyBuffer_IsContiguous
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_Check, PyMemoryView_GET_BUFFER
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from ottla.broker.partition.fetch_sessions import ReportedState
from ottla.broker.partition.pending_reply import PendingReply
from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.protocol.wire.fetch import FetchPartition
from ottla.protocol.wire.primitives import uuid_of

cdef enum:
    REQUEST_BYTES = 112
    REPLY_BYTES_MAX = 8388608
    WATERMARK_WAIT_MS = 10
    REPLY_HEAD_BYTES = 5 + 67
    SIZE_BYTES_MAX = 5

cdef tuple REQUEST_KEY = (1, 18)
cdef bytes REPLY_TAIL = b"\x00\x00\x00"
cdef double NEVER = INFINITY

cdef struct Request:
    int32_t max_wait_ms
    int32_t max_bytes
    int32_t leader_epoch
    int64_t offset
    int32_t last_fetched_epoch
    int64_t log_start_offset
    int32_t partition_max_bytes
    int64_t high_watermark
    int64_t acknowledged_end
    int32_t replica_id
    int64_t replica_epoch


cdef inline int32_t i32_at(const uint8_t* at) noexcept nogil:
    return <int32_t>((<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3])


cdef inline int64_t i64_at(const uint8_t* at) noexcept nogil:
    return <int64_t>((<uint64_t><uint32_t>i32_at(at) << 32) | <uint32_t>i32_at(at + 4))


cdef inline uint8_t* put_i32(uint8_t* at, int64_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value
    return at + 4


cdef inline uint8_t* put_i64(uint8_t* at, int64_t value) noexcept nogil:
    return put_i32(put_i32(at, value >> 32), value)


cdef bint parse(const uint8_t* body, Request* request) noexcept nogil:
    """Reports whether a request is plain: one partition, none forgotten, a follower's fields, and it may wait for the
    first byte."""
    if body[21] != 2 or body[38] != 2 or memcmp(body + 71, b"\x02\x01\x08", 3) or memcmp(body + 82, b"\x90\x4e\x08", 3):
        return False
    if memcmp(body + 93, b"\x00\x01\x01\x01\x01\x0d", 6) or body[111]:
        return False
    request.max_wait_ms = i32_at(body)
    if i32_at(body + 4) != 1 or request.max_wait_ms <= 0 or body[12]:
        return False
    request.max_bytes = i32_at(body + 8)
    request.leader_epoch = i32_at(body + 43)
    request.offset = i64_at(body + 47)
    request.last_fetched_epoch = i32_at(body + 55)
    request.log_start_offset = i64_at(body + 59)
    request.partition_max_bytes = i32_at(body + 67)
    request.high_watermark = i64_at(body + 74)
    request.acknowledged_end = i64_at(body + 85)
    request.replica_id = i32_at(body + 99)
    request.replica_epoch = i64_at(body + 103)
    return True


@cython.final
cdef class Place:
    """A partition of the session."""

    cdef object key
    cdef object followed
    cdef object partition
    cdef bytes topic_id
    cdef int32_t index


@cython.final
cdef class Alarm:
    """A deadline that moves with every request; see the Python version."""

    cdef object _broker
    cdef object _monotonic_ms
    cdef object _ring
    cdef double at_ms
    cdef double _looked_at_ms

    def __init__(self, broker, ring):
        self._broker = broker
        self._monotonic_ms = broker.clock.monotonic_ms
        self._ring = ring
        self.at_ms = NEVER
        self._looked_at_ms = NEVER

    cdef int set(self, int delay_ms, double now_ms) except -1:
        self.at_ms = now_ms + delay_ms
        if self.at_ms < self._looked_at_ms:
            self._looked_at_ms = self.at_ms
            self._broker.deadlines.add(delay_ms, self)
        return 0

    @property
    def ended(self):
        return False

    def expire(self):
        cdef double now_ms = self._monotonic_ms()
        cdef bint is_stopping = self._broker.stopping
        cdef double left_ms
        if now_ms >= self._looked_at_ms - 1 or is_stopping:
            self._looked_at_ms = NEVER
        if self.at_ms == NEVER:
            return
        left_ms = self.at_ms - now_ms
        if left_ms < 1 or is_stopping:
            self.at_ms = NEVER
            self._ring()
        elif self._looked_at_ms == NEVER:
            self._looked_at_ms = self.at_ms
            self._broker.deadlines.add(int(left_ms), self)


@cython.final
cdef class ReplicaLink:
    cdef object _broker
    cdef object _connection
    cdef object _clock
    cdef object _metadata
    cdef object _throttles
    cdef object _hand_over
    cdef object _session
    cdef object _watching
    cdef object _pending
    cdef object _frame
    cdef bytes _prefix
    cdef dict _places
    cdef Place _place
    cdef Alarm _due
    cdef Alarm _hurry
    cdef Request _request
    cdef int32_t _session_id
    cdef int32_t _correlation_id
    cdef double _began_s

    def __init__(self, broker, connection, bytes prefix not None, session, watching, hand_over):
        self._broker = broker
        self._connection = connection
        self._clock = broker.clock
        self._metadata = broker.metadata
        self._throttles = broker.throttles
        self._prefix = prefix
        self._session = session
        self._session_id = session.session_id
        self._watching = watching
        self._hand_over = hand_over
        self._places = {}
        self._due = Alarm(broker, self.expire)
        self._hurry = Alarm(broker, self.expire)

    def take(self, frame):
        cdef Py_ssize_t body_at = PyBytes_GET_SIZE(self._prefix)
        cdef const uint8_t* prefix = <const uint8_t*>PyBytes_AS_STRING(self._prefix)
        cdef const uint8_t* data
        cdef const uint8_t* body
        cdef Py_buffer* view
        cdef Request request
        if not PyMemoryView_Check(frame):
            raise TypeError("a frame must be a memoryview")
        view = PyMemoryView_GET_BUFFER(frame)
        if view.len != body_at + REQUEST_BYTES or view.itemsize != 1 or not PyBuffer_IsContiguous(view, b"C"):
            return None
        data = <const uint8_t*>view.buf
        body = data + body_at
        if memcmp(data, prefix, 4) or memcmp(data + 8, prefix + 8, body_at - 8) or not parse(body, &request):
            return None
        session = self._session
        if session.turn is not self or i32_at(body + 13) != self._session_id:
            return None
        if i32_at(body + 17) != <int64_t>session.next_epoch:
            return None
        cdef Place place = self._place_of(body)
        if place is None:
            return None
        return self._begin(frame, i32_at(data + 4), place, &request)

    cdef object _begin(self, object frame, int32_t correlation_id, Place place, const Request* request):
        cdef double now_ms = self._clock.monotonic_ms()
        partition = place.partition
        log = partition.log
        cdef int64_t end = log.end_offset
        if request.offset > end or request.last_fetched_epoch != <int64_t>log.epochs.latest:
            return None
        if not self._is_served(place, request) or not self._has_no_other(place):
            return None
        if now_ms >= <double>self._watching.all_at_ms:
            return None
        found = None
        if request.offset != end:
            found = self._read(log, request, end)
            if found is None:
                return None
        broker = self._broker
        self._frame = frame
        self._correlation_id = correlation_id
        self._request = request[0]
        self._place = place
        broker.meters.requests[REQUEST_KEY] += 1
        self._began_s = self._clock.seconds()
        broker.fetch_sessions.note_used(self._session, now_ms)
        place.followed.wanted = tuple.__new__(FetchPartition, (
            place.index, request.leader_epoch, request.offset, request.last_fetched_epoch, request.log_start_offset,
            request.partition_max_bytes, None, request.high_watermark, request.acknowledged_end,
        ))
        leading = partition.leading
        self._note_follower(partition, leading, now_ms)
        if found is not None:
            self._watching.changed.clear()
            return self._answer(found, False)
        self._watching.changed[place.key] = None
        return self._park(leading, now_ms)

    cdef Place _place_of(self, const uint8_t* body):
        cdef Place place = self._place
        cdef int32_t index = i32_at(body + 39)
        if place is not None and place.index == index and not memcmp(PyBytes_AS_STRING(place.topic_id), body + 22, 16):
            return place
        cdef bytes topic_id = body[22:38]
        found = self._places.get((topic_id, index))
        if found is not None:
            return <Place?>found
        key = (uuid_of(topic_id), index)
        followed = self._session.followed.get(key)
        partition = self._watching.watched(key)
        if followed is None or partition is None:
            return None
        place = Place.__new__(Place)
        place.key, place.followed, place.partition = key, followed, partition
        place.topic_id = topic_id
        place.index = index
        self._places[topic_id, index] = place
        return place

    cdef bint _is_served(self, Place place, const Request* request) except -1:
        partition = place.partition
        if partition.leading is None or partition.deleted or self._broker.stopping:
            return False
        if <int64_t>partition.leader_epoch != request.leader_epoch:
            return False
        if not self._metadata.knows_replica(request.replica_id, request.replica_epoch):
            return False
        if partition.topic.config.leader_replication_throttled_replicas:
            return not self._throttles.is_leader_throttled(partition, request.replica_id)
        return True

    cdef bint _has_no_other(self, Place place) except -1:
        cdef dict changed = self._watching.changed
        if not changed:
            return True
        if len(changed) > 1:
            return False
        for key in changed:
            return key is place.key or key == place.key
        return True

    cdef object _read(self, object log, const Request* request, int64_t end):
        """Returns the records, or None if they must be read from the disk or are gone."""
        cdef int64_t bytes_max = min(request.partition_max_bytes, request.max_bytes)
        if request.offset < <int64_t>log.start_offset:
            return None
        bytes_max = min(bytes_max, <int64_t>self._broker.config.fetch_max_bytes, <int64_t>REPLY_BYTES_MAX)
        found = log.read(request.offset, bytes_max, end)
        if isinstance(found, ColdRead):
            found.ended()
        return found if isinstance(found, Slice) and found.size_bytes else None

    @property
    def ended(self):
        return self._pending is None or self._pending.done()

    cdef object _park(self, object leading, double now_ms):
        pending = self._pending = PendingReply()
        self._watching.waiting = self
        self._connection.waiting_fetch = self
        self._due.set(self._request.max_wait_ms, now_ms)
        self._hurry.at_ms = NEVER
        if min(<int64_t>leading.high_watermark, self._request.offset) > self._request.high_watermark:
            self.hurry()
        return pending

    def hurry(self):
        if self._hurry.at_ms == NEVER:
            self._hurry.set(WATERMARK_WAIT_MS, self._clock.monotonic_ms())

    def look_again(self):
        cdef Place place = self._place
        cdef int64_t end
        if self._pending is None or self._pending.done():
            self._watching.waiting = None
            return
        if not self._is_served(place, &self._request) or not self._has_no_other(place):
            self._go_on_generally()
            return
        log = place.partition.log
        end = log.end_offset
        if self._request.offset == end:
            return
        found = self._read(log, &self._request, end)
        if found is None:
            self._go_on_generally()
            return
        pending = self._pending
        self._stop_waiting()
        self._watching.changed.clear()
        pending.complete(self._answer(found, True))

    def expire(self):
        if self._pending is not None and not self._pending.done():
            self._go_on_generally().expire()

    cdef object _go_on_generally(self):
        pending = self._pending
        self._stop_waiting()
        return self._hand_over(self._broker, self._connection, self._frame, self._session, pending)

    cdef int _stop_waiting(self) except -1:
        self._pending = None
        self._due.at_ms = NEVER
        self._hurry.at_ms = NEVER
        if self._watching.waiting is self:
            self._watching.waiting = None
        return 0

    cdef int _note_follower(self, object partition, object leading, double now_ms) except -1:
        cdef Request* request = &self._request
        if leading.on_fetched(
            request.replica_id, request.replica_epoch, request.offset, now_ms, request.log_start_offset,
            request.acknowledged_end,
        ):
            partition.on_watermark()
        if len(leading.isr) < len(partition.placement.replicas):
            self._metadata.on_follower_heard(partition)
        return 0

    cdef list _answer(self, object found, bint has_waited):
        cdef Place place = self._place
        partition, broker = place.partition, self._broker
        cdef int64_t size_bytes = found.size_bytes
        cdef int64_t watermark = partition.high_watermark
        cdef int64_t stable = watermark
        cdef int64_t start = partition.log.start_offset
        if not partition.log.transactions.is_quiet:
            stable = partition.last_stable_offset
        place.followed.told = tuple.__new__(ReportedState, (watermark, stable, start, 0))
        read = partition.topic.traffic.by_replicas
        read.bytes += size_bytes
        read.records += <int64_t>found.next_offset - self._request.offset
        broker.traffic.by_replicas.note(size_bytes)
        broker.meters.fetch_s[True, has_waited].note(<double>self._clock.seconds() - self._began_s)
        return [self._reply_head(place, watermark, stable, start, size_bytes), *found.buffers, REPLY_TAIL]

    cdef bytes _reply_head(self, Place place, int64_t watermark, int64_t stable, int64_t start, int64_t size_bytes):
        cdef uint8_t head[REPLY_HEAD_BYTES + SIZE_BYTES_MAX]
        cdef uint8_t* at = put_i32(head, self._correlation_id)
        cdef uint64_t size = size_bytes + 1
        memset(at, 0, 7)  # no tagged fields; not throttled; no error
        at = put_i32(at + 7, self._session_id)
        at[0] = 2
        memcpy(at + 1, PyBytes_AS_STRING(place.topic_id), 16)
        at[17] = 2
        at = put_i32(at + 18, place.index)
        at[0] = at[1] = 0
        at = put_i64(put_i64(put_i64(at + 2, watermark), stable), start)
        at[0] = 0
        at = put_i32(at + 1, -1)
        while size >= 0x80:
            at[0] = <uint8_t>(size & 0x7F) | 0x80
            size >>= 7
            at += 1
        at[0] = <uint8_t>size
        return PyBytes_FromStringAndSize(<char*>head, at + 1 - head)
