"""The simulated world: virtual time, and a disk that loses, tears, reorders and stalls writes. A failure prints its
seed."""
