"""Frozen graphs: a GraphDef in a `.pb` file, with the weights as constants."""

from collections.abc import Iterator

import numpy as np

from fdcnet.models.tensorflow.messages import array_of, fields, text

NODE = 1
NAME, OP, ATTRIBUTE = 1, 2, 5
VALUE, TENSOR = 2, 8


def read_constants(graph: memoryview) -> dict[str, np.ndarray]:
    """The float32 constants, by the name of their node."""
    constants = {}
    for node in (value for number, value in fields(graph) if number == NODE):
        parts = list(fields(node))
        names, kinds = ([text(value) for key, value in parts if key == wanted] for wanted in (NAME, OP))
        arrays = [array for key, value in parts if key == ATTRIBUTE for array in _arrays_of(value)]
        if kinds == ["Const"] and names and arrays:
            constants[names[0]] = arrays[0]
    return constants


def _arrays_of(attribute: memoryview) -> Iterator[np.ndarray]:
    for number, value in fields(attribute):
        for inner, message in fields(value) if number == VALUE else ():
            if inner == TENSOR and (array := array_of(message)) is not None:
                yield array
