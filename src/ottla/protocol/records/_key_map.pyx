# cython: language_level=3
"""Maps each key to its last offset, compiled. `key_map` is the pure Python version and test oracle.

Every loop over records or batches runs without the GIL. Every length is checked against the remaining bytes before it
is used, so no input makes this read outside its buffer.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from ottla.protocol.records.errors import CorruptRecords
from ottla.protocol.records.key_map import LOAD_MAX, Hole, Look, Sifted

include "_key_hash.pxi"
include "_key_records.pxi"
include "_key_sieve.pxi"


cdef class Held:
    """A buffer held for the duration of a call."""

    cdef Py_buffer buffer

    def __cinit__(self, data):
        PyObject_GetBuffer(data, &self.buffer, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


cdef Batch opened(header, Held body):
    cdef Batch batch
    batch.body.at = <const uint8_t*>body.buffer.buf
    batch.body.end = batch.body.at + body.buffer.len
    batch.base_offset = header.base_offset
    batch.base_timestamp = header.base_timestamp
    batch.max_timestamp = header.max_timestamp
    batch.has_append_time = header.is_log_append_time
    batch.last_offset_delta = header.last_offset_delta
    batch.record_count = header.record_count
    batch.previous_delta = -1
    return batch


cdef class KeyMap:
    cdef Entry* _entries
    cdef uint64_t _places
    cdef int64_t _count
    cdef int64_t _keys_max
    cdef uint64_t _k0
    cdef uint64_t _k1

    def __cinit__(self, int64_t keys_max, bytes hash_key not None):
        if keys_max < 1 or len(hash_key) != 16:
            raise ValueError("a map needs space for a key and 16 bytes for its hash")
        self._keys_max = keys_max
        self._places = <uint64_t>(keys_max / LOAD_MAX) + 1
        self._k0 = int.from_bytes(hash_key[:8], "little")
        self._k1 = int.from_bytes(hash_key[8:], "little")
        self._entries = <Entry*>calloc(self._places, sizeof(Entry))
        if self._entries == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._entries)

    def __len__(self):
        return self._count

    def has_room_for(self, int64_t keys):
        return self._count + keys <= self._keys_max

    cdef Entry* _find(self, Entry* wanted) noexcept nogil:
        """Returns the key's slot, or the free slot where it belongs. There is always a free one."""
        cdef uint64_t place = ottla_place(wanted.low, self._places)
        cdef Entry* entry
        while True:
            entry = &self._entries[place]
            if entry.offset == 0 or (entry.low == wanted.low and entry.high == wanted.high):
                return entry
            place += 1
            if place == self._places:
                place = 0

    cdef int _note(self, Batch* batch) noexcept nogil:
        cdef View view
        cdef Entry wanted
        cdef Entry* entry
        cdef int32_t index
        for index in range(batch.record_count):
            if next_record(batch, &view):
                return MALFORMED
            if view.key_size >= 0:
                hash_key_of(view.key, view.key_size, self._k0, self._k1, &wanted)
                entry = self._find(&wanted)
                if entry.offset == 0:
                    entry.low, entry.high = wanted.low, wanted.high
                    self._count += 1
                entry.offset = view.offset + 1
        return FINE if batch.body.at == batch.body.end else MALFORMED

    cdef bint _keeps(self, View* view, bint drops_tombstones) noexcept nogil:
        cdef Entry wanted
        if view.key_size < 0:
            return False
        hash_key_of(view.key, view.key_size, self._k0, self._k1, &wanted)
        if view.offset + 1 < self._find(&wanted).offset:
            return False
        return view.value_size >= 0 or not drops_tombstones

    cdef int _look(self, Batch* batch, bint drops_tombstones, Growing* flags, Kept* kept) noexcept nogil:
        cdef View view
        cdef int32_t index
        cdef bint keeps
        kept.records, kept.tombstones, kept.max_timestamp = 0, 0, -1
        # A record takes at least seven bytes, so a count that does not fit is false.
        if batch.record_count < 0 or batch.record_count > (batch.body.end - batch.body.at) // 7:
            return MALFORMED
        flags.size = 0
        if reserve(flags, batch.record_count + 1):
            return NO_MEMORY
        for index in range(batch.record_count):
            if next_record(batch, &view):
                return MALFORMED
            keeps = self._keeps(&view, drops_tombstones)
            flags.data[index] = keeps
            if keeps:
                if kept.records == 0 or view.timestamp_ms > kept.max_timestamp:
                    kept.max_timestamp = view.timestamp_ms
                kept.records += 1
                kept.tombstones += view.value_size < 0
        return FINE if batch.body.at == batch.body.end else MALFORMED

    def note(self, header, body):
        cdef Held held = Held(body)
        cdef Batch batch = opened(header, held)
        cdef int fault
        if self._count + batch.record_count > self._keys_max:
            raise ValueError("there is no space for so many keys")
        with nogil:
            fault = self._note(&batch)
        if fault:
            raise failure(fault)

    def look(self, header, body, bint drops_tombstones):
        cdef Held held = Held(body)
        cdef Batch batch = opened(header, held)
        cdef Growing flags
        cdef Kept kept
        cdef int fault
        memset(&flags, 0, sizeof(Growing))
        with nogil:
            fault = self._look(&batch, drops_tombstones, &flags, &kept)
            free(flags.data)
        if fault:
            raise failure(fault)
        return Look(kept.records, kept.tombstones, kept.max_timestamp)

    def rewrite(self, header, body, bint drops_tombstones, int64_t base_timestamp):
        cdef Held held = Held(body)
        cdef Batch batch = opened(header, held)
        cdef Growing flags, out
        cdef Kept kept
        cdef int fault
        memset(&flags, 0, sizeof(Growing))
        memset(&out, 0, sizeof(Growing))
        with nogil:
            fault = self._look(&batch, drops_tombstones, &flags, &kept)
            if not fault:
                batch.body.at, batch.previous_delta = <const uint8_t*>held.buffer.buf, -1
                fault = copy_kept(&batch, flags.data, base_timestamp, &out)
            free(flags.data)
        try:
            if fault:
                raise failure(fault)
            return PyBytes_FromStringAndSize(<const char*>out.data, out.size)
        finally:
            free(out.data)

    def note_batches(self, data, int64_t next_offset):
        cdef Held held = Held(data)
        cdef const uint8_t* at = <const uint8_t*>held.buffer.buf
        cdef const uint8_t* end = at + held.buffer.len
        cdef Batch batch
        with nogil:
            while is_plain(at, end, next_offset, &batch):
                if self._count + batch.record_count > self._keys_max:
                    break
                if batch.record_count and self._note(&batch):
                    break  # the general path reports what is wrong with it
                next_offset = batch.base_offset + batch.last_offset_delta + 1
                at += u32_at(at + 8) + LOG_OVERHEAD_BYTES
        return at - <const uint8_t*>held.buffer.buf, next_offset

    def sift_batches(self, data, int64_t next_offset, sifting, hole):
        cdef Held held = Held(data)
        cdef const uint8_t* begin = <const uint8_t*>held.buffer.buf
        cdef const uint8_t* at = begin
        cdef const uint8_t* end = at + held.buffer.len
        cdef Sieve sieve
        cdef int fault = FINE
        memset(&sieve, 0, sizeof(Sieve))
        sieve.next_offset = next_offset
        sieve.upto, sieve.now_ms, sieve.horizon_ms = sifting.upto, sifting.now_ms, sifting.horizon_ms
        if hole is not None:
            sieve.has_hole = True
            sieve.hole_first, sieve.hole_end, sieve.hole_epoch = hole
        try:
            take_last_batches(&sieve, sifting.last_batches)
            with nogil:
                at = self._sift(&sieve, at, end, &fault)
            if fault == NO_MEMORY:
                raise MemoryError
            return None if at == begin else finished(&sieve, at - begin)
        finally:
            free(sieve.last_batches)
            free(sieve.out.data)
            free(sieve.places.data)
            free(sieve.kept.data)

    cdef const uint8_t* _sift(self, Sieve* sieve, const uint8_t* at, const uint8_t* end, int* fault) noexcept nogil:
        cdef Batch batch
        while is_plain(at, end, sieve.next_offset, &batch):
            if batch.base_offset + batch.last_offset_delta >= sieve.upto:
                break
            fault[0] = self._sift_one(sieve, at, &batch)
            if fault[0]:
                break  # the general path reports what is wrong with it
            sieve.next_offset = batch.base_offset + batch.last_offset_delta + 1
            at += u32_at(at + 8) + LOG_OVERHEAD_BYTES
        return at

    cdef int _sift_one(self, Sieve* sieve, const uint8_t* at, Batch* batch) noexcept nogil:
        cdef Py_ssize_t size = u32_at(at + 8) + LOG_OVERHEAD_BYTES
        cdef bint has_horizon = at[22] & HORIZON_BIT
        cdef bint is_new
        cdef Cursor body = batch.body
        cdef Kept kept
        cdef int fault
        if batch.record_count == 0:
            return drop_or_empty(sieve, at, batch)
        fault = self._look(batch, has_horizon and sieve.now_ms >= batch.base_timestamp, &sieve.kept, &kept)
        if fault:
            return fault
        is_new = kept.tombstones > 0 and not has_horizon
        if kept.records == 0:
            fault = drop_or_empty(sieve, at, batch)
        elif kept.records == batch.record_count and not is_new:
            fault = begin_batch(sieve, at, batch, size)
            if not fault:
                put(&sieve.out, at, size)
        else:
            batch.body, batch.previous_delta = body, -1
            fault = put_changed(sieve, at, batch, &kept, is_new)
        if not fault:
            sieve.removed += batch.record_count - kept.records
        return fault
