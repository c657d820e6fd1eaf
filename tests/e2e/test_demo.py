"""`fdcnet demo`: what a newcomer runs first. The demo itself checks that what it promises has come true."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_the_demo_keeps_its_promise(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fdcnet", "demo", "--out", str(tmp_path / "demo")],
        cwd=tmp_path,
        env={**os.environ, "FDCNET_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        encoding="utf-8",
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert "Traceback" not in done.stderr
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    finals = {}
    for method in ("fdcnet", "finetune"):
        assert method in page
        results = json.loads((tmp_path / "demo" / method / "results.json").read_text())
        assert [task["num_classes"] for task in results["tasks"]] == [4, 6, 8]
        finals[method] = results["last"]["top1_loc"]
    assert finals["fdcnet"] > finals["finetune"], "a memory must be worth something"
    assert "Now open" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} <= {"demo", "cache"}, "it writes nowhere else"
