"""Install a wheel in an environment of its own, away from the checkout, and use it as a new user would.

python tests/e2e/use_wheel.py dist/fdcnet-*.whl

The source distribution beside it must have all files of the checkout.
"""

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONSTRAINTS, NOTEBOOK = ROOT / "constraints.txt", ROOT / "docs/notebooks/from-photos-to-boxes.ipynb"
PHOTOS = """
from pathlib import Path
from fdcnet.data.synthetic import make_synthetic
make_synthetic(Path("photos"), num_classes=4, train_per_class=12, test_per_class=2, size=96)
"""
SHRUNK = (
    *("data.base_classes=2", "data.step_classes=2", "data.size=40", "data.crop=32", "model.backbone=tiny"),
    *("model.weights=none", "model.head_width=16", "train.batch_size=4", "drift.epochs=1", "memory.budget=9"),
)


class Installed:
    """The command of an environment, run in an empty folder that knows nothing of the checkout."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder, self.bin = folder / "work", folder / "env" / ("Scripts" if os.name == "nt" else "bin")
        self.folder.mkdir()
        hidden = ("PYTHONPATH", "FDCNET_WEIGHTS", "FDCNET_DATA")
        self.environment = {key: value for key, value in os.environ.items() if key not in hidden}
        self.environment |= {"FDCNET_CACHE": str(folder / "cache"), "PYTHONUNBUFFERED": "1"}
        venv.create(folder / "env", with_pip=True)
        self.run("pip", "install", "--quiet", "--constraint", CONSTRAINTS, f"{wheel.resolve()}[web]")

    def run(self, program: str, *arguments: str | Path) -> str:
        command = [str(self.bin / program), *map(str, arguments)]
        started = time.monotonic()
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        sys.stderr.write(
            f"{time.monotonic() - started:6.1f} s  {program} {' '.join(' '.join(map(str, arguments)).split())[:90]}\n"
        )
        if done.returncode:
            raise SystemExit(f"{done.stdout}\n{done.stderr}\n{program} ended with {done.returncode}")
        return done.stdout

    def ask_server(self, photo: Path) -> dict[str, object]:
        command = [str(self.bin / "fdcnet"), "serve", "birds", "--port", "0"]
        server = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address, _, token = server.stdout.readline().strip().partition("?token=")
            headers = {"Content-Type": "image/jpeg", "Authorization": f"Bearer {token}"}
            question = urllib.request.Request(f"{address}api/predict", photo.read_bytes(), headers)
            with urllib.request.urlopen(question, timeout=120) as answer:
                return json.load(answer)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


def check_source(archive: Path) -> None:
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    with tarfile.open(archive) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames()}
    missing = [name for name in tracked if name not in packed and not name.startswith(".git")]
    assert not missing, f"{archive.name} lacks {missing}"


def main(wheel: Path) -> None:
    check_source(next(wheel.parent.glob("*.tar.gz")))
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        user = Installed(Path(folder), wheel)
        user.run("python", "-c", PHOTOS)
        user.run("fdcnet", "learn", "birds", "photos", "--epochs", "2", "--device", "cpu")
        user.run("fdcnet", "predict", "birds", "photos/test", "--json", "answers.json")
        seconds = time.monotonic() - started
        answers = json.loads((user.folder / "answers.json").read_text())
        assert len(answers) == 8, answers
        user.run("fdcnet", "label", "photos", "--model", "birds", "--out", "boxes", "--csv", "--device", "cpu")
        assert (user.folder / "boxes" / "index.html").is_file()
        settings = [part for setting in SHRUNK for part in ("--set", setting)]
        recipe = ("-r", "cub200-mobilenet_v1-fdcnet", "--epochs", "1", "--set", "data.format=folders")
        user.run("fdcnet", "train", "photos", *recipe, *settings, "-o", "run")
        assert (user.folder / "run" / "report.html").is_file()
        answer = user.ask_server(next((user.folder / "photos" / "test").glob("*/*.jpg")))
        assert answer["box"] and answer["class"] in {folder.name for folder in (user.folder / "photos/test").iterdir()}
        cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
        user.run("python", "-c", "\n".join("".join(cell["source"]) for cell in cells))
        sys.stderr.write(f"From pip install to the first answer: {seconds:.0f} s\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
