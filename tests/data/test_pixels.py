"""Photos that do not fit as raw pixels: stored as JPEG, fetched by index, in bounded memory."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fdcnet.config import Config
from fdcnet.data.batches import Batches
from fdcnet.data.cache import PixelCache, exceeds_limit
from fdcnet.data.pixels import EncodedPixels, JoinedPixels, Pixels, SharedFile, chunks, encode, join, select
from fdcnet.data.records import Dataset, Record
from fdcnet.store.record import RunRecord
from fdcnet.training.run import train

CPU = torch.device("cpu")


def photo(seed: int, side: int = 24) -> np.ndarray:
    """Smooth, as photos are, and different in every corner."""
    corners = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), np.uint8)
    return np.asarray(Image.fromarray(corners).resize((side, side), Image.Resampling.BILINEAR))


def encoded(seeds: range, folder: Path) -> EncodedPixels:
    parts = [encode(photo(seed)) for seed in seeds]
    (folder / "pixels").write_bytes(b"".join(parts))
    lengths = np.array([len(part) for part in parts])
    return EncodedPixels(SharedFile(folder / "pixels"), lengths.cumsum(), lengths, 24)


@pytest.fixture
def records(tmp_path: Path) -> list[Record]:
    (tmp_path / "photos").mkdir()
    for i in range(6):
        Image.fromarray(photo(i)).save(tmp_path / "photos" / f"{i}.png")
    return [Record(tmp_path / "photos" / f"{i}.png", "ab"[i % 2]) for i in range(6)]


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for five raw photos of 24 x 24 pixels, and for all six as JPEG."""
    monkeypatch.setenv("FDCNET_CACHE_GB", str(5 * 24 * 24 * 3 / 1e9))


def test_an_encoded_photo_looks_like_the_original(tmp_path: Path) -> None:
    pixels = encoded(range(3), tmp_path)
    assert pixels.shape == (3, 24, 24, 3)
    for seed, found in enumerate(pixels):
        difference = found.numpy().astype(int) - photo(seed)
        assert np.abs(difference).mean() < 4
        assert torch.equal(found, pixels[seed])
    assert torch.equal(pixels[-1], pixels[2])
    with pytest.raises(IndexError):
        pixels[3]


def test_photos_that_exceed_the_limit_are_stored_as_jpeg(
    records: list[Record], tmp_path: Path, small_limit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exceeds_limit(6, 24)
    assert not exceeds_limit(5, 24)
    raw = PixelCache.build(records, 24, None, CPU)
    cache = PixelCache.build(records, 24, tmp_path / "cache", CPU)
    assert isinstance(cache.pixels, EncodedPixels)
    assert (cache.pixels[:].int() - raw.pixels[:].int()).abs().float().mean() < 4
    assert torch.equal(cache.sizes, raw.sizes)
    [file] = (tmp_path / "cache").glob("*-jpeg.pixels")
    assert file.read_bytes()[:2] == b"\xff\xd8"
    monkeypatch.setattr("fdcnet.data.decode_all.decode_with_size", None)  # the next build opens no photo
    assert torch.equal(PixelCache.build(records, 24, tmp_path / "cache", CPU).pixels[:], cache.pixels[:])


def test_photos_within_the_limit_stay_raw(records: list[Record], tmp_path: Path) -> None:
    assert isinstance(PixelCache.build(records, 24, tmp_path / "cache", CPU).pixels, Tensor)


@pytest.mark.parametrize("damage", ["cut", "lengths"])
def test_a_damaged_block_is_built_again(records: list[Record], tmp_path: Path, small_limit: None, damage: str) -> None:
    expected = PixelCache.build(records, 24, tmp_path / "cache", CPU).pixels[:]
    [sidecar] = (tmp_path / "cache").glob("*.json")
    if damage == "cut":
        file = sidecar.with_suffix(".pixels")
        file.write_bytes(file.read_bytes()[:-1])
    else:
        facts = json.loads(sidecar.read_text())
        sidecar.write_text(json.dumps(facts | {"lengths": facts["lengths"][:-1]}))
    assert torch.equal(PixelCache.build(records, 24, tmp_path / "cache", CPU).pixels[:], expected)


def test_unreadable_photos_are_skipped(records: list[Record], tmp_path: Path, small_limit: None) -> None:
    records[2].path.write_bytes(b"no photo")
    for _ in range(2):  # decoded, then mapped
        cache = PixelCache.build(records, 24, tmp_path / "cache", CPU)
        assert [record.path.name for record in cache.records] == ["0.png", "1.png", "3.png", "4.png", "5.png"]
        assert [path.name for path, _ in cache.broken] == ["2.png"]


def test_a_selection_fetches_nothing(
    records: list[Record], tmp_path: Path, small_limit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PixelCache.build(records, 24, tmp_path / "cache", CPU)
    expected = cache.pixels[torch.tensor([1, 3, 5])]
    with monkeypatch.context() as patch:
        patch.setattr(EncodedPixels, "photo", None)
        chosen = cache.of_classes(["b"])
    assert torch.equal(chosen.pixels[:], expected)


def test_joined_photos_stay_where_they_are(tmp_path: Path) -> None:
    raw, jpeg = torch.arange(2 * 24 * 24 * 3).to(torch.uint8).view(2, 24, 24, 3), encoded(range(3), tmp_path)
    joined = join([raw, jpeg])
    assert isinstance(joined, JoinedPixels)
    assert joined.encoded
    assert joined[0].data_ptr() == raw.data_ptr()
    expected = torch.cat([raw, jpeg[:]])
    assert torch.equal(joined[:], expected)
    rows = torch.tensor([4, 0, 4])
    assert torch.equal(joined[rows], expected[rows])
    assert torch.equal(select(joined, rows)[:], expected[rows])
    assert torch.equal(torch.cat(list(chunks(joined, 2))), expected)
    assert join([raw]) is raw
    assert not JoinedPixels([raw], np.zeros(1, int), np.zeros(1, int)).encoded


@pytest.mark.parametrize("zoom", [1.0, 0.5])
def test_an_epoch_of_encoded_photos_is_that_of_their_pixels(zoom: float, tmp_path: Path) -> None:
    """Decoded by other processes, with the same crops, and without a draw from the run's own generator."""

    def epoch(pixels: Pixels) -> list[Tensor]:
        steps = [torch.tensor([3, 0]), torch.tensor([4, 1, 2]), torch.tensor([2, 2])]
        labels = torch.arange(5)
        batches = Batches(
            pixels, labels, labels > 2, steps, 16, True, (0, 1), (0.0,) * 3, (1.0,) * 3, CPU, zoom=zoom, colour=0.1
        )
        return [batch.images for batch in batches]

    torch.manual_seed(0)
    pixels = join([encoded(range(3), tmp_path), torch.from_numpy(np.stack([photo(3), photo(4)]))])
    found, after = epoch(pixels), torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))
    for images, expected in zip(found, epoch(pixels[:]), strict=True):
        assert torch.equal(images, expected)


def test_an_empty_epoch_of_encoded_photos(tmp_path: Path) -> None:
    nothing = Batches(
        encoded(range(2), tmp_path), torch.zeros(2), torch.zeros(2), [], 16, True, (0,), (0.0,) * 3, (1.0,) * 3, CPU
    )
    assert list(nothing) == []


def test_a_run_trains_and_evaluates_on_encoded_photos(
    small_dataset: Dataset, small_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDCNET_CACHE_GB", str(20 * 40 * 40 * 3 / 1e9))  # fewer than the 32 photos of the run
    results = train(small_config("fdcnet"), small_dataset, tmp_path / "run", cache_dir=tmp_path / "cache")
    assert [task["num_classes"] for task in results["tasks"]] == [2, 4]
    assert len(list((tmp_path / "cache").glob("*-jpeg.pixels"))) == 3  # two tasks and the test set
    assert len(list((tmp_path / "cache").glob("*.pixels"))) == 3
    assert RunRecord(tmp_path / "run").run()["cache"] == "jpeg"
    curve = [json.loads(line)["losses"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    golden = json.loads((Path(__file__).parents[1] / "golden" / "fdcnet.json").read_text())
    assert curve[0] == pytest.approx(golden["1 main 1"]["losses"], rel=0.1)  # nearly the same photos


MEMORY_TEST = """
import resource, sys
from pathlib import Path
import torch
from fdcnet.data.batches import Batches, epoch_indices
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Record
from fdcnet.memory import ExemplarMemory
from fdcnet.training.sampling import gather_photos
from fdcnet.data.records import Task

def peak():
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return max(resource.getrusage(kind).ru_maxrss for kind in kinds) / 1e3  # MB, of the largest process

before, num = peak(), 2000
records = [Record(Path(sys.argv[1]), "a")] * num
cache = PixelCache.build(records, 256, Path(sys.argv[2]), torch.device("cpu"))
memory = ExemplarMemory(10)
memory.add(0, cache.gather(torch.arange(10)), ["x"] * 10)
labels = torch.ones(num, dtype=torch.int64)
photos = gather_photos(cache.pixels, labels, memory, Task(2, ("a",), 1, (), ()), True, (0,))
steps = epoch_indices(photos.num_own, 64, (0,), True)
epoch = Batches(photos.pixels, photos.labels, photos.from_memory, steps, 224, True, (0,), (0.,) * 3, (1.,) * 3,
                torch.device("cpu"))
seen = sum(len(batch.labels) for batch in epoch)
print(seen, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="maximum resident size in kilobytes")
def test_peak_memory_does_not_grow_with_the_photos(tmp_path: Path) -> None:
    """2000 photos are 393 MB of raw pixels. An epoch of them takes half of that, in any process."""
    Image.fromarray(photo(0, 256)).save(tmp_path / "photo.jpg")
    environment = os.environ | {"FDCNET_CACHE_GB": "0.2"}
    command = [sys.executable, "-c", MEMORY_TEST, str(tmp_path / "photo.jpg"), str(tmp_path / "cache")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    seen, megabytes = done.stdout.split()
    assert int(seen) == 2020 // 64 * 64
    assert float(megabytes) < 200
