"""`fdcnet suite` with real processes: killed, continued, skipped, refused."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fdcnet.errors import UserError
from fdcnet.files import locked
from fdcnet.store.record import RunRecord, read_json
from fdcnet.suite.page import page
from fdcnet.suite.photos import PhotoResults, right
from fdcnet.suite.plan import read_suite
from fdcnet.suite.runner import Runner

COMMAND = (sys.executable, "-m", "fdcnet", "suite", "small.yaml", "--device", "cpu")
TIMEOUT_SECONDS = 240


@pytest.fixture
def without_extras(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training needs no package for pages and figures."""
    (folder / "missing").mkdir()
    for name in ("jinja2", "markupsafe", "fastapi", "matplotlib"):
        (folder / "missing" / f"{name}.py").write_text(f"raise ImportError('no {name}')\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder / 'missing'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(met: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not met():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def children(process: int) -> list[str]:
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def process_of(suite: int, recipe: str) -> int:
    [process] = [child for child in children(suite) if recipe in Path(f"/proc/{child}/cmdline").read_text()]
    return int(process)


@pytest.mark.usefixtures("without_extras")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_suite_continues_and_a_finished_one_does_nothing(folder: Path) -> None:
    first = folder / "runs/small/first-task-tiny-linear-s0"
    suite = start()
    wait_for(lambda: len(RunRecord(first).metrics()) > 2)
    [child] = children(suite.pid)
    suite.send_signal(signal.SIGTERM)
    said, _ = suite.communicate(timeout=TIMEOUT_SECONDS)
    assert suite.returncode == 130, said
    assert not Path(f"/proc/{child}").exists()
    assert RunRecord(first).run()["finished"] is None
    assert not (folder / "results").exists()

    suite = start("--jobs", "2")
    wait_for(lambda: RunRecord(folder / "runs/small/tiny-fdcnet-s0").exists())
    os.kill(process_of(suite.pid, "tiny-fdcnet.yaml"), signal.SIGKILL)  # it is tried once more
    said, _ = suite.communicate(timeout=TIMEOUT_SECONDS)
    assert suite.returncode == 0, said
    assert "tiny-fdcnet-s0: waiting" in said and "3 of 3 runs are done" in said
    assert len(RunRecord(first).run()["resumed"]) == 1
    names = {path.relative_to(folder / "results").as_posix() for path in folder.glob("results/*/*/*")}
    assert names == {
        "small/tiny-fdcnet-s0/class.json",
        "small/tiny-fdcnet-s0/class-plain.json",
        "small/tiny-fdcnet-s0/photos.csv.gz",
        "small/tiny-fdcnet-s0/drift.json",
        "small/tiny-baseline-s0/class.json",
        "small/tiny-baseline-s0/photos.csv.gz",
        "small/tiny-baseline-s0/drift.json",
    }
    check_results(folder / "results/small")

    log = (folder / "runs/small/tiny-fdcnet-s0.log").read_text()
    assert "No report: no " in log
    suite = start()
    said, _ = suite.communicate(timeout=TIMEOUT_SECONDS)
    assert suite.returncode == 0 and "2 of 2 runs are done" in said
    assert "No tables: no " in said
    assert (folder / "runs/small/tiny-fdcnet-s0.log").read_text() == log

    text = page(read_suite(Path("small.yaml")), folder / "results")
    assert "Runs measured: 2 of 2." in text
    assert [line.split(" | ")[0] for line in text.splitlines() if " | seed 0 | " in line] == [
        "| fdcnet",
        "| fdcnet, network alone",
        "| baseline",
    ]
    assert "| fdcnet – baseline | " in text
    assert "fdcnet train -r tiny-fdcnet.yaml --seed 0 " in text

    with pytest.raises(UserError, match=r"tiny-fdcnet-s0 was .* different settings: memory.budget was 9, is 8"):
        Runner(read_suite(Path("small.yaml"), ["memory.budget=8"]), folder / "runs/small", folder / "results").run()


@pytest.mark.skipif(sys.platform != "linux", reason="process groups")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_in_a_terminal_lets_runs_write_their_checkpoints(folder: Path, number: signal.Signals) -> None:
    """The terminal sends it to the whole process group. Runs take a second signal as an order to stop at once."""
    first = folder / "runs/small/first-task-tiny-linear-s0"
    command = [*COMMAND, "--set", "train.checkpoint_minutes=60", "--set", "train.base_epochs=2000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0) as suite:
        wait_for(lambda: len(RunRecord(first).metrics()) > 2)
        [child] = children(suite.pid)
        os.killpg(suite.pid, number)
        suite.wait(timeout=TIMEOUT_SECONDS)
    assert not Path(f"/proc/{child}").exists()
    assert (first / "checkpoint.safetensors").is_file()


def check_results(results: Path) -> None:
    """Both runs took over one first task; the photos say the same as the numbers; nobody's folders are named."""
    fdcnet, baseline = (read_json(results / f"tiny-{name}-s0" / "class.json") for name in ("fdcnet", "baseline"))
    assert fdcnet["tasks"][0] == baseline["tasks"][0]
    assert fdcnet["made"]["base_config"]["data"]["tasks"] == 1
    assert fdcnet["made"]["config"]["data"]["path"] == "photos"
    assert set(fdcnet["made"]["seconds_by_phase"]) == {"decode", "train", "herd", "fit", "evaluate", "write"}
    assert fdcnet["made"]["peak_memory_mb"]["host"] > 50
    photos = PhotoResults.load(results / "tiny-fdcnet-s0" / "photos.csv.gz")
    last = photos.select(photos.task == 2)
    for metric in ("top1_loc", "gt_known", "top5_cls"):
        assert 100 * right(last, fdcnet["photos"], metric).mean() == pytest.approx(fdcnet["last"][metric])


def test_what_another_process_runs_is_left_to_it(folder: Path) -> None:
    runner = Runner(read_suite(Path("small.yaml")), folder / "runs/small", folder / "results", minutes=0.02)
    first = folder / "runs/small/first-task-tiny-linear-s0"
    first.mkdir(parents=True)
    with locked(first):
        states = {job.run.name: job.state for job in runner.run()}
    assert set(states.values()) == {"waiting"}
    assert list(states) == ["first-task-tiny-linear-s0", "tiny-fdcnet-s0", "tiny-baseline-s0"]


def test_what_needs_a_failed_run_fails_too(folder: Path) -> None:
    (folder / "photos" / "train").rename(folder / "photos" / "gone")
    said = subprocess.run([*COMMAND], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert said.returncode == 1
    assert "tiny-baseline-s0: failed" in said.stdout
    assert "Error: " in said.stdout  # the end of its log
    assert "3 failed" in said.stderr
