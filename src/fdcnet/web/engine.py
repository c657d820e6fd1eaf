"""ONNX Runtime for a served model. PyTorch answers until the export is ready."""

import logging
import subprocess
import sys
import threading
from pathlib import Path

from filelock import FileLock

from fdcnet.data.cache import default_cache_dir
from fdcnet.errors import UserError
from fdcnet.inference.engine import use_onnx
from fdcnet.inference.localizer import Localizer
from fdcnet.runtime.machine import lower_priority

LOCK = "onnx.lock"
log = logging.getLogger(__name__)


def use_onnx_soon(localizer: Localizer, bundle: Path) -> None:
    """Switch in the background. Another process exports the parts that are not in the cache yet."""
    threading.Thread(target=_use_onnx, args=(localizer, bundle), name="onnx", daemon=True).start()


def _use_onnx(localizer: Localizer, bundle: Path) -> None:
    cache = default_cache_dir()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / LOCK):  # all workers want the same export
            if not use_onnx(localizer.state, export=False):
                _export(bundle)
                if not use_onnx(localizer.state, export=False):
                    raise RuntimeError("The cache is too small for the exported network: raise FDCNET_CACHE_GB.")
    except (UserError, OSError, RuntimeError):
        log.exception("ONNX Runtime cannot be used. PyTorch computes the predictions.")


def _export(bundle: Path) -> None:
    """By another process: while the exporter traces, it replaces methods of `nn.Module` in all threads."""
    command = [sys.executable, "-P", "-m", "fdcnet.web.engine", str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])


if __name__ == "__main__":
    lower_priority()
    Localizer.load(sys.argv[1], "cpu", engine="onnx")
