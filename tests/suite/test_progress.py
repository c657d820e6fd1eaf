"""How far a suite has come: computed by hand from the records of its runs."""

from pathlib import Path

import pytest

from fdcnet import config
from fdcnet.store.record import RunRecord
from fdcnet.suite.plan import PlannedRun
from fdcnet.suite.progress import duration, position, remaining
from fdcnet.suite.runner import Job, JobState

FACTS = {"tasks": [["a", "b"], ["c"]], "data": {"num_train": 30}, "memory_images": 10}
SETTINGS = config.load(None, ["train.base_epochs=4", "train.step_epochs=3", "drift.epochs=2"], method="fdcnet")


def test_the_share_counts_photos_times_epochs(tmp_path: Path) -> None:
    """Two classes of ten photos, 4 epochs: 80. Then ten and ten exemplars, 3 + 2 epochs: 100."""
    assert position(tmp_path / "run", SETTINGS) is None
    record = RunRecord.create(tmp_path / "run", FACTS)
    assert position(tmp_path / "run", SETTINGS) is None
    record.append_metrics({"task": 1, "phase": "main", "epoch": 1})
    now = position(tmp_path / "run", SETTINGS)
    assert now and (now.task, now.num_tasks, now.share) == (1, 2, pytest.approx(20 / 180))
    for phase, epoch in (("main", 1), ("main", 2), ("main", 3), ("drift", 1)):
        record.append_metrics({"task": 2, "phase": phase, "epoch": epoch})
    now = position(tmp_path / "run", SETTINGS)
    assert now and (now.task, now.share) == (2, pytest.approx((80 + 4 * 20) / 180))


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (89, "89 s"), (100, "2 min"), (11100, "3 h 5 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_time_left_is_that_of_the_finished_runs() -> None:
    def job(state: JobState, took: float = 0.0) -> Job:
        return Job(PlannedRun("run", (), SETTINGS), Path("run"), None, None, state, None, 100.0, 100 + took)

    assert remaining([job("waiting"), Job(PlannedRun("run", (), SETTINGS), Path("run"), None, None, "done")], 2) is None
    assert remaining([job("done", 40), job("done", 60), job("running"), job("waiting"), job("failed")], 2) == 50
