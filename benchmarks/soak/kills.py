"""SIGKILL at random moments of `train`, `learn` and the server: nothing may be lost, and the result must be the same.

Children are forked, because importing torch takes longer than the work. They report the phase they are in, so that
every phase is hit.
"""

import contextlib
import os
import random
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch._dynamo  # imported by the first optimizer; here once for all children
from rows import Row, scratch

from fdcnet.config import load
from fdcnet.data.records import Dataset
from fdcnet.data.synthetic import make_synthetic
from fdcnet.files import is_temporary
from fdcnet.runtime.clock import Clock
from fdcnet.runtime.listener import Listener
from fdcnet.store.bundle import has_bundle, load_bundle
from fdcnet.store.verify import verify
from fdcnet.teaching import learn as learning
from fdcnet.training.run import train
from models import SMALL

TRAIN_PHASES = ("decode", "main", "drift", "herd", "fit", "evaluate", "write")
LEFTOVERS = ("stopped", "unfinished", "lock")
LEARN_PHASES = ("decode", "main", "herd", "evaluate", "write")


@dataclass(frozen=True)
class End:
    """How a child ended: its exit code (negative: a signal), the phase it was in, its error."""

    code: int
    phase: str
    error: str
    times: dict[str, float]  # seconds spent in each phase


def run_child(work: Callable[[], object], kill_in: str = "", after: float = 0.0) -> End:
    """Run `work` in a forked process. With `kill_in`, kill it that many seconds after it has entered this phase."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os._exit(_work(work, writer))
    os.close(writer)
    open_phases, times, error, entered = [""], Counter[str](), "", {}
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            kind, _, text = line.decode().rstrip("\n").partition(" ")
            if kind == "enter":
                open_phases.append(text)
                entered[text] = time.monotonic()
                if text == kill_in:
                    time.sleep(after)
                    os.kill(pid, signal.SIGKILL)
                    kill_in = ""
            elif kind == "leave":
                open_phases.remove(text)
                times[text] += time.monotonic() - entered[text]
            else:
                error += f"{text} "
    _, status = os.waitpid(pid, 0)
    return End(os.waitstatus_to_exitcode(status), open_phases[-1], error, dict(times))


def _work(work: Callable[[], object], writer: int) -> int:
    def say(kind: str, text: str) -> None:
        os.write(writer, f"{kind} {text}\n".encode())

    plain = Clock.__call__

    @contextlib.contextmanager
    def announced(clock: Clock, phase: str) -> Iterator[None]:
        say("enter", phase)
        with plain(clock, phase):
            yield
        say("leave", phase)

    def started(listener: Listener, name: str, first_epoch: int, epochs: int, num_images: int) -> None:
        listener.name = name
        say("enter", name)

    def announcing(phase: str, call: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object) -> object:
            with announced(Clock(), phase):
                return call(*arguments)

        return run

    Clock.__call__ = announced
    learning.measure = announcing("evaluate", learning.measure)
    learning.add_version = announcing("write", learning.add_version)
    Listener.phase_started = started
    Listener.phase_ended = lambda listener: say("leave", listener.name)
    try:
        work()
    except BaseException:
        for line in traceback.format_exc().splitlines()[-3:]:
            say("error", line)
        return 1
    return 0


def least_hit(phases: tuple[str, ...], hit: Counter[str]) -> str:
    """The phase to aim at next. A short one is over before many of the kills that are meant for it."""
    return min(phases, key=hit.__getitem__)


def kill_train(tries: int, seconds: float) -> Row:
    """Kill a run, resume it, and compare: the weights must be the same to the last bit."""
    row, chance, started = Row("kill-train"), random.Random("kill-train"), time.monotonic()
    with scratch() as folder:
        root = Path(folder)
        dataset = make_synthetic(root / "photos", num_classes=4, train_per_class=6, test_per_class=2, size=40)
        config = load(None, SMALL, method="fdcnet")

        def work(run: Path, resume: bool = False) -> Callable[[], object]:
            return lambda: train(config, dataset, run, resume=resume, listener=Listener(), cache_dir=root / "cache")

        whole = run_child(work(root / "whole"))
        assert whole.code == 0, whole.error
        wanted = (root / "whole/model/weights.safetensors").read_bytes()
        hit = Counter[str]()
        while row.tries < tries and time.monotonic() - started < seconds:
            phase, run = least_hit(TRAIN_PHASES, hit), root / "run"
            shutil.rmtree(root / "cache", ignore_errors=True)  # so that photos are decoded
            killed = run_child(work(run), phase, chance.uniform(0, whole.times[phase]))
            if killed.code == 0:  # it was faster
                shutil.rmtree(run)
                continue
            row.tries += 1
            hit[killed.phase or "between phases"] += 1
            resumed = run_child(work(run, resume=True))
            if resumed.code:
                row.fail(f"after a kill in {killed.phase}: {resumed.error}")
            elif (run / "model/weights.safetensors").read_bytes() != wanted:
                row.fail(f"after a kill in {killed.phase}: other weights")
            elif left := [path.name for path in run.rglob("*") if is_temporary(path) or path.suffix == ".old"]:
                row.fail(f"after a kill in {killed.phase}: {left[0]} is left")
            shutil.rmtree(run, ignore_errors=True)
    row.note = "killed in " + ", ".join(f"{name} {number}" for name, number in hit.most_common())
    return row


def kill_learn(tries: int, seconds: float) -> Row:
    """Kill a lesson: the model is the old or the new version, and the same lesson then gives the same model."""
    row, chance, started = Row("kill-learn"), random.Random("kill-learn"), time.monotonic()
    with scratch() as folder:
        root = Path(folder)
        dataset = make_synthetic(root / "photos", num_classes=4, train_per_class=8, test_per_class=2, size=40)
        lessons = [part_of(dataset, 0, 2), part_of(dataset, 2, 4)]

        def work(model: Path, number: int) -> Callable[[], object]:
            return lambda: teach(model, lessons[number], root / "cache")

        before = [root / "none", root / "first"]
        wanted, lengths = [], []
        for number in (0, 1):
            model = root / ("first", "second")[number]
            if number:
                shutil.copytree(before[1], model)
            end = run_child(work(model, number))
            assert end.code == 0, end.error
            wanted.append(weights_of(model))
            lengths.append(end.times)
        hit = Counter[str]()
        while row.tries < tries and time.monotonic() - started < seconds:
            number, model = row.tries % 2, root / "model"
            phase = least_hit(LEARN_PHASES, hit)
            if number:
                shutil.copytree(before[1], model)
            shutil.rmtree(root / "cache", ignore_errors=True)
            killed = run_child(work(model, number), phase, chance.uniform(0, lengths[number].get(phase, 0.2)))
            if killed.code:
                row.tries += 1
                hit[killed.phase or "between phases"] += 1
                _check_lesson(
                    row, model, work(model, number), weights_of(before[1]) if number else None, wanted[number]
                )
            shutil.rmtree(model, ignore_errors=True)
    row.note = "killed in " + ", ".join(f"{name} {number}" for name, number in hit.most_common())
    return row


def part_of(dataset: Dataset, first: int, last: int) -> Dataset:
    classes = dataset.classes[first:last]
    train, test = (tuple(r for r in part if r.label in classes) for part in (dataset.train, dataset.test))
    return replace(dataset, classes=classes, train=train, test=test)


def teach(model: Path, photos: Dataset, cache: Path) -> None:
    settings = [text for text in SMALL if text.startswith(("model.", "data.size", "data.crop", "train.batch"))]
    learning.learn(
        model, photos, epochs=2, refine=True, overrides=settings, device="cpu", cache_dir=cache, listener=Listener()
    )


def weights_of(model: Path) -> dict[str, torch.Tensor]:
    return load_bundle(model).network.state_dict()


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def _check_lesson(
    row: Row,
    model: Path,
    again: Callable[[], object],
    old: dict[str, torch.Tensor] | None,
    new: dict[str, torch.Tensor],
) -> None:
    try:
        found = weights_of(model) if has_bundle(model) else None
        if found is not None and same(found, new):
            return  # killed after the new version was in place
        if found is not None and not (old and same(found, old)):
            row.fail("the model is neither the old nor the new one")
        end = run_child(again)
        if end.code:
            row.fail(f"cannot learn after a kill: {end.error}")
        elif not same(weights_of(model), new):
            row.fail("the lesson after a kill gives another model")
        elif any(is_temporary(path) or path.name in LEFTOVERS for path in model.rglob("*")):
            row.fail("a kill has left files")
        elif any(version.problems for version in verify(model)):
            row.fail("a kill has left damaged files")
    except Exception as error:
        row.fail(f"{type(error).__name__}: {error}")
