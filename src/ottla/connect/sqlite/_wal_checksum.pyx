"""The running checksum of SQLite's WAL, over 32-bit words in pairs. The Python twin in `checksum.py` says more."""

from libc.stdint cimport uint32_t


cdef inline uint32_t _swapped(uint32_t word) noexcept nogil:
    return (word >> 24) | ((word >> 8) & 0xFF00) | ((word << 8) & 0xFF0000) | (word << 24)


def wal_checksum(data, bint big_endian, uint32_t first, uint32_t second):
    cdef const unsigned char[::1] octets = data
    cdef Py_ssize_t count = octets.shape[0]
    if count % 8:
        raise ValueError("the checksum is over pairs of 32-bit words")
    if count == 0:
        return first, second
    cdef const uint32_t *words = <const uint32_t *>&octets[0]
    cdef uint32_t probe = 1
    cdef bint swap = big_endian == ((<unsigned char *>&probe)[0] == 1)
    cdef Py_ssize_t i
    with nogil:
        if swap:
            for i in range(0, count // 4, 2):
                first += _swapped(words[i]) + second
                second += _swapped(words[i + 1]) + first
        else:
            for i in range(0, count // 4, 2):
                first += words[i] + second
                second += words[i + 1] + first
    return first, second
