"""Weights from TensorFlow's frozen graphs (.pb) and checkpoints (.ckpt), read without TensorFlow."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fdcnet.errors import UserError
from fdcnet.files import open_regular
from fdcnet.models.tensorflow.checkpoint import read_version_1, read_version_2
from fdcnet.models.tensorflow.graph import read_constants
from fdcnet.models.tensorflow.table import is_table
from fdcnet.models.weights import expected_shapes

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

CHECKPOINT_PART = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
MAX_BYTES = 2**30  # of a file; InceptionV3 with the state of its optimizer has 0.4 GB
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
    """The backbone whose weights a frozen graph or a checkpoint holds, and these under our names."""
    variables = read_variables(path)
    for backbone, scopes in (("mobilenet_v1", _mobilenet_scopes()), ("inception_v3", _inception_scopes())):
        names = _tensor_names(backbone, scopes)
        if names.keys() <= variables.keys():
            found = {ours: _in_our_order(ours, variables[theirs]) for theirs, ours in names.items()}
            _check_shapes(path, backbone, found)
            return backbone, {name: torch.tensor(np.ascontiguousarray(value)) for name, value in found.items()}
    files = ", ".join(file for _, file in ARCHIVES.values())
    raise UserError(
        f"{path} does not hold the weights of a backbone known here ({len(variables)} variables).",
        f"These can be converted: {files}, and checkpoints with the same variables.",
    )


def read_variables(path: Path) -> dict[str, np.ndarray]:
    """The float32 values in a frozen graph (.pb) or a checkpoint, by their names in TensorFlow."""
    name = CHECKPOINT_PART.sub("", path.name)  # the common part of a checkpoint in several files
    index = path.with_name(f"{name}.index")
    try:
        if path.name != name or (index.is_file() and not path.is_file()):
            return read_version_2(_content(index), lambda end: _content(path.with_name(name + end)))
        content = _content(path)
        return read_version_1(content) if is_table(content) else read_constants(content)
    except UserError:
        raise
    except (ValueError, KeyError, StopIteration) as error:
        remedy = "Download and unpack the archive again; 'fdcnet weights list' shows its address."
        raise UserError(f"{path} is not a frozen TensorFlow graph or checkpoint, or it is damaged.", remedy) from error


def _content(path: Path) -> memoryview:
    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        remedy = "Name a frozen TensorFlow graph (.pb) or a checkpoint (.ckpt, with its .index and .data files)."
        raise UserError(f"{path} cannot be opened: {error.strerror or error}.", remedy) from error
    if len(content) > MAX_BYTES:
        raise UserError(f"{path} has more than {MAX_BYTES >> 30} GB.", "Name a file of one backbone only.")
    return memoryview(content)


def _check_shapes(path: Path, backbone: str, found: Mapping[str, np.ndarray]) -> None:
    """Before values are copied: a single one can stand for gigabytes."""
    for name, shape in expected_shapes(backbone, "tf").items():
        if found[name].shape != shape:
            raise UserError(
                f"{path}: {name} has shape {found[name].shape} instead of {tuple(shape)}.",
                f"Only the {backbone} of full width can be converted: {ARCHIVES[backbone][1]}.",
            )


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


def _in_our_order(name: str, value: np.ndarray) -> np.ndarray:
    """TensorFlow orders a kernel (height, width, in, out), a depthwise one (height, width, channel, 1)."""
    if value.ndim == 4:
        return value.transpose((2, 3, 0, 1) if "depthwise" in name else (3, 2, 0, 1))
    return value
