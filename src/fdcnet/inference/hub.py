"""Models on the Hugging Face hub, named hf://owner/name or hf://owner/name@revision."""

import re
import tempfile
from pathlib import Path
from typing import Any

from fdcnet.data.cache import default_cache_dir
from fdcnet.errors import UserError

ADDRESS = re.compile(r"hf:/{1,2}(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
"""A single slash is what remains of two where a shell option was read as a path."""


def is_address(path: str | Path) -> bool:
    return str(path).startswith("hf:/")


def download(address: str | Path) -> Path:
    """The folder of a model in our cache; only what changed on the hub is downloaded."""
    name, revision = _parse(address)
    hub = _package()
    # The package's own cache is made of links, which a model may not contain.
    folder = default_cache_dir() / "hub" / name.replace("/", "--") / (revision or "main").replace("/", "--")
    try:
        hub.snapshot_download(name, revision=revision, local_dir=folder, allow_patterns=["*.json", "*.safetensors"])
        return folder
    except Exception as error:  # the package raises a dozen kinds, from the network's to its own
        raise _failed(f"{address} cannot be downloaded", error) from error


def upload(model: Path, address: str) -> str:
    """Upload a model without the photos in its memory; returns the address of its page."""
    from fdcnet.inference.export import export_without_memory  # it imports the localizer, which imports this module

    name, revision = _parse(address)
    hub = _package()
    with tempfile.TemporaryDirectory() as folder:
        export_without_memory(model, Path(folder) / "model")
        try:
            page = hub.create_repo(name, exist_ok=True)
            hub.upload_folder(repo_id=name, folder_path=Path(folder) / "model", revision=revision)
        except Exception as error:
            raise _failed(f"{model} cannot be uploaded to {name}", error) from error
    return str(page)


def _parse(address: str | Path) -> tuple[str, str | None]:
    found = ADDRESS.fullmatch(str(address))
    if not found:
        raise UserError(f"{address} is not the name of a model on the hub.", "Write it as hf://owner/name.")
    return found["name"], found["revision"]


def _package() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        problem = "Models on the Hugging Face hub need the package huggingface_hub."
        raise UserError(problem, "Install it: pip install 'fdcnet[hub]'") from error
    return huggingface_hub


def _failed(what: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:200]
    return UserError(f"{what}: {reason}", "Check the name and the network; for private models run 'hf auth login'.")
