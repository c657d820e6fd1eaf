"""Frozen TensorFlow graphs, written with TensorFlow's own messages, become our weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.compat.proto import graph_pb2
from torch import Tensor

from fdcnet.errors import UserError
from fdcnet.models.tensorflow import _inception_scopes, _mobilenet_scopes, _tensor_names, convert, read_constants
from fdcnet.models.weights import identify, pretrained_backbone

FLOAT, INT32 = 1, 3


def add_constant(graph: object, name: str, value: np.ndarray, as_bytes: bool = True) -> None:
    node = graph.node.add(name=name, op="Const")  # type: ignore[attr-defined]
    node.attr["dtype"].type = FLOAT
    tensor = node.attr["value"].tensor
    tensor.dtype = FLOAT
    for size in value.shape:
        tensor.tensor_shape.dim.add(size=size)
    if as_bytes:
        tensor.tensor_content = value.astype("<f4").tobytes()
    else:
        tensor.float_val.extend(value.ravel().tolist())


def write_graph(path: Path, backbone: str, weights: dict[str, Tensor]) -> Path:
    """The weights under TensorFlow's names and in its order of axes, among nodes of other kinds."""
    graph = graph_pb2.GraphDef()
    graph.node.add(name="input", op="Placeholder")
    scopes = _mobilenet_scopes() if backbone == "mobilenet_v1" else _inception_scopes()
    for i, (theirs, ours) in enumerate(_tensor_names(backbone, scopes).items()):
        value = weights[ours].float().numpy()
        if value.ndim == 4:
            value = value.transpose((2, 3, 0, 1) if "depthwise" in ours else (2, 3, 1, 0))
        add_constant(graph, theirs, value, as_bytes=i % 7 > 0)
    shape = graph.node.add(name="pool_3/_reshape/shape", op="Const").attr["value"].tensor
    shape.dtype = INT32
    shape.int_val.extend([1, 2048])
    path.write_bytes(graph.SerializeToString())
    return path


def test_constants_are_read_in_every_form(tmp_path: Path) -> None:
    graph = graph_pb2.GraphDef()
    add_constant(graph, "a", np.array([[1.5, -2.0]]))
    add_constant(graph, "b", np.array([3.0, 4.0, 5.0]), as_bytes=False)
    filled = graph.node.add(name="c", op="Const").attr["value"].tensor  # one value fills the whole shape
    filled.dtype = FLOAT
    filled.tensor_shape.dim.add(size=2)
    filled.float_val.append(7.0)
    (tmp_path / "graph.pb").write_bytes(graph.SerializeToString())
    found = read_constants(tmp_path / "graph.pb")
    assert {name: value.tolist() for name, value in found.items()} == {"a": [[1.5, -2.0]], "b": [3, 4, 5], "c": [7, 7]}


@pytest.mark.parametrize("backbone", ["mobilenet_v1", "inception_v3"])
def test_a_graph_with_the_shared_weights_gives_them_back(backbone: str, shared_weights: Path, tmp_path: Path) -> None:
    expected = {name: value.float() for name, value in load_file(shared_weights / f"{backbone}.safetensors").items()}
    name, found = convert(write_graph(tmp_path / "graph.pb", backbone, expected))
    assert name == backbone
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    torch.save(found, tmp_path / "weights.pth")
    assert identify(tmp_path / "weights.pth")[:2] == (backbone, pretrained_backbone(backbone, "none").lineages[0])


@pytest.mark.parametrize("content", [b"", b"no graph at all", bytes(100), b"\x0a\xff\xff\xff\x7f"])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "graph.pb").write_bytes(content)
    with pytest.raises(UserError, match="frozen"):
        convert(tmp_path / "graph.pb")
    with pytest.raises(UserError, match="There is no file"):
        convert(tmp_path / "none.pb")
