import threading
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fdcnet.data.batches import (
    Batches,
    balanced_indices,
    crop_batch,
    epoch_indices,
    normalise,
    paired_indices,
    prefetch,
    recolour,
    rng,
    zoom_batch,
)
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Record

CPU = torch.device("cpu")
KEY = (0, 1, "main", 3)


def flat(batches: list[Tensor]) -> list[int]:
    return torch.cat(batches).tolist()


def sizes(batches: list[Tensor]) -> list[int]:
    return [len(batch) for batch in batches]


# --- keys ---


def test_a_key_gives_the_same_numbers_everywhere() -> None:
    assert rng(0, 1, "main", 3).integers(0, 1000, 5).tolist() == [666, 982, 177, 902, 585]
    assert rng(np.int64(0), 1, "main", 3).integers(0, 1000, 5).tolist() == [666, 982, 177, 902, 585]


def test_keys_do_not_run_into_each_other() -> None:
    keys = [(0,), (1,), ("0",), (0, 0), (1, 2, 3), (12, 3), (1, 23), ("1", 23), (1, "2", "3"), (1, "2, '3'")]
    assert len({rng(*key).integers(0, 2**62) for key in keys}) == len(keys)


# --- index lists ---


def test_an_epoch_covers_every_photo_once() -> None:
    batches = epoch_indices(103, 10, KEY, drop_last=False)
    assert sorted(flat(batches)) == list(range(103))
    assert sizes(batches) == [10] * 10 + [3]
    assert all(batch.dtype == torch.int64 for batch in batches)


def test_an_epoch_depends_on_its_key_alone() -> None:
    first = flat(epoch_indices(50, 8, KEY, drop_last=False))
    epoch_indices(50, 8, (0, 1, "main", 4), drop_last=False)
    assert flat(epoch_indices(50, 8, KEY, drop_last=False)) == first
    assert flat(epoch_indices(50, 8, (0, 1, "main", 4), drop_last=False)) != first
    assert first != sorted(first)


@pytest.mark.parametrize(
    ("num", "drop_last", "expected"),
    [
        (23, True, [10, 10]),
        (20, True, [10, 10]),
        (20, False, [10, 10]),
        (7, True, [7]),  # rather a short batch than none
        (21, False, [10, 11]),  # never a single photo...
        (11, False, [11]),
        (1, False, [1]),  # ...unless there is no other
        (1, True, [1]),
        (0, False, []),
    ],
)
def test_the_last_batch(num: int, drop_last: bool, expected: list[int]) -> None:
    assert sizes(epoch_indices(num, 10, KEY, drop_last)) == expected


def test_balanced_epochs_show_each_class_equally_often() -> None:
    labels = torch.tensor([0] * 90 + [3] * 8 + [7] * 2)
    batches = balanced_indices(labels, 16, KEY, drop_last=False)
    indices = flat(batches)
    counts = Counter(labels[indices].tolist())
    assert len(indices) == 100
    assert sorted(counts.values()) == [33, 33, 34]
    # the 2 photos of class 7 are cycled: none is ahead of the other by more than one
    own = Counter(i for i in indices if i >= 98)
    assert set(own) == {98, 99}
    assert abs(own[98] - own[99]) <= 1
    assert len({i for i in indices if i < 90}) >= 33  # no repeats where there is enough
    assert flat(balanced_indices(labels, 16, KEY, drop_last=False)) == indices
    assert len(set(labels[batches[0]].tolist())) > 1  # shuffled over classes


def test_balanced_epochs_favour_no_class_over_many_keys() -> None:
    labels = torch.tensor([0, 1, 2, 0])
    extra = Counter(
        label
        for epoch in range(60)
        for label, count in Counter(labels[flat(balanced_indices(labels, 4, (epoch,), False))].tolist()).items()
        if count == 2
    )
    assert set(extra) == {0, 1, 2}
    assert balanced_indices(torch.empty(0, dtype=torch.int64), 4, KEY, False) == []


def test_pairs_pass_once_over_the_larger_set_and_cycle_the_smaller() -> None:
    for num_first, num_second in ((25, 7), (7, 25)):
        pairs = paired_indices(num_first, num_second, 10, KEY, drop_last=False)
        assert [(len(a), len(b)) for a, b in pairs] == [(10, 10), (10, 10), (5, 5)]
        streams = [flat([a for a, _ in pairs]), flat([b for _, b in pairs])]
        larger, smaller = sorted(streams, key=lambda stream: -len(set(stream)))
        assert sorted(larger) == list(range(25))
        passes = [smaller[i : i + 7] for i in (0, 7, 14)]
        assert all(sorted(one) == list(range(7)) for one in passes)
        assert passes[0] != passes[1]


def test_equal_sets_are_shuffled_apart() -> None:
    pairs = paired_indices(30, 30, 10, KEY, drop_last=True)
    assert flat([a for a, _ in pairs]) != flat([b for _, b in pairs])


# --- pixels ---


@pytest.fixture(scope="module")
def pixels() -> Tensor:
    return torch.from_numpy(rng("pixels").integers(0, 256, (5, 12, 12, 3), np.uint8))


def places() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Index, top, left, flip."""
    index, top, left, flip = torch.tensor([[4, 0, 0, 2], [0, 4, 2, 1], [3, 0, 4, 1], [0, 1, 1, 0]])
    return index, top, left, flip > 0


def test_crops_against_slicing(pixels: Tensor) -> None:
    crops = crop_batch(pixels, *places(), 8)
    assert crops.shape == (4, 8, 8, 3)
    assert crops.is_contiguous()
    assert torch.equal(crops[0], pixels[4, 0:8, 3:11])
    assert torch.equal(crops[1], pixels[0, 4:12, 0:8].flip(1))
    assert torch.equal(crops[2], pixels[0, 2:10, 4:12].flip(1))
    assert torch.equal(crops[3], pixels[2, 1:9, 1:9])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_crops_on_a_gpu_equal_those_on_a_cpu(pixels: Tensor) -> None:
    on_gpu = crop_batch(pixels.cuda(), *(values.cuda() for values in places()), 8)
    assert torch.equal(on_gpu.cpu(), crop_batch(pixels, *places(), 8))


def test_normalise_by_hand() -> None:
    crops = torch.tensor([[[[0, 51, 255], [255, 102, 0]]]], dtype=torch.uint8)  # one row, two pixels
    images = normalise(crops, mean=(127.5, 51.0, 0.0), std=(127.5, 25.5, 510.0))
    assert images.shape == (1, 3, 1, 2)
    expected = torch.tensor([[[[-1.0, 1.0]], [[0.0, 2.0]], [[0.5, 0.0]]]])
    torch.testing.assert_close(images, expected)


def test_normalise_is_channels_last_and_takes_a_type(pixels: Tensor) -> None:
    images = normalise(pixels, (127.5,) * 3, (127.5,) * 3, torch.bfloat16)
    assert images.dtype == torch.bfloat16
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert pixels.dtype == torch.uint8


# --- an epoch ---


@pytest.fixture(scope="module")
def cache(pixels: Tensor) -> PixelCache:
    records = tuple(Record(Path(f"{i}.png"), "a") for i in range(5))
    return PixelCache(records, torch.full((5, 2), 12), pixels)


def epoch(cache: PixelCache, augment: bool, key: tuple[int | str, ...] = KEY, device: torch.device = CPU) -> Batches:
    indices = [torch.tensor([3, 0]), torch.tensor([4, 1, 2])]
    labels, from_memory = torch.tensor([10, 11, 12, 13, 14]), torch.tensor([1, 0, 0, 0, 1]) > 0
    return Batches(cache.pixels, labels, from_memory, indices, 8, augment, key, (0.0,) * 3, (1.0,) * 3, device)


def test_without_augmentation_an_epoch_shows_the_centres(cache: PixelCache, pixels: Tensor) -> None:
    batches = epoch(cache, augment=False)
    assert len(batches) == 2
    first, second = list(batches)
    assert first.labels.tolist() == [13, 10]
    assert second.labels.tolist() == [14, 11, 12]
    assert first.from_memory.tolist() == [False, True]
    assert second.from_memory.tolist() == [True, False, False]
    assert second.images.shape == (3, 3, 8, 8)
    torch.testing.assert_close(second.images[0], pixels[4, 2:10, 2:10].permute(2, 0, 1).float())


def test_augmentation_crops_everywhere_and_mirrors_half(cache: PixelCache, pixels: Tensor) -> None:
    places = {}
    for y, x in product(range(5), range(5)):
        square = pixels[3, y : y + 8, x : x + 8]
        places[square.numpy().tobytes()] = (y, x, False)
        places[square.flip(1).numpy().tobytes()] = (y, x, True)
    seen: Counter[tuple[int, int, bool]] = Counter()
    for number in range(600):
        image = next(iter(epoch(cache, augment=True, key=(number,)))).images[0]
        seen[places[image.permute(1, 2, 0).round().byte().contiguous().numpy().tobytes()]] += 1
    assert len(seen) == 50  # all 25 corners, both ways
    assert 240 < sum(count for (_, _, mirrored), count in seen.items() if mirrored) < 360


def test_an_epoch_repeats_exactly(cache: PixelCache) -> None:
    first, again = epoch(cache, augment=True), epoch(cache, augment=True)
    other = epoch(cache, augment=True, key=(*KEY[:3], 4))
    for _ in range(2):
        assert all(torch.equal(a.images, b.images) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a.images, b.images) for a, b in zip(first, other, strict=True))


def test_an_empty_epoch(cache: PixelCache) -> None:
    nothing = Batches(cache.pixels, torch.zeros(5), torch.zeros(5), [], 8, True, KEY, (0.0,) * 3, (1.0,) * 3, CPU)
    assert list(nothing) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_sees_the_same_epoch_wherever_the_pixels_lie(cache: PixelCache) -> None:
    gpu = torch.device("cuda")
    resident = PixelCache(cache.records, cache.sizes, cache.pixels.to(gpu))
    expected = list(epoch(cache, augment=True))
    for source in (cache, resident):
        for batch, other in zip(epoch(source, augment=True, device=gpu), expected, strict=True):
            assert batch.images.is_cuda
            assert batch.labels.is_cuda
            torch.testing.assert_close(batch.images.cpu(), other.images)
            assert torch.equal(batch.labels.cpu(), other.labels)
            assert torch.equal(batch.from_memory.cpu(), other.from_memory)


# --- the thread ---


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_prefetch_keeps_items_and_order() -> None:
    assert list(prefetch(range(20), depth=3)) == list(range(20))
    assert list(prefetch([])) == []
    assert workers() == []


def test_prefetch_works_ahead_but_not_further() -> None:
    made: list[int] = []
    third = threading.Event()

    def items() -> Iterator[int]:
        for i in range(20):
            made.append(i)
            if i == 3:
                third.set()
            yield i

    iterator = prefetch(items(), depth=3)
    assert next(iterator) == 0
    assert third.wait(60)  # items 1 to 3 are made while item 0 is in use
    iterator.close()  # type: ignore[attr-defined]
    assert made == [0, 1, 2, 3]


def test_an_exception_reaches_the_loop() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    iterator = prefetch(items())
    assert next(iterator) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(iterator)
    assert workers() == []


def test_leaving_the_loop_early_ends_the_thread() -> None:
    for item in prefetch(range(1000)):
        if item == 5:
            break
    assert workers() == []


def test_a_zoomed_square_of_whole_size_is_the_photo_itself(pixels: Tensor) -> None:
    size = pixels.shape[1]
    indices = torch.tensor([1, 0])
    zero, side, flip = torch.zeros(2), torch.full((2,), float(size)), torch.tensor([False, True])
    zoomed = zoom_batch(pixels[indices], zero, zero, side, flip, size)
    torch.testing.assert_close(zoomed[0], pixels[1].float(), atol=0.01, rtol=0)
    torch.testing.assert_close(zoomed[1], pixels[0].float().flip(1), atol=0.01, rtol=0)


def test_a_zoomed_square_reads_the_right_place() -> None:
    ramp = torch.arange(8, dtype=torch.uint8)[None, None, :, None].expand(1, 8, 8, 3) * 10  # value = 10 * column
    one = torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([4.0])
    zoomed = zoom_batch(ramp, *one, torch.tensor([False]), 2)  # columns 2..6 in two halves: centres 3 and 5
    assert zoomed[0, 0, :, 0].tolist() == pytest.approx([25.0, 45.0])  # pixel centres lie at .5
    assert zoom_batch(ramp, *one, torch.tensor([True]), 2)[0, 0, :, 0].tolist() == pytest.approx([45.0, 25.0])


def test_colours_by_hand() -> None:
    photo = torch.tensor([[[[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]]]])  # (1, 1, 2, 3): greys 20 and 50, mean 35
    one, half, two = (torch.tensor([value]) for value in (1.0, 0.5, 2.0))
    assert torch.equal(recolour(photo, one, one, one), photo)
    assert recolour(photo, two, one, one).flatten().tolist() == [20, 40, 60, 80, 100, 120]
    assert recolour(photo, one, half, one).flatten().tolist() == [15, 20, 25, 45, 50, 55]
    assert recolour(photo, one, one, half).flatten().tolist() == [22.5, 27.5, 32.5, 37.5, 42.5, 47.5]
    assert recolour(photo, one, one, two * 5).flatten().tolist() == [0, 0, 0, 85, 185, 255]


@pytest.mark.parametrize("zoom", [0.5, 1.0])
def test_colours_vary_in_training_alone_and_leave_the_places_as_they_are(pixels: Tensor, zoom: float) -> None:
    flags, indices = torch.zeros(len(pixels)), [torch.tensor([0, 1])]

    def first(augment: bool, colour: float) -> Tensor:
        places = (flags, flags, indices, 8, augment, KEY, (0.0,) * 3, (1.0,) * 3, CPU)
        [batch] = Batches(pixels, *places, zoom=zoom, colour=colour)
        return batch.images

    plain, coloured = first(True, 0.0), first(True, 0.4)
    assert not torch.equal(plain, coloured)
    assert torch.equal(coloured, first(True, 0.4))
    assert torch.allclose(first(True, 1e-7), plain, atol=1e-3)
    assert torch.equal(first(False, 0.4), first(False, 0.0))


def test_zooming_repeats_and_differs_between_epochs(pixels: Tensor) -> None:
    flags, indices = torch.zeros(len(pixels)), [torch.tensor([0, 1])]

    def images(epoch: int) -> Tensor:
        [batch] = Batches(pixels, flags, flags, indices, 8, True, (epoch,), (0.0,) * 3, (1.0,) * 3, CPU, zoom=0.5)
        return batch.images

    assert torch.equal(images(1), images(1))
    assert not torch.equal(images(1), images(2))
    assert images(1).shape == (2, 3, 8, 8)
