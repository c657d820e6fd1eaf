"""The progress bar of a lesson, with values computed by hand."""

import pytest

from fdcnet.web import progress
from fdcnet.web.progress import Progress


def test_each_stage_takes_its_share_of_the_rest() -> None:
    bar = Progress()
    bar.update("opening photos", 5, 10)
    assert bar.fraction == pytest.approx(0.05)
    bar.update("opening photos", 10, 10)
    bar.update("opening photos", 1, 2)  # the test photos: the same stage once more
    assert bar.fraction == pytest.approx(0.1 + 0.5 * 0.1 * 0.9)
    bar.enter("learning", 100)
    start = bar.fraction
    for _ in range(4):
        bar.step(25)
    assert bar.fraction == pytest.approx(start + 0.8 * (1 - start))
    bar.enter("learning: drift", 10)
    bar.step(5)
    assert bar.title == "Learning: drift" and bar.fraction < 1
    bar.update("measuring", 0, 0)
    assert bar.fraction < 1


def test_time_left_follows_the_speed_of_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    bar = Progress()
    assert bar.seconds_left() is None
    bar.enter("learning", 100)
    bar.step(1)
    assert bar.seconds_left() is None  # too early
    now = 104.0
    bar.step(24)  # 0.2 of the bar in 4 s
    assert bar.seconds_left() == 16
    bar.update("measuring", 1, 2)  # too short to predict anything
    assert bar.seconds_left() is None
