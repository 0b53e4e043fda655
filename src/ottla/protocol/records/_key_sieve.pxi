# Sifts many batches at once: see Sifting and Sifted.

cdef struct Sieve:
    int64_t next_offset
    int64_t upto
    int64_t now_ms
    int64_t horizon_ms
    int64_t* last_batches
    Py_ssize_t last_count
    bint has_hole
    int64_t hole_first
    int64_t hole_end
    int32_t hole_epoch
    int64_t removed
    bint changed
    Growing out
    Growing places  # for each batch in the output: base offset, position, timestamp
    Growing kept  # for each record of a batch: whether it stays


cdef int note_place(Sieve* sieve, int64_t base_offset, int64_t max_timestamp) noexcept nogil:
    cdef int64_t place[3]
    if reserve(&sieve.places, sizeof(place)):
        return NO_MEMORY
    place[0], place[1], place[2] = base_offset, sieve.out.size, max_timestamp
    put(&sieve.places, <const uint8_t*>place, sizeof(place))
    return FINE


cdef int begin_batch(Sieve* sieve, const uint8_t* at, Batch* batch, Py_ssize_t size) noexcept nogil:
    """Fills the hole before the batch and makes room for it."""
    if fill_hole(sieve) or reserve(&sieve.out, size):
        return NO_MEMORY
    return note_place(sieve, batch.base_offset, batch.max_timestamp)


cdef void seal_batch(Sieve* sieve, Py_ssize_t begin) noexcept nogil:
    cdef uint8_t* at = sieve.out.data + begin
    cdef Py_ssize_t size = sieve.out.size - begin
    put_u32_at(at + 8, <uint32_t>(size - LOG_OVERHEAD_BYTES))
    put_u32_at(at + 17, ottla_crc32c(at + CRC_COVERS_FROM, size - CRC_COVERS_FROM))


cdef int fill_hole(Sieve* sieve) noexcept nogil:
    cdef uint8_t* at
    if not sieve.has_hole:
        return FINE
    if reserve(&sieve.out, HEADER_BYTES) or note_place(sieve, sieve.hole_first, -1):
        return NO_MEMORY
    at = sieve.out.data + sieve.out.size
    memset(at, 0, HEADER_BYTES)
    put_i64_at(at, sieve.hole_first)
    put_u32_at(at + 12, <uint32_t>sieve.hole_epoch)
    at[16] = 2
    put_u32_at(at + 23, <uint32_t>(sieve.hole_end - sieve.hole_first - 1))
    memset(at + 27, 0xFF, 30)  # no timestamps, no producer
    sieve.out.size += HEADER_BYTES
    seal_batch(sieve, sieve.out.size - HEADER_BYTES)
    sieve.has_hole = False
    return FINE


cdef bint is_last_of_producer(Sieve* sieve, int64_t base_offset) noexcept nogil:
    cdef Py_ssize_t low = 0, high = sieve.last_count, middle
    while low < high:
        middle = (low + high) // 2
        if sieve.last_batches[middle] < base_offset:
            low = middle + 1
        else:
            high = middle
    return low < sieve.last_count and sieve.last_batches[low] == base_offset


cdef int drop_or_empty(Sieve* sieve, const uint8_t* at, Batch* batch) noexcept nogil:
    cdef int64_t next_offset = batch.base_offset + batch.last_offset_delta + 1
    cdef int32_t epoch = <int32_t>u32_at(at + 12)
    cdef bint has_producer = i64_at(at + 43) >= 0
    cdef Py_ssize_t begin
    if has_producer and is_last_of_producer(sieve, batch.base_offset):
        if begin_batch(sieve, at, batch, HEADER_BYTES):
            return NO_MEMORY
        begin = sieve.out.size
        put(&sieve.out, at, HEADER_BYTES)
        sieve.out.data[begin + 22] &= 0xFF ^ HORIZON_BIT
        put_u32_at(sieve.out.data + begin + 57, 0)
        seal_batch(sieve, begin)
        sieve.changed |= batch.record_count > 0
        return FINE
    if sieve.has_hole and (sieve.hole_epoch != epoch or next_offset - sieve.hole_first > INT32_MAX):
        if fill_hole(sieve):
            return NO_MEMORY
    if sieve.has_hole or has_producer or batch.record_count > 0:
        sieve.changed = True
    if not sieve.has_hole:
        sieve.has_hole = True
        sieve.hole_first, sieve.hole_epoch = batch.base_offset, epoch
    sieve.hole_end = next_offset
    return FINE


cdef int put_changed(Sieve* sieve, const uint8_t* at, Batch* batch, Kept* kept, bint is_new) noexcept nogil:
    cdef int64_t base_timestamp = sieve.horizon_ms if is_new else batch.base_timestamp
    cdef int64_t max_timestamp = batch.max_timestamp if batch.has_append_time else kept.max_timestamp
    cdef Py_ssize_t begin
    cdef uint8_t* header
    cdef int fault
    if fill_hole(sieve) or reserve(&sieve.out, HEADER_BYTES):
        return NO_MEMORY
    begin = sieve.out.size
    if note_place(sieve, batch.base_offset, max_timestamp):
        return NO_MEMORY
    put(&sieve.out, at, HEADER_BYTES)
    fault = copy_kept(batch, sieve.kept.data, base_timestamp, &sieve.out)
    if fault:
        # Undo the batch: the general path takes it from here, and the hole before it is filled.
        sieve.out.size = begin
        sieve.places.size -= 24
        return fault
    header = sieve.out.data + begin
    if is_new:
        header[22] |= HORIZON_BIT
        put_i64_at(header + 27, base_timestamp)
    put_i64_at(header + 35, max_timestamp)
    put_u32_at(header + 57, <uint32_t>kept.records)
    seal_batch(sieve, begin)
    sieve.changed = True
    return FINE


cdef int take_last_batches(Sieve* sieve, offsets) except -1:
    cdef Py_ssize_t index
    sieve.last_count = len(offsets)
    sieve.last_batches = <int64_t*>malloc(max(sieve.last_count, 1) * sizeof(int64_t))
    if sieve.last_batches == NULL:
        raise MemoryError
    for index in range(sieve.last_count):
        sieve.last_batches[index] = offsets[index]
    return 0


cdef object finished(Sieve* sieve, Py_ssize_t taken_bytes):
    cdef int64_t* place = <int64_t*>sieve.places.data
    cdef Py_ssize_t index, count = sieve.places.size // 24
    cdef list bases = [place[3 * index] for index in range(count)]
    cdef list positions = [place[3 * index + 1] for index in range(count)]
    cdef list timestamps = [place[3 * index + 2] for index in range(count)]
    hole = Hole(sieve.hole_first, sieve.hole_end, sieve.hole_epoch) if sieve.has_hole else None
    data = PyBytes_FromStringAndSize(<const char*>sieve.out.data, sieve.out.size)
    return Sifted(
        taken_bytes, sieve.next_offset, data, bases, positions, timestamps, hole, sieve.removed, bool(sieve.changed)
    )
