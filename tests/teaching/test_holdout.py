"""Which photos teach and which measure, lesson after lesson."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from fdcnet.config import Config
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Record
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.models.network import new_network
from fdcnet.store.photo_history import num_taught
from fdcnet.teaching.holdout import PhotoSplit, split_photos

NOTHING: tuple[int, ...] = ()


def photos(numbers: Sequence[int]) -> PixelCache:
    """Each number is a photo of class a."""
    pixels = torch.tensor(numbers, dtype=torch.uint8)[:, None, None, None].expand(-1, 2, 2, 3).contiguous()
    records = tuple(Record(Path(f"{number}.jpg"), "a") for number in numbers)
    return PixelCache(records, torch.full((len(numbers), 2), 2), pixels)


def shown(part: PixelCache) -> list[int]:
    return sorted(part.pixels[:, 0, 0, 0].tolist())


@pytest.fixture
def after(small_config: Callable[..., Config]) -> Callable[..., State]:
    """The model after a lesson, which holds nothing but these photos."""

    def make(lesson: PhotoSplit | None, exemplars: Sequence[int] = (), held_out: Sequence[int] = ()) -> State:
        config = small_config("baseline")
        memory = ExemplarMemory(len(exemplars))
        if exemplars:
            memory.add(0, photos(exemplars).pixels, [str(number) for number in exemplars])
        kept = photos(held_out) if held_out else None
        given = lesson.history if lesson else {}
        return State(config, new_network(config.model, 0), memory, ["a"], [1], held_out=kept, photo_history=given)

    return make


@pytest.mark.parametrize("share", [None, 0, 0.9])
def test_what_has_measured_goes_on_whatever_the_share_is_now(after: Callable[..., State], share: float | None) -> None:
    """Also photos that the model no longer holds."""
    first = split_photos(None, photos(range(20)), photos(NOTHING), None)
    again = split_photos(after(first), photos(range(30)), photos(NOTHING), share)
    assert len(first.test) == 4 and set(shown(first.test)) <= set(shown(again.test))
    assert not set(shown(first.train)) & set(shown(again.test))
    assert again.history.items() >= first.history.items()


def test_what_has_measured_does_not_teach_beside_a_test_part(after: Callable[..., State]) -> None:
    first = split_photos(None, photos(range(20)), photos(NOTHING), None)
    again = split_photos(after(first), photos(range(20)), photos([50, 51]), None)
    assert shown(again.train) == shown(first.train) and shown(again.test) == [50, 51]
    assert again.num_skipped == 4


def test_what_a_model_holds_is_remembered_when_it_is_given_up(after: Callable[..., State]) -> None:
    """A model of `fdcnet train` knows no more than its exemplars."""
    first = split_photos(after(None, exemplars=range(15), held_out=[20]), photos([30]), photos(NOTHING), None)
    again = split_photos(after(first), photos(range(30)), photos(NOTHING), 0.99)
    assert 20 in shown(again.test) and not set(range(15)) & set(shown(again.test))


def test_photos_that_taught_are_told_from_those_that_measured(after: Callable[..., State]) -> None:
    lesson = split_photos(None, photos(range(20)), photos(NOTHING), None)
    model = after(lesson, exemplars=[40], held_out=[50])
    assert num_taught(model, photos(range(20))) == 16
    assert num_taught(model, photos([*shown(lesson.test), 40, 50, 60])) == 1
