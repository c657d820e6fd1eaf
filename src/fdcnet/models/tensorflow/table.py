"""Sorted tables of keys and values (LevelDB's format): what TensorFlow's checkpoints consist of."""

from collections.abc import Iterator

from fdcnet.models.tensorflow.messages import varint

MAGIC = bytes.fromhex("57fb808b247547db")
FOOTER = 48  # two handles of blocks, padding, MAGIC
TRAILER = 5  # after each block: kind of compression, checksum
MAX_KEY = 4096  # bytes. A key repeats the start of the one before, so a small file could hold long ones
MAX_ENTRIES = 100_000


def is_table(file: memoryview) -> bool:
    return len(file) >= FOOTER and file[-len(MAGIC) :] == MAGIC


def read_table(file: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Keys and values in their order. Raises `ValueError` if the file is malformed."""
    position = len(file) - FOOTER
    for _ in range(2):  # the handle of the meta index, which is not needed
        _, position = varint(file, position)
    num_entries = 0
    for _, handle in _entries(_block(file, file[position:])):
        for entry in _entries(_block(file, handle)):
            num_entries += 1
            if num_entries > MAX_ENTRIES:
                raise ValueError(f"more than {MAX_ENTRIES} entries")
            yield entry


def _block(file: memoryview, handle: memoryview) -> memoryview:
    offset, position = varint(handle, 0)
    size, _ = varint(handle, position)
    if offset + size + TRAILER > len(file):
        raise ValueError("a block outside of the file")
    if file[offset + size] != 0:
        raise ValueError("a compressed block, which TensorFlow does not write")
    return file[offset : offset + size]


def _entries(block: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    num_restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * num_restarts
    if end < 0:
        raise ValueError("a block without entries")
    key, position = b"", 0
    while position < end:
        shared, position = varint(block, position)
        own, position = varint(block, position)
        size, position = varint(block, position)
        if shared > len(key) or shared + own > MAX_KEY or position + own + size > end:
            raise ValueError("an entry outside of its block")
        key = key[:shared] + bytes(block[position : position + own])
        position += own
        yield key, block[position : position + size]
        position += size
