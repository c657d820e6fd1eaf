"""Frozen TensorFlow graphs and checkpoints become our weights. TensorFlow itself is not installed."""

import base64
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tensorboard.compat.proto import graph_pb2
from torch import Tensor

from fdcnet.errors import UserError
from fdcnet.models.tensorflow import _inception_scopes, _mobilenet_scopes, _tensor_names, convert, read_variables
from fdcnet.models.weights import identify, pretrained_backbone

FLOAT, INT32, INT64 = 1, 3, 9
MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
WRITTEN_BY_TENSORFLOW = {  # 2.21, tf.compat.v1.train.Saver; both hold a = [[1.5, -2]], b = [3, 4, 5], step = 7 (int64)
    "v1.ckpt": """
        AABOCkwKGwoHc2NvcGUvYRIIEgIIARICCAIYASIECgAKAAoVCgdzY29wZS9iEgQSAggDGAEiAgoAChIKBHN0ZXASBBICCAEYCSIC
        CgASAggBABAdAHNjb3BlL2EAAQECgH+AfxIbCgdzY29wZS9hEgQKAAoAGgoqCAAAwD8AAADABwcfYgABAQGAfxIdCgdzY29wZS9i
        EgIKABoOKgwAAEBAAACAQAAAoEACCRF0ZXAAAQEBgH8SDwoEc3RlcBICCgAaA1IBBwAAAAABAAAAAOSsHhkAAAAAAQAAAADA8qGw
        AAEDAQDPAQAAAAABAAAAAHR82LLUAQjhAQ8AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAV/uAiyR1R9s=
    """,
    "v2.ckpt.index": """
        AAAGCAEaAggBAAcTc2NvcGUvYQgBEggSAggBEgIIAigINT0zyPQGARFiCAESBBICCAMgCCgMNWc+fWMBAxF0ZXAICRIEEgIIASAU
        KAg1u9efEQAAAAABAAAAAPcuqcYAAAAAAQAAAADA8qGwAAECdABaAAAAAAEAAAAA5U3oQV8IbA4AAAAAAAAAAAAAAAAAAAAAAAAA
        AAAAAAAAAAAAAAAAAAAAAABX+4CLJHVH2w==
    """,
    "v2.ckpt.data-00000-of-00001": """
        AADAPwAAAMAAAEBAAACAQAAAoEAHAAAAAAAAAA==
    """,
}


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def field(number: int, value: int | bytes) -> bytes:
    """A field of a protocol buffer: an integer or a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def shape_message(shape: Iterable[int]) -> bytes:
    return b"".join(field(2, field(1, size)) for size in shape)


def block(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Keys without what they share with the key before; one restart; no compression; no checksum."""
    content, last = b"", b""
    for key, value in entries:
        shared = next((i for i, (a, b) in enumerate(zip(key, last, strict=False)) if a != b), min(len(key), len(last)))
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return content + struct.pack("<II", 0, 1) + bytes(5)


def table(entries: Iterable[tuple[bytes, bytes]], per_block: int = 3) -> bytes:
    rows, content, handles = sorted(entries), b"", []
    for start in range(0, len(rows), per_block):
        part = block(rows[start : start + per_block])
        handles.append((rows[start][0], varint(len(content)) + varint(len(part) - 5)))
        content += part
    index = block(handles)
    footer = varint(0) + varint(0) + varint(len(content)) + varint(len(index) - 5)
    return content + index + footer.ljust(40, b"\0") + MAGIC


def write_version_1(path: Path, variables: dict[str, np.ndarray]) -> Path:
    metas, rows = b"", []
    for name, value in variables.items():
        extents = b"".join(field(1, b"") for _ in value.shape)
        named = field(1, name.encode())
        metas += field(1, named + field(2, shape_message(value.shape)) + field(3, FLOAT) + field(4, extents))
        data = named + field(2, extents) + field(3, field(5, value.astype("<f4").tobytes()))
        rows.append((b"\0" + name.encode(), field(2, data)))
    path.write_bytes(table([(b"", field(1, metas)), *rows]))
    return path


def write_version_2(path: Path, variables: dict[str, np.ndarray]) -> Path:
    """In two data files."""
    shards, rows = [b"", b""], [(b"", field(1, 2))]
    for i, (name, value) in enumerate(variables.items()):
        content, shard = value.astype("<f4").tobytes(), i % 2
        place = field(3, shard) + field(4, len(shards[shard])) + field(5, len(content))
        rows.append((name.encode(), field(1, FLOAT) + field(2, shape_message(value.shape)) + place))
        shards[shard] += content
    path.with_name(f"{path.name}.index").write_bytes(table(rows))
    for i, content in enumerate(shards):
        path.with_name(f"{path.name}.data-{i:05d}-of-00002").write_bytes(content)
    return path


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


def write_graph(path: Path, variables: dict[str, np.ndarray]) -> Path:
    """Among nodes of other kinds."""
    graph = graph_pb2.GraphDef()
    graph.node.add(name="input", op="Placeholder")
    for i, (name, value) in enumerate(variables.items()):
        add_constant(graph, name, value, as_bytes=i % 7 > 0)
    shape = graph.node.add(name="pool_3/_reshape/shape", op="Const").attr["value"].tensor
    shape.dtype = INT32
    shape.int_val.extend([1, 2048])
    path.write_bytes(graph.SerializeToString())
    return path


def in_tensorflow(backbone: str, weights: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """The weights under TensorFlow's names and in its order of axes."""
    scopes = _mobilenet_scopes() if backbone == "mobilenet_v1" else _inception_scopes()
    variables = {theirs: weights[ours].float().numpy() for theirs, ours in _tensor_names(backbone, scopes).items()}
    return {
        name: value.transpose((2, 3, 0, 1) if "depthwise" in name else (2, 3, 1, 0)) if value.ndim == 4 else value
        for name, value in variables.items()
    }


def as_lists(variables: dict[str, np.ndarray]) -> dict[str, list[object]]:
    return {name: value.tolist() for name, value in variables.items()}


@pytest.fixture
def real_checkpoints(tmp_path: Path) -> Path:
    for name, content in WRITTEN_BY_TENSORFLOW.items():
        (tmp_path / name).write_bytes(base64.b64decode(content))
    return tmp_path


def test_constants_are_read_in_every_form(tmp_path: Path) -> None:
    graph = graph_pb2.GraphDef()
    add_constant(graph, "a", np.array([[1.5, -2.0]]))
    add_constant(graph, "b", np.array([3.0, 4.0, 5.0]), as_bytes=False)
    filled = graph.node.add(name="c", op="Const").attr["value"].tensor  # one value fills the whole shape
    filled.dtype = FLOAT
    filled.tensor_shape.dim.add(size=2)
    filled.float_val.append(7.0)
    (tmp_path / "graph.pb").write_bytes(graph.SerializeToString())
    found = read_variables(tmp_path / "graph.pb")
    assert as_lists(found) == {"a": [[1.5, -2.0]], "b": [3, 4, 5], "c": [7, 7]}


@pytest.mark.parametrize("name", ["v1.ckpt", "v2.ckpt", "v2.ckpt.index", "v2.ckpt.data-00000-of-00001"])
def test_checkpoints_that_tensorflow_wrote(name: str, real_checkpoints: Path) -> None:
    assert as_lists(read_variables(real_checkpoints / name)) == {"scope/a": [[1.5, -2.0]], "scope/b": [3, 4, 5]}


@pytest.mark.parametrize(
    ("backbone", "write"),
    [
        ("inception_v3", write_graph),  # no checkpoint of it was published
        ("mobilenet_v1", write_graph),
        ("mobilenet_v1", write_version_1),
        ("mobilenet_v1", write_version_2),
    ],
)
def test_the_shared_weights_come_back(
    backbone: str, write: Callable[..., Path], shared_weights: Path, tmp_path: Path
) -> None:
    expected = {name: value.float() for name, value in load_file(shared_weights / f"{backbone}.safetensors").items()}
    variables = in_tensorflow(backbone, expected)
    slots = ("RMSProp", "RMSProp_1", "ExponentialMovingAverage")  # training leaves them beside the weights
    others = {f"{key}/{slot}": np.full_like(value, 9) for key, value in variables.items() for slot in slots}
    name, found = convert(write(tmp_path / "weights", others | variables))
    assert name == backbone
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    save_file(found, tmp_path / "weights.safetensors")
    lineage = pretrained_backbone(backbone, "none").lineages[0]
    assert identify(tmp_path / "weights.safetensors")[:2] == (backbone, lineage)


@pytest.mark.parametrize("content", [b"", b"no graph at all", bytes(100), b"\x0a\xff\xff\xff\x7f", bytes(40) + MAGIC])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "graph.pb").write_bytes(content)
    with pytest.raises(UserError, match="frozen"):
        convert(tmp_path / "graph.pb")
    with pytest.raises(UserError, match="cannot be opened"):
        convert(tmp_path / "none.pb")


def test_damaged_checkpoints_are_refused(real_checkpoints: Path) -> None:
    """Every byte in turn: changed, and the last one of a file that ends early."""
    for name in ("v1.ckpt", "v2.ckpt.index"):
        file = real_checkpoints / name
        content = file.read_bytes()
        for i in range(len(content)):
            for damaged in (content[:i], *(content[:i] + bytes([value]) + content[i + 1 :] for value in (0, 127, 255))):
                file.write_bytes(damaged)
                with pytest.raises(UserError):
                    convert(file)


def test_a_data_file_that_is_too_short_or_missing(real_checkpoints: Path) -> None:
    data = real_checkpoints / "v2.ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-10])
    with pytest.raises(UserError, match="damaged"):
        read_variables(real_checkpoints / "v2.ckpt")
    data.unlink()
    with pytest.raises(UserError, match="00000-of-00001 cannot be opened"):
        read_variables(real_checkpoints / "v2.ckpt")


def test_one_value_that_stands_for_gigabytes_is_refused(tmp_path: Path) -> None:
    weights = pretrained_backbone("mobilenet_v1", "none").state_dict()
    plain = {
        key.split(".", 2)[-1] if key.startswith("shared") else key.removeprefix("tail."): v
        for key, v in weights.items()
    }
    variables = in_tensorflow("mobilenet_v1", plain)
    graph = graph_pb2.GraphDef()
    graph.ParseFromString(write_graph(tmp_path / "graph.pb", variables).read_bytes())
    tensor = next(node for node in graph.node if node.name == "MobilenetV1/Conv2d_0/weights").attr["value"].tensor
    tensor.ClearField("tensor_content")
    tensor.ClearField("float_val")
    tensor.float_val.append(0.5)
    tensor.tensor_shape.dim[0].size = 2**30
    (tmp_path / "graph.pb").write_bytes(graph.SerializeToString())
    with pytest.raises(UserError, match="1073741824"):
        convert(tmp_path / "graph.pb")
