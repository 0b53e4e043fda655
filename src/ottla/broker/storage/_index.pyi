from array import array

def note_run(
    offsets: array[int],
    positions: array[int],
    times: array[int],
    due: int,
    interval_bytes: int,
    bases: list[int],
    base_offset: int,
    begins: list[int],
    begin: int,
    timestamps: list[int],
    newest: int,
) -> tuple[int, int]: ...
