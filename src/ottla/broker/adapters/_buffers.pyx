"""Receive buffers with recycled memory.

Fresh memory is expensive: the kernel clears each page on first use, and a new bytearray is cleared once more. A buffer
here is not cleared, and its memory returns to a free list when the Buffer object itself is deallocated. Every
memoryview of it keeps it alive, so memory that a transport, a journal write or a cache still holds is never reused.

The pure Python version uses a bytearray: see `buffers.py`.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdlib cimport calloc, free

cdef extern from "sys/mman.h" nogil:
    enum: PROT_READ
    enum: PROT_WRITE
    enum: MAP_PRIVATE
    enum: MAP_ANONYMOUS
    void* MAP_FAILED
    void* mmap(void*, size_t, int, int, int, long)
    int munmap(void*, size_t)

cdef enum:
    SMALLEST_CLASS_BITS = 16
    CLASS_COUNT = 12

cdef struct FreeBlock:
    FreeBlock* next


cdef inline void* map_pages(size_t size) noexcept:
    """Maps separate pages for each buffer. On the heap, free memory between live buffers could not be returned to the
    system."""
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)


cdef struct PoolState:
    FreeBlock* free_blocks[CLASS_COUNT]
    size_t free_bytes
    size_t free_bytes_max
    size_t used_bytes
    Py_ssize_t references


cdef inline int class_of(size_t size) noexcept:
    """Returns the smallest size class that holds this size; CLASS_COUNT if none does."""
    cdef int number = 0
    while number < CLASS_COUNT and (<size_t>1 << (SMALLEST_CLASS_BITS + number)) < size:
        number += 1
    return number


cdef inline size_t class_bytes(int number) noexcept:
    return <size_t>1 << (SMALLEST_CLASS_BITS + number)


cdef void drop_reference(PoolState* pool) noexcept:
    pool.references -= 1
    if pool.references == 0:
        free_unused(pool)
        free(pool)


cdef void free_unused(PoolState* pool) noexcept:
    cdef int number
    cdef FreeBlock* block
    for number in range(CLASS_COUNT):
        while pool.free_blocks[number] != NULL:
            block = pool.free_blocks[number]
            pool.free_blocks[number] = block.next
            munmap(block, class_bytes(number))
    pool.free_bytes = 0


@cython.no_gc
@cython.final
cdef class Buffer:
    """Uninitialised, writable, page-aligned memory of a fixed size."""

    cdef PoolState* _pool
    cdef void* _memory
    cdef Py_ssize_t _size
    cdef size_t _capacity
    cdef int _class

    def __init__(self):
        raise TypeError("create buffers with BufferPool.allocate")

    def __len__(self):
        return self._size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self._memory, self._size, 0, flags)

    def __dealloc__(self):
        cdef PoolState* pool = self._pool
        if pool == NULL:
            return
        if self._memory != NULL:
            pool.used_bytes -= self._capacity
            if self._class < CLASS_COUNT and pool.free_bytes + self._capacity <= pool.free_bytes_max:
                (<FreeBlock*>self._memory).next = pool.free_blocks[self._class]
                pool.free_blocks[self._class] = <FreeBlock*>self._memory
                pool.free_bytes += self._capacity
            else:
                munmap(self._memory, self._capacity)
        drop_reference(pool)


@cython.final
cdef class BufferPool:
    """A pool of memory blocks whose sizes are powers of two from 64 KiB. Blocks larger than 128 MiB are not reused."""

    cdef PoolState* _state

    def __cinit__(self, size_t free_bytes_max):
        self._state = <PoolState*>calloc(1, sizeof(PoolState))
        if self._state == NULL:
            raise MemoryError
        self._state.free_bytes_max = free_bytes_max
        self._state.references = 1

    def __dealloc__(self):
        if self._state != NULL:
            drop_reference(self._state)

    def allocate(self, Py_ssize_t size):
        if size < 0:
            raise ValueError("the size of a buffer must not be negative")
        cdef PoolState* pool = self._state
        cdef Buffer buffer = Buffer.__new__(Buffer)
        cdef int number = class_of(size)
        cdef void* memory = NULL
        buffer._class = number
        buffer._capacity = class_bytes(number) if number < CLASS_COUNT else size
        if number < CLASS_COUNT and pool.free_blocks[number] != NULL:
            memory = pool.free_blocks[number]
            pool.free_blocks[number] = pool.free_blocks[number].next
            pool.free_bytes -= buffer._capacity
        else:
            memory = map_pages(buffer._capacity)
            if memory == MAP_FAILED:
                raise MemoryError
        buffer._memory = memory
        buffer._size = size
        buffer._pool = pool
        pool.references += 1
        pool.used_bytes += buffer._capacity
        return buffer

    @property
    def free_bytes(self):
        """Bytes of memory that are free for reuse."""
        return self._state.free_bytes

    @property
    def used_bytes(self):
        """Bytes of memory in live buffers."""
        return self._state.used_bytes

    def trim(self):
        """Returns the free memory to the operating system."""
        free_unused(self._state)
