"""Try the Label Studio backend and the label files with a real Label Studio server.

Label Studio has many dependencies of its own, so install it apart from fdcnet, then start both servers:

    pip install label-studio==1.23.2      # in an environment of its own
    ML_BLOCK_LOCAL_IP=false SSRF_PROTECTION_ENABLED=false LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN=true \\
      LABEL_STUDIO_HOST=http://127.0.0.1:8089 label-studio start --no-browser -p 8089 \\
      --username me@example.org --password SECRET --user-token 0123456789abcdef0123456789abcdef01234567
    fdcnet serve MODEL --port 8099 --token ANOTHER-SECRET
    python benchmarks/label_studio.py MODEL PHOTOS --key 0123456789abcdef0123456789abcdef01234567 --token ANOTHER-SECRET

PHOTOS: a few photos in folders named like classes of MODEL. Ends with an error if anything is not as expected.
"""

import argparse
import io
import json
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from PIL import Image

import fdcnet

CORRECTED = {"x": 10, "y": 20, "width": 30, "height": 40}  # percent


class Server:
    def __init__(self, url: str, authorization: str) -> None:
        self.url, self.authorization = url, authorization

    def call(self, method: str, path: str, body: Any = None, form: tuple[str, bytes] | None = None) -> Any:
        kind, content = form or ("application/json", None if body is None else json.dumps(body).encode())
        headers = {"Authorization": self.authorization, "Content-Type": kind}
        request = urllib.request.Request(self.url + path, content, headers, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--label-studio", default="http://127.0.0.1:8089")
    parser.add_argument("--backend", default="http://127.0.0.1:8099")
    parser.add_argument("--key", required=True)
    parser.add_argument("--token", required=True)
    options = parser.parse_args()
    studio = Server(options.label_studio, f"Token {options.key}")
    print("Label Studio", studio.call("GET", "/api/version")["release"])
    with tempfile.TemporaryDirectory() as folder:
        interface = try_label_files(studio, options.model, options.photos, Path(folder) / "out")
    try_backend(studio, options, interface)


def try_label_files(studio: Server, model: Path, photos: Path, out: Path) -> str:
    """Import what `fdcnet label` writes, correct one box, export, and read the export as corrections."""
    report = fdcnet.label(photos, out, model=model, formats=["labelstudio"], device="cpu")
    interface = (out / "labelstudio.xml").read_text(encoding="utf-8")
    project = new_project(studio, interface)
    studio.call("POST", f"/api/projects/{project}/import", json.loads((out / "labelstudio.json").read_bytes()))
    predictions = studio.call("GET", f"/api/predictions?project={project}")
    assert len(predictions) == len(report.photos)
    region = predictions[0]["result"][0]
    region["value"] |= CORRECTED
    studio.call("POST", f"/api/tasks/{predictions[0]['task']}/annotations/", {"result": [region]})
    export = out.parent / "export.json"
    export.write_text(json.dumps(studio.call("GET", f"/api/projects/{project}/export?exportType=JSON")))
    [reviewed] = [
        photo
        for photo in fdcnet.label(photos, out, model=model, corrections=export, device="cpu").photos
        if photo.reviewed
    ]
    width, height = reviewed.image_size
    expected = (0.1 * width, 0.2 * height, 0.4 * width, 0.6 * height)
    assert all(abs(a - b) < 1 for a, b in zip(reviewed.annotations[0].box_xyxy, expected, strict=True))
    print(f"Imported {len(predictions)} tasks; the correction of {reviewed.name} came back")
    return interface


def try_backend(studio: Server, options: argparse.Namespace, interface: str) -> None:
    """Connect the backend, upload photos, get predictions, annotate one."""
    project = new_project(studio, interface)
    for photo in sorted(options.photos.rglob("*.*"))[:2]:
        studio.call("POST", f"/api/projects/{project}/import", form=upload(photo))
    facts = {"url": options.backend, "project": project, "title": "fdcnet"}
    password = {"auth_method": "BASIC_AUTH", "basic_auth_user": "any", "basic_auth_pass": options.token}
    connected = studio.call("POST", "/api/ml/", facts | password)
    assert connected["state"] == "CO", connected
    everything = {"selectedItems": {"all": True, "excluded": []}, "ordering": []}
    studio.call("POST", f"/api/dm/actions?id=retrieve_tasks_predictions&project={project}", everything)
    predictions = studio.call("GET", f"/api/predictions?project={project}")
    assert len(predictions) == 2 and all(found["result"] for found in predictions), predictions
    print("Predictions:", [found["result"][0]["value"]["rectanglelabels"][0] for found in predictions])

    [hook] = studio.call("GET", f"/api/webhooks/?project={project}")
    headers = {"Authorization": f"Bearer {options.token}"}
    studio.call("PATCH", f"/api/webhooks/{hook['id']}/", {"headers": headers})
    backend = Server(options.backend, f"Bearer {options.token}")
    before = backend.call("POST", "/webhook", {"action": "NONE"})["collected"]
    studio.call("POST", f"/api/tasks/{predictions[0]['task']}/annotations/", {"result": predictions[0]["result"]})
    deadline = time.monotonic() + 30
    while backend.call("POST", "/webhook", {"action": "NONE"})["collected"] == before:
        assert time.monotonic() < deadline, "the webhook did not arrive"
        time.sleep(0.2)
    print("The webhook of an annotation arrived")


def new_project(studio: Server, interface: str) -> int:
    title = f"fdcnet {uuid.uuid4().hex[:6]}"
    return int(studio.call("POST", "/api/projects/", {"title": title, "label_config": interface})["id"])


def upload(photo: Path) -> tuple[str, bytes]:
    content, border = io.BytesIO(), uuid.uuid4().hex
    Image.open(photo).convert("RGB").save(content, "JPEG")
    head = f'--{border}\r\nContent-Disposition: form-data; name="file"; filename="{photo.stem}.jpg"\r\n\r\n'
    body = head.encode() + content.getvalue() + f"\r\n--{border}--\r\n".encode()
    return f"multipart/form-data; boundary={border}", body


if __name__ == "__main__":
    main()
