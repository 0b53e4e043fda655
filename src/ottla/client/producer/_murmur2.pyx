# cython: language_level=3
"""murmur2 as Kafka's Java client computes it, for one key and for a column of keys.

`ottla.client.producer.murmur2` has the pure Python twin, which the tests compare with this.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t


cdef uint32_t _murmur2(const uint8_t* data, Py_ssize_t length) noexcept nogil:
    cdef uint32_t mixed = <uint32_t>0x9747B28C ^ <uint32_t>length
    cdef uint32_t multiplier = 0x5BD1E995
    cdef uint32_t word
    cdef Py_ssize_t at = 0
    while at + 4 <= length:
        word = (<uint32_t>data[at]) | (<uint32_t>data[at + 1] << 8) \
            | (<uint32_t>data[at + 2] << 16) | (<uint32_t>data[at + 3] << 24)
        word = word * multiplier
        word = word ^ (word >> 24)
        word = word * multiplier
        mixed = (mixed * multiplier) ^ word
        at += 4
    if at < length:
        if length - at == 3:
            mixed = mixed ^ (<uint32_t>data[at + 2] << 16)
        if length - at >= 2:
            mixed = mixed ^ (<uint32_t>data[at + 1] << 8)
        mixed = mixed ^ (<uint32_t>data[at])
        mixed = mixed * multiplier
    mixed = mixed ^ (mixed >> 13)
    mixed = mixed * multiplier
    return mixed ^ (mixed >> 15)


def murmur2(const uint8_t[::1] data not None):
    cdef Py_ssize_t length = data.shape[0]
    if length == 0:
        return _murmur2(NULL, 0)
    return _murmur2(&data[0], length)


def partition_column(const uint8_t[::1] values not None, const int64_t[::1] ends not None,
                     int32_t partition_count, int32_t[::1] into not None):
    """Computes the partition of each key. Key i is values[ends[i]:ends[i + 1]]."""
    cdef Py_ssize_t count = into.shape[0]
    cdef Py_ssize_t at
    cdef const uint8_t* base = &values[0] if values.shape[0] > 0 else NULL
    if ends.shape[0] < count + 1:
        raise ValueError("ends must have one entry more than there are keys")
    for at in range(count):
        if ends[at] < 0 or ends[at + 1] < ends[at] or ends[at + 1] > values.shape[0]:
            raise ValueError("a key is outside of the values")
    with nogil:
        for at in range(count):
            into[at] = <int32_t>((_murmur2(base + ends[at], <Py_ssize_t>(ends[at + 1] - ends[at]))
                                  & <uint32_t>0x7FFFFFFF) % <uint32_t>partition_count)
