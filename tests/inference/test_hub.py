"""The real client of the Hugging Face hub against a local stand-in of its API. The real hub was never reached."""

import base64
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fdcnet.errors import UserError
from fdcnet.inference.hub import download, is_address

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """One repository: create it, commit files to it, list and read them."""

    files: dict[str, bytes]

    def log_message(self, format: str, *args: object) -> None: ...

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = urlsplit(self.path).path
        if path == "/api/repos/create":
            self._answer({"url": f"http://{self.headers['Host']}/me/birds"})
        elif "/preupload/" in path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            self._answer({"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]})
        elif "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._answer(
                {"success": True, "commitOid": COMMIT, "commitUrl": f"http://{self.headers['Host']}/c/{COMMIT}"}
            )
        else:
            self.send_error(404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        name = path.partition(f"/resolve/{COMMIT}/")[2]
        if path.startswith("/api/models/me/birds/tree/"):
            sizes = {file: len(content) for file, content in self.files.items()}
            self._answer([{"type": "file", "path": p, "size": size, "oid": COMMIT} for p, size in sizes.items()])
        elif path.startswith("/api/models/me/birds"):
            self._answer({"id": "me/birds", "sha": COMMIT, "siblings": [{"rfilename": file} for file in self.files]})
        elif name in self.files:
            self._answer(self.files[name])
        else:
            self.send_error(404)

    def _answer(self, value: object) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a process that takes the stand-in for the hub."""
    handler = type("OneHub", (Hub,), {"files": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        own = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hub"), "HF_TOKEN": "hf_x", "no_proxy": "127.0.0.1"}
        yield {
            **os.environ,
            **own,
            "FDCNET_CACHE": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        server.shutdown()


def test_a_model_goes_to_the_hub_and_comes_back_without_photos(taught: Path, hub: dict[str, str]) -> None:
    code = """
import sys
from pathlib import Path
from fdcnet.inference.hub import download, upload
from fdcnet.inference.localizer import Localizer

model = Path(sys.argv[1])
print(upload(model, "hf://me/birds"))
assert Localizer.load("hf://me/birds", "cpu").classes == Localizer.load(model, "cpu").classes
assert Localizer.load(Path("hf://me/birds@main"), "cpu").classes
print(sorted(file.name for file in download("hf://me/birds").rglob("*")))
"""
    command = [sys.executable, "-c", code, str(taught / "run" / "model")]
    done = subprocess.run(command, env=hub, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page, files = done.stdout.splitlines()
    assert page == f"{hub['HF_ENDPOINT']}/me/birds"
    assert "fdcnet.json" in files and "weights.safetensors" in files and ".png" not in files


@pytest.mark.parametrize("address", ["hf://birds", "hf://me/birds/more", "hf:/", "hf://me/bi rds"])
def test_other_addresses_are_refused(address: str) -> None:
    assert is_address(address)
    with pytest.raises(UserError, match="not the name of a model on the hub"):
        download(address)


def test_a_folder_is_no_address() -> None:
    assert not is_address(Path("models/birds"))
