"""`fdcnet doctor`"""

import importlib.util
import os
import shutil
from pathlib import Path

from fdcnet.cli.console import console

EXTRAS = {
    "video": ("av", "predict on videos"),
    "onnx": ("onnxruntime", "export as ONNX"),
    "web": ("fastapi", "the local page"),
    "heic": ("pillow_heif", "HEIC and AVIF photos"),
    "tensorboard": ("tensorboard", "train --log tensorboard"),
    "hub": ("huggingface_hub", "models on the Hugging Face hub"),
}


def doctor() -> None:
    """Show the device, versions, extras, weights and cache."""
    import torch

    from fdcnet.runtime.device import device_name, find_device
    from fdcnet.store.record import environment

    facts = environment(device_name(find_device("auto")))
    _print("device", facts["device"])
    if not torch.cuda.is_available():
        _print("", "no GPU: fine for 'learn' and small data sets; CUB-200 takes days")
    _print("memory", _memory())
    _print("versions", ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    for extra, (module, what) in EXTRAS.items():
        present = importlib.util.find_spec(module) is not None
        _print(extra, f"{what}: " + ("installed" if present else f"not installed: pip install 'fdcnet[{extra}]'"))
    _print("weights", _weights())
    _print("cache", _cache())


def _print(name: str, text: str) -> None:
    console.print(f"{name:<11} {text}", markup=False, highlight=False)


def _memory() -> str:
    from fdcnet.runtime.machine import machine_memory

    if (size := machine_memory()) is None:
        return "unknown"
    needed = min(13, 0.8 * size / 1e9)
    return (
        f"{size / 1e9:.0f} GB; full training on a CPU takes up to {needed:.0f} GB of it. Where that is less than 13, "
        "batches are computed in parts (train.micro_batch)"
    )


def _weights() -> str:
    folder = os.environ.get("FDCNET_WEIGHTS")
    found = sorted(path.name for path in Path(folder).glob("*.safetensors")) if folder else []
    others = ", ".join(found) if found else "FDCNET_WEIGHTS names no folder with .safetensors files"
    return f"efficientnet_lite0 (comes with the installation); others: {others}"


def _cache() -> str:
    from fdcnet.data.cache import default_cache_dir

    cache = default_cache_dir()
    size = sum(file.stat().st_size for file in cache.glob("*")) / 1e9 if cache.is_dir() else 0.0
    free = shutil.disk_usage(next(parent for parent in (cache, *cache.parents) if parent.exists())).free / 1e9
    return f"{cache}: {size:.1f} GB of decoded photos and exported networks (safe to delete), {free:.0f} GB free"
