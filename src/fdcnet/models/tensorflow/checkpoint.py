"""TensorFlow's checkpoints: version 1 is one file; version 2 is NAME.index and NAME.data-00000-of-00001.

Both readers return the float32 variables that are stored whole. Checksums are not compared: the archives that
checkpoints come in have their own.
"""

import math
from collections.abc import Callable

import numpy as np

from fdcnet.models.tensorflow.messages import FLOAT32, fields, floats_of, integer, shape_of, text
from fdcnet.models.tensorflow.table import is_table, read_table

MAX_SHARDS = 16
LITTLE_ENDIAN = 0
ZERO = memoryview(b"")  # what an absent integer means

# Field numbers of version 1
META, DATA, TENSOR = 1, 2, 1
NAME, SHAPE, DTYPE = 1, 2, 3  # of a variable
EXTENTS, VALUES, EXTENT = 2, 3, 1  # of a slice; its name is NAME
# Field numbers of version 2
NUM_SHARDS, BYTE_ORDER = 1, 2
ENTRY_DTYPE, ENTRY_SHAPE, SHARD, OFFSET, SIZE, SLICES = 1, 2, 3, 4, 5, 7


def read_version_1(file: memoryview) -> dict[str, np.ndarray]:
    entries = read_table(file)
    header = dict(fields(next(entries)[1]))
    metas = (dict(fields(meta)) for number, meta in fields(header[META]) if number == TENSOR)
    shapes = {text(meta[NAME]): shape_of(meta[SHAPE]) for meta in metas if integer(meta[DTYPE]) == FLOAT32}
    variables = {}
    for _, entry in entries:
        data = dict(fields(dict(fields(entry))[DATA]))
        name = text(data[NAME])
        whole = not any(len(extent) for number, extent in fields(data[EXTENTS]) if number == EXTENT)
        if name in shapes and whole:
            variables[name] = floats_of(data[VALUES]).reshape(shapes[name])
    return variables


def read_version_2(index: memoryview, open_shard: Callable[[str], memoryview]) -> dict[str, np.ndarray]:
    """`open_shard` gets what the name of a data file ends with."""
    if not is_table(index):
        raise ValueError("not a table")
    entries = read_table(index)
    header = dict(fields(next(entries)[1]))
    num_shards = integer(header[NUM_SHARDS])
    if not 0 < num_shards <= MAX_SHARDS or integer(header.get(BYTE_ORDER, ZERO)) != LITTLE_ENDIAN:
        raise ValueError("too many data files, or another byte order")
    shards: dict[int, memoryview] = {}
    variables = {}
    for key, value in entries:
        entry = dict(fields(value))
        if integer(entry[ENTRY_DTYPE]) != FLOAT32 or SLICES in entry:
            continue
        shard, offset, size = (integer(entry.get(number, ZERO)) for number in (SHARD, OFFSET, SIZE))
        shape = shape_of(entry[ENTRY_SHAPE])
        if shard >= num_shards or size != 4 * math.prod(shape):
            raise ValueError("a size that is not that of the shape")
        if shard not in shards:
            shards[shard] = open_shard(f".data-{shard:05d}-of-{num_shards:05d}")
        variables[key.decode()] = np.frombuffer(shards[shard][offset : offset + size], "<f4").reshape(shape)
    return variables
