"""TensorFlow's messages (protocol buffers), as far as weights need them. Whatever is malformed raises `ValueError`."""

from collections.abc import Iterator

import numpy as np

VARINT, BYTES, FIXED = 0, 2, {1: 8, 5: 4}  # wire types; those of a fixed size in bytes
MAX_VARINT_BYTES = 10
MAX_FIELDS = 100_000  # of one message; each becomes an object
MAX_DIMS, MAX_SIZE = 8, 2**31
FLOAT32 = 1

# Field numbers
DTYPE, SHAPE, CONTENT, FLOATS = 1, 2, 4, 5  # of a TensorProto
DIM, SIZE = 2, 1


def fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and bytes of each field; an integer as eight bytes, lowest first."""
    position = num_fields = 0
    while position < len(message):
        num_fields += 1
        if num_fields > MAX_FIELDS:
            raise ValueError(f"a message of more than {MAX_FIELDS} fields")
        tag, position = varint(message, position)
        wire, size = tag & 7, 0
        if wire == VARINT:
            value, position = varint(message, position)
            yield tag >> 3, memoryview(value.to_bytes(8, "little"))
            continue
        if wire == BYTES:
            size, position = varint(message, position)
        elif wire in FIXED:
            size = FIXED[wire]
        if wire not in (BYTES, *FIXED) or position + size > len(message):
            raise ValueError("not a protocol buffer")
        yield tag >> 3, message[position : position + size]
        position += size


def varint(message: memoryview, position: int) -> tuple[int, int]:
    """An integer, and the position after it."""
    value = 0
    for i, byte in enumerate(message[position : position + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & (2**64 - 1), position + i + 1
    raise ValueError("an integer without an end")


def integer(value: memoryview) -> int:
    return int.from_bytes(value, "little")


def text(value: memoryview) -> str:
    return bytes(value).decode()


def shape_of(message: memoryview) -> tuple[int, ...]:
    """The sizes in a TensorShapeProto."""
    dims = [dim for number, dim in fields(message) if number == DIM]
    shape = tuple(sum(integer(size) for key, size in fields(dim) if key == SIZE) for dim in dims)
    if len(shape) > MAX_DIMS or any(size > MAX_SIZE for size in shape):
        raise ValueError("a tensor that is too large")
    return shape


def floats_of(message: memoryview) -> np.ndarray:
    """The float32 values in a TensorProto, flat."""
    parts = [value for number, value in fields(message) if number in (CONTENT, FLOATS)]
    return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), "<f4")


def array_of(message: memoryview) -> np.ndarray | None:
    """A TensorProto; None if it does not hold float32 values."""
    parts = list(fields(message))
    if [integer(value) for number, value in parts if number == DTYPE] != [FLOAT32]:
        return None
    shape = next((shape_of(value) for number, value in parts if number == SHAPE), ())
    values = floats_of(message)
    # One value may fill the whole shape: a view, which needs no memory
    return np.broadcast_to(values, shape) if values.size == 1 else values.reshape(shape)
