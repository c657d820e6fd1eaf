"""Weights from TensorFlow's frozen graphs (GraphDef files, .pb), read without TensorFlow."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fdcnet.errors import UserError

ARCHIVES = {
    "mobilenet_v1": (
        "http://download.tensorflow.org/models/mobilenet_v1_2018_08_02/mobilenet_v1_1.0_224.tgz",
        "mobilenet_v1_1.0_224_frozen.pb",
    ),
    "inception_v3": (
        "http://download.tensorflow.org/models/image/imagenet/inception-2015-12-05.tgz",
        "classify_image_graph_def.pb",
    ),
}
"""Where the weights of the `tf` lineage were published, and the file in the archive."""

# Field numbers of TensorFlow's messages
NODE, NAME, OP, ATTRIBUTE, VALUE, TENSOR = 1, 1, 2, 5, 2, 8
DTYPE, SHAPE, CONTENT, FLOATS, DIM, SIZE = 1, 2, 4, 5, 2, 1
FLOAT32 = 1
VARINT, BYTES, FIXED = 0, 2, {1: 8, 5: 4}  # wire types; those of a fixed size in bytes
BN_PARTS = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}

POOLED = {"conv": "branch1x1", "tower_2/conv": "branch_pool"}
SQUARE = {f"tower_1/conv{end}": f"branch3x3dbl_{i}" for i, end in enumerate(("", "_1", "_2"), 1)}
FORKED = {
    **{"tower/conv": "branch3x3_1", "tower/mixed/conv": "branch3x3_2a", "tower/mixed/conv_1": "branch3x3_2b"},
    **{"tower_1/conv": "branch3x3dbl_1", "tower_1/conv_1": "branch3x3dbl_2"},
    **{"tower_1/mixed/conv": "branch3x3dbl_3a", "tower_1/mixed/conv_1": "branch3x3dbl_3b"},
}
INCEPTION_BLOCKS = {  # their convolutions by scope -> ours
    "5": {**POOLED, **SQUARE, "tower/conv": "branch5x5_1", "tower/conv_1": "branch5x5_2"},
    "6a": {"conv": "branch3x3", **{key.replace("tower_1", "tower"): name for key, name in SQUARE.items()}},
    "6": {
        **POOLED,
        **{f"tower/conv{end}": f"branch7x7_{i}" for i, end in enumerate(("", "_1", "_2"), 1)},
        **{f"tower_1/conv{end}": f"branch7x7dbl_{i}" for i, end in enumerate(("", "_1", "_2", "_3", "_4"), 1)},
    },
    "7a": {
        **{"tower/conv": "branch3x3_1", "tower/conv_1": "branch3x3_2"},
        **{f"tower_1/conv{end}": f"branch7x7x3_{i}" for i, end in enumerate(("", "_1", "_2", "_3"), 1)},
    },
    "7": {**POOLED, **FORKED},
}
INCEPTION_STEM = ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "Conv2d_3b_1x1", "Conv2d_4a_3x3")
INCEPTION_MIXED = ("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c")


def convert(path: Path) -> tuple[str, dict[str, Tensor]]:
    """The backbone that a frozen graph holds, and its weights under our names."""
    constants = read_constants(path)
    for backbone, scopes in (("mobilenet_v1", _mobilenet_scopes()), ("inception_v3", _inception_scopes())):
        weights = {ours: constants.get(theirs) for theirs, ours in _tensor_names(backbone, scopes).items()}
        found = {name: value for name, value in weights.items() if value is not None}
        if len(found) == len(weights):
            return backbone, {name: _to_torch(name, value) for name, value in found.items()}
    files = ", ".join(file for _, file in ARCHIVES.values())
    raise UserError(f"{path} is not a frozen graph of a backbone known here.", f"These can be converted: {files}.")


def read_constants(path: Path) -> dict[str, np.ndarray]:
    """The float32 constants of a GraphDef, by the name of their node."""
    if not path.is_file():
        raise UserError(f"There is no file {path}.", "Name a frozen TensorFlow graph (.pb).")
    constants = {}
    try:
        for number, node in _fields(memoryview(path.read_bytes())):
            if number == NODE:
                fields = list(_fields(node))
                tensors = [tensor for number, value in fields if number == ATTRIBUTE for tensor in _tensors_of(value)]
                name, kind = (next(bytes(value) for key, value in fields if key == wanted) for wanted in (NAME, OP))
                if kind == b"Const" and tensors:
                    constants[name.decode()] = tensors[0]
    except (IndexError, StopIteration, ValueError) as error:
        raise UserError(f"{path} is not a frozen TensorFlow graph.", "Name the .pb file of the archive.") from error
    return constants


def _tensors_of(attribute: memoryview) -> Iterator[np.ndarray]:
    """The float32 value of a node's attribute, if it is one."""
    for number, value in _fields(attribute):
        for inner, message in _fields(value) if number == VALUE else ():
            if inner == TENSOR and (array := _array(message)) is not None:
                yield array


def _array(message: memoryview) -> np.ndarray | None:
    fields = list(_fields(message))
    if [int.from_bytes(value, "little") for number, value in fields if number == DTYPE] != [FLOAT32]:
        return None
    dims = [dim for number, shape in fields if number == SHAPE for key, dim in _fields(shape) if key == DIM]
    shape = [int.from_bytes(size, "little") for dim in dims for key, size in _fields(dim) if key == SIZE]
    content = b"".join(value for number, value in fields if number in (CONTENT, FLOATS))
    values = np.frombuffer(content, "<f4")
    return np.broadcast_to(values, shape) if values.size == 1 else values.reshape(shape)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and bytes of each field of a protocol buffer; an integer as eight bytes, lowest first."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        wire, size = tag & 7, 0
        if wire == VARINT:
            value, position = _varint(message, position)
            yield tag >> 3, memoryview(value.to_bytes(8, "little"))
            continue
        if wire == BYTES:
            size, position = _varint(message, position)
        elif wire in FIXED:
            size = FIXED[wire]
        if wire not in (BYTES, *FIXED) or position + size > len(message):
            raise ValueError("not a protocol buffer")
        yield tag >> 3, message[position : position + size]
        position += size


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), position
        shift += 7


def _mobilenet_scopes() -> dict[str, str]:
    blocks = [f"Conv2d_{block}_{part}" for block in range(1, 14) for part in ("depthwise", "pointwise")]
    return {f"MobilenetV1/{name}": name for name in ("Conv2d_0", *blocks)}


def _inception_scopes() -> dict[str, str]:
    scopes = {f"conv{f'_{i}' if i else ''}": name for i, name in enumerate(INCEPTION_STEM)}
    for i, block in enumerate(INCEPTION_MIXED):
        branches = INCEPTION_BLOCKS.get(block, INCEPTION_BLOCKS.get(block[0], {}))
        scope = f"mixed_{i}" if i else "mixed"
        scopes |= {f"{scope}/{theirs}": f"Mixed_{block}.{ours}" for theirs, ours in branches.items()}
    return scopes


def _tensor_names(backbone: str, scopes: dict[str, str]) -> dict[str, str]:
    """Their names -> ours: convolution and batch norm of each scope."""
    names = {}
    for scope, ours in scopes.items():
        if backbone == "mobilenet_v1":
            kind, norm = "depthwise_weights" if scope.endswith("depthwise") else "weights", "BatchNorm"
        else:
            kind, norm = "conv2d_params", "batchnorm"
        names[f"{scope}/{kind}"] = f"{ours}.conv.weight"
        names |= {f"{scope}/{norm}/{theirs}": f"{ours}.bn.{part}" for theirs, part in BN_PARTS.items()}
    return names


def _to_torch(name: str, value: np.ndarray) -> Tensor:
    """TensorFlow orders a kernel (height, width, in, out), a depthwise one (height, width, channel, 1)."""
    if value.ndim == 4:
        value = value.transpose((2, 3, 0, 1) if "depthwise" in name else (3, 2, 0, 1))
    return torch.tensor(np.ascontiguousarray(value))
