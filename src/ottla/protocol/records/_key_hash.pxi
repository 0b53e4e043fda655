# The CRC of batches, and the hash of keys: SipHash-2-4 with 128 bits.

cdef extern from *:
    """
    #include <stdint.h>
    #include <stddef.h>
    #include <string.h>

    static uint32_t ottla_crc_table[8][256];

    static void ottla_crc_prepare(void) {
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t crc = n;
            for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
            ottla_crc_table[0][n] = crc;
        }
        for (uint32_t n = 0; n < 256; n++)
            for (int k = 1; k < 8; k++) {
                uint32_t before = ottla_crc_table[k - 1][n];
                ottla_crc_table[k][n] = (before >> 8) ^ ottla_crc_table[0][before & 0xFF];
            }
    }

    static uint32_t ottla_crc_plain(uint32_t crc, const uint8_t* at, size_t size) {
        while (size >= 8) {
            uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8
                                  | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
            crc = ottla_crc_table[7][low & 0xFF] ^ ottla_crc_table[6][low >> 8 & 0xFF]
                ^ ottla_crc_table[5][low >> 16 & 0xFF] ^ ottla_crc_table[4][low >> 24]
                ^ ottla_crc_table[3][at[4]] ^ ottla_crc_table[2][at[5]]
                ^ ottla_crc_table[1][at[6]] ^ ottla_crc_table[0][at[7]];
            at += 8; size -= 8;
        }
        while (size--) crc = (crc >> 8) ^ ottla_crc_table[0][(crc ^ *at++) & 0xFF];
        return crc;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    __attribute__((target("sse4.2")))
    static uint32_t ottla_crc_fast(uint32_t crc, const uint8_t* at, size_t size) {
        uint64_t wide = crc;
        while (size >= 8) {
            uint64_t word;
            memcpy(&word, at, 8);
            wide = __builtin_ia32_crc32di(wide, word);
            at += 8; size -= 8;
        }
        crc = (uint32_t)wide;
        while (size--) crc = __builtin_ia32_crc32qi(crc, *at++);
        return crc;
    }
    static uint32_t ottla_crc32c(const uint8_t* at, size_t size) {
        if (__builtin_cpu_supports("sse4.2")) return ~ottla_crc_fast(0xFFFFFFFFu, at, size);
        return ~ottla_crc_plain(0xFFFFFFFFu, at, size);
    }
    #else
    static uint32_t ottla_crc32c(const uint8_t* at, size_t size) {
        return ~ottla_crc_plain(0xFFFFFFFFu, at, size);
    }
    #endif

    static uint64_t ottla_place(uint64_t hash, uint64_t places) {
        return (uint64_t)(((unsigned __int128)hash * places) >> 64);
    }
    """
    void ottla_crc_prepare() nogil
    uint32_t ottla_crc32c(const uint8_t*, size_t) nogil
    uint64_t ottla_place(uint64_t, uint64_t) nogil
    bint __builtin_add_overflow(int64_t, int64_t, int64_t*) nogil
    bint __builtin_sub_overflow(int64_t, int64_t, int64_t*) nogil

ottla_crc_prepare()

cdef struct Entry:
    uint64_t low
    uint64_t high
    int64_t offset  # the offset plus one; 0 marks a free slot


cdef inline uint64_t rotated(uint64_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (64 - bits))


cdef inline void rounds(uint64_t* v, int count) noexcept nogil:
    cdef int i
    for i in range(count):
        v[0] += v[1]
        v[1] = rotated(v[1], 13) ^ v[0]
        v[0] = rotated(v[0], 32)
        v[2] += v[3]
        v[3] = rotated(v[3], 16) ^ v[2]
        v[0] += v[3]
        v[3] = rotated(v[3], 21) ^ v[0]
        v[2] += v[1]
        v[1] = rotated(v[1], 17) ^ v[2]
        v[2] = rotated(v[2], 32)


cdef void hash_key_of(const uint8_t* data, int32_t size, uint64_t k0, uint64_t k1, Entry* into) noexcept nogil:
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef int32_t left = size, i
    v[0] = k0 ^ <uint64_t>0x736F6D6570736575
    v[1] = k1 ^ <uint64_t>0x646F72616E646F6D ^ 0xEE
    v[2] = k0 ^ <uint64_t>0x6C7967656E657261
    v[3] = k1 ^ <uint64_t>0x7465646279746573
    while left >= 8:
        memcpy(&word, data, 8)
        v[3] ^= word
        rounds(v, 2)
        v[0] ^= word
        data += 8
        left -= 8
    word = <uint64_t>(size & 0xFF) << 56
    for i in range(left):
        word |= <uint64_t>data[i] << (8 * i)
    v[3] ^= word
    rounds(v, 2)
    v[0] ^= word
    v[2] ^= 0xEE
    rounds(v, 4)
    into.low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(v, 4)
    into.high = v[0] ^ v[1] ^ v[2] ^ v[3]
