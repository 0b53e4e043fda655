"""Record batches: the header view, checksums, codecs, and the bridge between records, columns and bytes."""
