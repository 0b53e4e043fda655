# cython: language_level=3
"""An io_uring with one write in flight, through plain system calls. Used only by `uring.py`."""

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy
from posix.unistd cimport read

import os

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void**, size_t, size_t)

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <linux/io_uring.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <sys/syscall.h>
    #include <unistd.h>

    struct ring {
        int fd;
        unsigned setup_flags, queued;
        unsigned *sq_tail, *sq_mask, *sq_array, *sq_flags, *cq_head, *cq_tail, *cq_mask;
        struct io_uring_sqe *sqes;
        struct io_uring_cqe *cqes;
    };

    static int ring_open(struct ring *ring, unsigned flags) {
        struct io_uring_params params;
        memset(&params, 0, sizeof params);
        params.flags = flags;
        params.sq_thread_idle = 1;
        int fd = syscall(__NR_io_uring_setup, 8, &params);
        if (fd < 0) return -errno;
        size_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
        size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
        size_t bytes = sq_bytes > cq_bytes ? sq_bytes : cq_bytes;
        char *shared = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
        ring->sqes = mmap(0, params.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                          IORING_OFF_SQES);
        if (shared == MAP_FAILED || ring->sqes == MAP_FAILED) { close(fd); return -ENOMEM; }
        ring->fd = fd;
        ring->setup_flags = flags;
        ring->sq_tail = (unsigned *)(shared + params.sq_off.tail);
        ring->sq_mask = (unsigned *)(shared + params.sq_off.ring_mask);
        ring->sq_array = (unsigned *)(shared + params.sq_off.array);
        ring->sq_flags = (unsigned *)(shared + params.sq_off.flags);
        ring->cq_head = (unsigned *)(shared + params.cq_off.head);
        ring->cq_tail = (unsigned *)(shared + params.cq_off.tail);
        ring->cq_mask = (unsigned *)(shared + params.cq_off.ring_mask);
        ring->cqes = (struct io_uring_cqe *)(shared + params.cq_off.cqes);
        return fd;
    }

    static struct io_uring_sqe *ring_next(struct ring *ring) {
        unsigned index = (*ring->sq_tail + ring->queued) & *ring->sq_mask;
        ring->sq_array[index] = index;
        ring->queued++;
        return memset(&ring->sqes[index], 0, sizeof(struct io_uring_sqe));
    }

    static void ring_write(struct ring *ring, int fd, void *data, unsigned bytes, long long offset, unsigned flags) {
        struct io_uring_sqe *sqe = ring_next(ring);
        sqe->opcode = IORING_OP_WRITE;
        sqe->fd = fd;
        sqe->addr = (unsigned long)data;
        sqe->len = bytes;
        sqe->off = offset;
        sqe->flags = flags;
        sqe->user_data = !(flags & IOSQE_IO_LINK);
        if (!(flags & IOSQE_IO_LINK)) return;
        sqe = ring_next(ring);
        sqe->opcode = IORING_OP_FSYNC;
        sqe->fd = fd;
        sqe->fsync_flags = IORING_FSYNC_DATASYNC;
        sqe->user_data = 1;
    }

    static int ring_submit(struct ring *ring) {
        unsigned queued = ring->queued;
        unsigned wake = 0;
        ring->queued = 0;
        __atomic_store_n(ring->sq_tail, *ring->sq_tail + queued, __ATOMIC_SEQ_CST);
        if (ring->setup_flags & IORING_SETUP_SQPOLL) {
            if (!(__atomic_load_n(ring->sq_flags, __ATOMIC_SEQ_CST) & IORING_SQ_NEED_WAKEUP)) return 0;
            wake = IORING_ENTER_SQ_WAKEUP;
        }
        return syscall(__NR_io_uring_enter, ring->fd, queued, 0, wake, 0, 0) < 0 ? -errno : 0;
    }

    /* 1 if the last step of a write is over; its failure, if there was one, in `error`. */
    static int ring_reap(struct ring *ring, int bytes, int *error) {
        int found = 0;
        unsigned head = *ring->cq_head;
        if (ring->setup_flags & IORING_SETUP_DEFER_TASKRUN)
            syscall(__NR_io_uring_enter, ring->fd, 0, 0, IORING_ENTER_GETEVENTS, 0, 0);
        while (head != __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE)) {
            struct io_uring_cqe *cqe = &ring->cqes[head & *ring->cq_mask];
            if (cqe->res < 0) *error = -cqe->res;
            else if (cqe->res && cqe->res != bytes) *error = EIO;
            found |= (int)cqe->user_data;
            head++;
        }
        __atomic_store_n(ring->cq_head, head, __ATOMIC_RELEASE);
        return found;
    }

    static int ring_tell(struct ring *ring, int eventfd) {
        return syscall(__NR_io_uring_register, ring->fd, IORING_REGISTER_EVENTFD, &eventfd, 1) < 0 ? -errno : 0;
    }
    """
    enum: IORING_SETUP_COOP_TASKRUN
    enum: IORING_SETUP_DEFER_TASKRUN
    enum: IORING_SETUP_SINGLE_ISSUER
    enum: IORING_SETUP_SQPOLL
    enum: IOSQE_ASYNC
    enum: IOSQE_IO_LINK
    struct ring:
        int fd
    int ring_open(ring*, unsigned)
    void ring_write(ring*, int, void*, unsigned, int64_t, unsigned)
    int ring_submit(ring*)
    int ring_reap(ring*, int, int*)
    int ring_tell(ring*, int)

COOPERATIVE = IORING_SETUP_COOP_TASKRUN
DEFERRED = IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER
POLLED = IORING_SETUP_SQPOLL
BY_A_WORKER = IOSQE_ASYNC
THEN_SYNC = IOSQE_IO_LINK


cdef class RingQueue:
    """Writes one block at a time. The caller's thread submits it, and an eventfd of the loop reports its completion."""

    cdef ring _ring
    cdef object _loop
    cdef object _done
    cdef void* _aligned
    cdef int _eventfd
    cdef int _fd
    cdef int _bytes
    cdef unsigned _write_flags

    def __init__(self, loop, int fd, Py_ssize_t bytes_max, unsigned setup_flags, unsigned write_flags):
        self._loop = loop
        self._fd = fd
        self._write_flags = write_flags
        _demand(ring_open(&self._ring, setup_flags))
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        _demand(ring_tell(&self._ring, self._eventfd))
        if posix_memalign(&self._aligned, 4096, bytes_max):
            raise MemoryError
        loop.add_reader(self._eventfd, self._drain)

    def write(self, int64_t offset, const unsigned char[::1] data, done):
        self._done = done
        self._bytes = <int>data.shape[0]
        memcpy(self._aligned, &data[0], data.shape[0])
        ring_write(&self._ring, self._fd, self._aligned, <unsigned>data.shape[0], offset, self._write_flags)
        _demand(ring_submit(&self._ring))

    def _drain(self):
        cdef uint64_t count
        cdef int error = 0
        read(self._eventfd, &count, sizeof(count))
        if not ring_reap(&self._ring, self._bytes, &error):
            return
        done, self._done = self._done, None
        done(OSError(error, os.strerror(error)) if error else None)

    def close(self):
        """Closes the ring. No write may be in flight."""
        self._loop.remove_reader(self._eventfd)
        os.close(self._eventfd)
        os.close(self._ring.fd)
        free(self._aligned)


def _demand(int result):
    if result < 0:
        raise OSError(-result, os.strerror(-result))
