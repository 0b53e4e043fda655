# cython: language_level=3
"""Assembles frames from reads, compiled. `frames` describes how it works; its plain version is the test oracle."""

cimport cython
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t
from libc.string cimport memcpy
from posix.unistd cimport read

cdef enum:
    SIZE_BYTES = 4
    FRAME_BYTES_MIN = 8
    SHARED_BYTES = 131072
    OWN_BYTES_MIN = 65536
    LARGE_FRAME_BYTES = 32768
    CARRY_BYTES_MAX = 16384
    GROWTH = 4
    SIZE_SLACK = 16


cdef inline char* memory_of(memoryview view) noexcept:
    return <char*>PyMemoryView_GET_BUFFER(view).buf


cdef inline Py_ssize_t size_of(memoryview view) noexcept:
    return PyMemoryView_GET_BUFFER(view).len


cdef inline Py_ssize_t frame_size_at(const char* data) noexcept:
    cdef const uint8_t* head = <const uint8_t*>data
    return <int32_t>((<uint32_t>head[0] << 24) | (<uint32_t>head[1] << 16) | (<uint32_t>head[2] << 8) | head[3])


@cython.final
cdef class ReceiveMemory:
    cdef object _allocate
    cdef readonly memoryview shared
    cdef readonly memoryview spare

    def __init__(self, allocate=bytearray, Py_ssize_t shared_bytes=SHARED_BYTES):
        self._allocate = allocate
        self.shared = PyMemoryView_FromObject(bytearray(shared_bytes))
        self.spare = PyMemoryView_FromObject(b"")

    cdef memoryview _new(self, Py_ssize_t size):
        cdef memoryview whole = PyMemoryView_FromObject(self._allocate(size))
        if size_of(whole) < size:
            raise MemoryError
        return whole if size_of(whole) == size else whole[:size]

    cdef memoryview _offer_spare(self, Py_ssize_t size):
        cdef Py_ssize_t spare_bytes = size_of(self.spare)
        if spare_bytes < size or spare_bytes > size + size // SIZE_SLACK:
            self.spare = self._new(size)
        return self.spare

    cdef void _take_spare(self):
        self.spare = PyMemoryView_FromObject(b"")


@cython.final
cdef class FrameAssembler:
    cdef ReceiveMemory _memory
    cdef Py_ssize_t _frame_bytes_min
    cdef Py_ssize_t _frame_bytes_max
    cdef bytes _carry
    cdef memoryview _own
    cdef bint _in_spare
    cdef Py_ssize_t _filled
    cdef Py_ssize_t _expected_bytes
    cdef readonly object refusal

    def __init__(self, ReceiveMemory memory not None, Py_ssize_t frame_bytes_max):
        self._memory = memory
        self._frame_bytes_min = FRAME_BYTES_MIN
        self._frame_bytes_max = frame_bytes_max
        self._carry = b""

    def set_limits(self, Py_ssize_t frame_bytes_min, Py_ssize_t frame_bytes_max):
        self._frame_bytes_min = frame_bytes_min
        self._frame_bytes_max = frame_bytes_max

    @property
    def held_bytes(self):
        return PyBytes_GET_SIZE(self._carry) if self._own is None else size_of(self._own)

    @property
    def begun(self):
        cdef const uint8_t* start
        if self._own is not None:
            if self._filled < SIZE_BYTES + 2:
                return None
            start = <const uint8_t*>memory_of(self._own)
        else:
            if PyBytes_GET_SIZE(self._carry) < SIZE_BYTES + 2:
                return None
            start = <const uint8_t*>PyBytes_AS_STRING(self._carry)
        return frame_size_at(<const char*>start), <int16_t>((<uint32_t>start[4] << 8) | start[5])

    cpdef memoryview buffer(self):
        cdef memoryview target
        cdef Py_ssize_t at
        if self._own is not None:
            return self._own[self._filled :]
        self._in_spare = self._expected_bytes != 0
        target = self._memory._offer_spare(self._expected_bytes) if self._in_spare else self._memory.shared
        self._filled = at = PyBytes_GET_SIZE(self._carry)
        if at == 0:
            return target
        if at > size_of(target):
            raise ValueError("the beginning of a frame is longer than its buffer")
        memcpy(memory_of(target), PyBytes_AS_STRING(self._carry), at)
        return target[at:]

    cpdef list received(self, Py_ssize_t byte_count):
        cdef list frames = []
        cdef memoryview target
        cdef Py_ssize_t end = self._filled + byte_count
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t last_bytes = 0
        cdef char* data
        if self.refusal is not None:
            return frames
        target = self._own
        if target is None:
            target = self._memory.spare if self._in_spare else self._memory.shared
        if byte_count < 0 or end > size_of(target):
            raise ValueError("more was read than there is memory")
        data = memory_of(target)
        while end - at >= SIZE_BYTES:
            size = frame_size_at(data + at)
            if size < self._frame_bytes_min or size > self._frame_bytes_max:
                self._refuse(size, data[at : at + SIZE_BYTES])
                return frames
            if size > end - at - SIZE_BYTES:
                break
            at += SIZE_BYTES
            if size < LARGE_FRAME_BYTES:
                frames.append(PyMemoryView_FromObject(PyByteArray_FromStringAndSize(data + at, size)))
            else:
                frames.append(self._large_frame(target, at, size))
            at += size
            last_bytes = size
        if frames:
            self._expected_bytes = 0
            if last_bytes >= LARGE_FRAME_BYTES:
                self._expected_bytes = SIZE_BYTES + last_bytes + last_bytes // SIZE_SLACK
        if at == end:
            self._own = None
            self._carry = b""
        else:
            self._keep_partial(target, at, end, size)
        return frames

    def read_on(self, int descriptor, Py_ssize_t bytes_max):
        cdef list frames = []
        cdef memoryview buffer
        cdef char* data
        cdef Py_ssize_t size
        cdef Py_ssize_t byte_count
        while bytes_max > 0 and self.refusal is None:
            buffer = self.buffer()
            data = memory_of(buffer)
            size = size_of(buffer)
            with nogil:
                byte_count = read(descriptor, data, size)
            if byte_count <= 0:
                break
            bytes_max -= byte_count
            frames += self.received(byte_count)
            if byte_count < size:
                break
        return frames

    cdef memoryview _large_frame(self, memoryview target, Py_ssize_t start, Py_ssize_t size):
        cdef memoryview frame
        cdef bint mine = self._own is not None or self._in_spare
        if not mine or start != SIZE_BYTES or size < size_of(target) - size_of(target) // 4:
            frame = self._memory._new(size)
            memcpy(memory_of(frame), memory_of(target) + start, size)
            return frame
        self._give_away()
        return target[start : start + size]

    cdef void _give_away(self):
        if self._own is None:
            self._memory._take_spare()

    cdef int _keep_partial(self, memoryview target, Py_ssize_t at, Py_ssize_t end, Py_ssize_t size) except -1:
        cdef Py_ssize_t arrived = end - at
        cdef Py_ssize_t needed = SIZE_BYTES + size
        cdef bint mine = self._own is not None or self._in_spare
        cdef memoryview own
        if arrived < CARRY_BYTES_MAX:
            self._carry = PyBytes_FromStringAndSize(memory_of(target) + at, arrived)
            self._own = None
            return 0
        self._carry = b""
        if at == 0 and mine and (needed <= size_of(target) or arrived < size_of(target)):
            self._give_away()
            self._own = target
        else:
            own = self._memory._new(min(needed, max(OWN_BYTES_MIN, GROWTH * arrived, self._expected_bytes)))
            memcpy(memory_of(own), memory_of(target) + at, arrived)
            self._own = own
        self._filled = arrived
        return 0

    cdef int _refuse(self, Py_ssize_t size, bytes head) except -1:
        from ottla.broker.server.frames import describe_refusal

        self.refusal = describe_refusal(size, head, self._frame_bytes_max)
        self._own = None
        self._carry = b""
        self._expected_bytes = 0
        return 0
