import io
import json
import os
import struct
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fdcnet.data import cache as cache_module
from fdcnet.data.cache import PixelCache, cache_key, default_cache_dir, keep, kept
from fdcnet.data.decode import BadImage, decode, decode_with_size, image_size, upright
from fdcnet.data.records import Record
from fdcnet.errors import UserError

CPU = torch.device("cpu")
QUARTERS = np.zeros((32, 48, 3), np.uint8)  # red, green / blue, white
QUARTERS[:16, :24, 0] = QUARTERS[:16, 24:, 1] = QUARTERS[16:, :24, 2] = 255
QUARTERS[16:, 24:] = 255


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def pixel(source: Path | bytes | Image.Image) -> list[int]:
    return decode(source, 8)[4, 4].tolist()


# --- decode: every mode ---


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("L", (20, 10), 77), [77, 77, 77]),
        (Image.new("1", (20, 10), 1), [255, 255, 255]),
        (Image.new("RGB", (20, 10), (10, 20, 30)), [10, 20, 30]),
        (Image.new("RGBA", (20, 10), (255, 0, 0, 0)), [255, 255, 255]),
        (Image.new("RGBA", (20, 10), (0, 0, 0, 51)), [204, 204, 204]),
        (Image.new("LA", (20, 10), (0, 51)), [204, 204, 204]),
        (Image.new("La", (20, 10), (0, 51)), [204, 204, 204]),
        (Image.new("CMYK", (20, 10), (255, 0, 0, 0)), [0, 255, 255]),
        (Image.new("YCbCr", (20, 10), (90, 128, 128)), [90, 90, 90]),
        (Image.new("I", (20, 10), 65535), [255, 255, 255]),
        (Image.new("I", (20, 10), 257 * 40), [40, 40, 40]),
        (Image.fromarray(np.full((10, 20), 257 * 99, np.uint16)), [99, 99, 99]),
        (Image.fromarray(np.full((10, 20), 0.4, np.float32)), [102, 102, 102]),
        (Image.fromarray(np.full((10, 20), 30.0, np.float32)), [30, 30, 30]),
        (Image.fromarray(np.full((10, 20), 25700.0, np.float32)), [100, 100, 100]),
        (Image.fromarray(np.full((10, 20), np.nan, np.float32)), [0, 0, 0]),
    ],
    ids=lambda value: value.mode if isinstance(value, Image.Image) else "",
)
def test_every_mode_becomes_rgb(image: Image.Image, expected: list[int]) -> None:
    assert pixel(image) == expected


def test_signed_values_are_stretched() -> None:
    values = np.tile(np.linspace(-100_000, 100_000, 11, dtype=np.int32), (11, 1))
    row = decode(Image.fromarray(values), 11)[5, :, 0].tolist()
    assert (row[0], row[5], row[10]) == (0, 128, 255)  # 127.5 rounds to even


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encoded(Image.fromarray(np.full((10, 20), 257 * 50, np.uint16)), "PNG"), [50, 50, 50]),
        (encoded(Image.fromarray(np.full((10, 20), 257 * 50, np.uint16)), "TIFF"), [50, 50, 50]),
        (encoded(Image.fromarray(np.full((10, 20), 0.2, np.float32)), "TIFF"), [51, 51, 51]),
        (encoded(Image.new("CMYK", (20, 10), (0, 0, 0, 0)), "JPEG"), [255, 255, 255]),
        (encoded(Image.new("P", (20, 10), 3), "GIF", transparency=3), [255, 255, 255]),
        (encoded(Image.new("L", (20, 10), 7), "PNG", transparency=7), [255, 255, 255]),
        (encoded(Image.new("1", (20, 10), 0), "PNG"), [0, 0, 0]),
        (encoded(Image.new("RGBA", (20, 10), (9, 9, 9, 0)), "WEBP", lossless=True), [255, 255, 255]),
    ],
    ids=["png16", "tiff16", "tiff-float", "jpeg-cmyk", "gif-palette", "png-trns", "png1", "webp-alpha"],
)
def test_files_of_unusual_modes(data: bytes, expected: list[int]) -> None:
    assert pixel(data) == expected


def test_palette_with_transparency_per_entry() -> None:
    image = Image.new("P", (20, 10), 0)
    image.putpalette([0, 0, 0, 0, 0, 0])
    assert pixel(encoded(image, "PNG", transparency=bytes([51, 255]))) == [204, 204, 204]


def test_an_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "blue", "lime")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert pixel(data) == [255, 0, 0]


def test_an_image_of_the_right_size_is_left_alone() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    assert np.array_equal(decode(encoded(Image.fromarray(noise), "PNG"), 16), noise)


def test_resizing_averages_and_ignores_the_aspect_ratio() -> None:
    stripes = np.zeros((64, 256), np.uint8)
    stripes[:, ::2] = 255
    small = decode(Image.fromarray(stripes), 16)
    assert small.shape == (16, 16, 3)
    assert small.dtype == np.uint8
    assert np.abs(small[:, 1:-1].astype(int) - 127).max() <= 2


def test_a_large_jpeg_is_drafted_and_keeps_its_own_size() -> None:
    ramp = np.tile(np.linspace(0, 255, 1600).astype(np.uint8), (1200, 1))
    data = encoded(Image.fromarray(ramp), "JPEG", quality=95)
    small, size = decode_with_size(data, 32)
    assert size == (1600, 1200)
    exact = np.asarray(Image.fromarray(ramp).resize((32, 32), Image.Resampling.BILINEAR))
    assert np.abs(small[:, :, 0].astype(int) - exact).max() <= 2


def test_a_picture_given_by_the_caller_is_not_changed() -> None:
    data = encoded(Image.new("RGB", (1600, 1200), "red"), "JPEG")
    with Image.open(io.BytesIO(data)) as image:
        decode(image, 32)
        assert image.size == (1600, 1200)


# --- decode: orientation ---


def turned(orientation: int, format: str) -> bytes:
    """QUARTERS as a camera stores it that notes `orientation`."""
    to_stored = {
        1: QUARTERS,
        2: QUARTERS[:, ::-1],
        3: QUARTERS[::-1, ::-1],
        4: QUARTERS[::-1],
        5: QUARTERS.transpose(1, 0, 2),
        6: np.rot90(QUARTERS, 1),
        7: QUARTERS[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(QUARTERS, -1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(Image.fromarray(np.ascontiguousarray(to_stored[orientation])), format, exif=exif)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP", "JPEG"])
def test_orientation_is_applied_to_pixels_and_size(orientation: int, format: str, tmp_path: Path) -> None:
    path = tmp_path / f"photo.{format.lower()}"
    path.write_bytes(turned(orientation, format))
    square, size = decode_with_size(path, 16)
    assert size == image_size(path) == (48, 32)
    corners = square[[3, 3, 12, 12], [3, 12, 3, 12]].astype(int)
    assert np.abs(corners - [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]).max() < 12


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_does_not_cost_the_photo() -> None:
    data = encoded(Image.new("RGB", (20, 10), "red"), "PNG", exif=b"Exif\0\0MM\0\x2a\xff\xff\xff\xff")
    assert pixel(data) == [255, 0, 0]


# --- decode: what is refused ---


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_truncated_files_are_refused(format: str, share: float) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8))
    data = encoded(noise, format)
    with pytest.raises(BadImage):
        decode(data[: int(share * len(data))], 32)


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(BadImage):
        decode(data, 8)


def test_no_interpreter_is_started_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for what lies inside of another kind of file."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    drawing = encoded(Image.new("RGB", (9, 9)), "EPS")
    fields = [(3, 60, b"\1\0"), (3, 20, b"\0\11"), (3, 30, b"\0\11"), (3, 120, b"\5"), (8, 10, drawing), (9, 0, b"")]
    parts = (bytes([0x1C, record, number]) + struct.pack(">H", len(data)) + data for record, number, data in fields)
    for data in (drawing, b"".join(parts)):
        with pytest.raises(BadImage, match="not an image"):
            decode(data, 8)
    assert not (tmp_path / "started").exists()


def test_deep_photos_are_converted_a_few_rows_at_a_time() -> None:
    """As if it were done at once: 16 bits, and floats that are stretched from their least to their largest."""
    ramp = np.arange(600 * 4, dtype=np.uint16).reshape(600, 4) * 27
    expected = np.rint(ramp * (255 / 65535)).astype(np.uint8)
    assert (np.asarray(upright(Image.fromarray(ramp)))[..., 0] == expected).all()
    floats = np.linspace(-1, 3, 2400, dtype=np.float32).reshape(600, 4)
    floats[300, 0] = np.nan
    stretched = np.where(np.isnan(floats), 0.0, floats).astype(np.float64) + 1
    assert (np.asarray(upright(Image.fromarray(floats)))[..., 0] == np.rint(stretched * (255 / 4.0))).all()


def test_reasons_are_short() -> None:
    with pytest.raises(BadImage, match=r"^No such file or directory$"):
        decode(Path("/nowhere/photo.jpg"), 8)
    with pytest.raises(BadImage, match=r"^not an image$"):
        decode(b"hello", 8)
    data = encoded(Image.new("RGB", (64, 64)), "PNG")
    with pytest.raises(BadImage, match=r"^truncated$"):
        decode(data[:-40], 8)
    with pytest.raises(BadImage):
        image_size(Path("/nowhere/photo.jpg"))


def test_bombs_are_refused_where_pillow_only_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(Image.new("1", (40, 30)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1200)
    assert pixel(data) == [0, 0, 0]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1199)
    with pytest.warns(Image.DecompressionBombWarning), pytest.raises(BadImage, match="too large: 40 x 30 pixels"):
        decode(data, 8)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(BadImage, match="too large"):
        decode(data, 8)


# --- the cache ---


@pytest.fixture
def records(tmp_path: Path) -> list[Record]:
    """Photo i is grey i * 10; odd ones are of class b."""
    found = []
    for i in range(6):
        path = tmp_path / "photos" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (20 + i, 10), i * 10).save(path)
        found.append(Record(path, "ab"[i % 2]))
    return found


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The photos opened so far."""
    seen: list[Path] = []

    def counting(path: Path, size: int) -> tuple[np.ndarray, tuple[int, int]]:
        seen.append(path)
        return decode_with_size(path, size)

    monkeypatch.setattr("fdcnet.data.decode_all.decode_with_size", counting)
    return seen


def greys(cache: PixelCache) -> list[int]:
    return cache.pixels[:, 3, 3, 0].tolist()


@pytest.mark.parametrize("folder", [None, "cache"])
def test_pixels_sizes_and_records_in_order(records: list[Record], tmp_path: Path, folder: str | None) -> None:
    reports: list[tuple[int, int]] = []
    cache_dir = tmp_path / folder if folder else None
    cache = PixelCache.build(records, 8, cache_dir, CPU, workers=2, progress=lambda *counts: reports.append(counts))
    assert cache.pixels.shape == (6, 8, 8, 3)
    assert cache.pixels.dtype == torch.uint8
    assert greys(cache) == [0, 10, 20, 30, 40, 50]
    assert cache.sizes.tolist() == [[20 + i, 10] for i in range(6)]
    assert cache.records == tuple(records)
    assert len(cache) == 6
    assert cache.broken == []
    assert reports[-1] == (6, 6)
    assert cache.gather(torch.tensor([5, 0]))[:, 0, 0, 0].tolist() == [50, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="processes do not fork")
@pytest.mark.parametrize("encoded", [False, True])
def test_processes_decode_the_same_photos_as_threads(
    records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoded: bool
) -> None:
    records[2].path.write_bytes(b"not a photo")
    records = [*records, *[Record(record.path, "again") for record in records]]
    by_threads = PixelCache.build(records, 8, tmp_path / "threads", CPU, workers=3, encoded=encoded)
    monkeypatch.setattr("fdcnet.data.decode_all.MANY", 1)
    monkeypatch.setattr("fdcnet.data.decode_all.CHUNK", 5)
    monkeypatch.setattr("fdcnet.data.decode_all._by_threads", None)
    reports: list[tuple[int, int]] = []
    by_processes = PixelCache.build(
        records, 8, tmp_path / "processes", CPU, workers=3, encoded=encoded, progress=lambda *n: reports.append(n)
    )
    assert torch.equal(by_processes.pixels[:], by_threads.pixels[:])
    assert by_processes.sizes.tolist() == by_threads.sizes.tolist()
    assert by_processes.broken == by_threads.broken == [(records[2].path, "not an image")] * 2
    assert reports == [(5, 12), (10, 12), (12, 12)]


def test_a_second_build_opens_no_photo(records: list[Record], tmp_path: Path, decodes: list[Path]) -> None:
    PixelCache.build(records, 8, tmp_path / "cache", CPU)
    assert len(decodes) == 6
    again = PixelCache.build(records, 8, tmp_path / "cache", CPU)
    assert len(decodes) == 6
    assert greys(again) == [0, 10, 20, 30, 40, 50]
    assert again.sizes.tolist() == [[20 + i, 10] for i in range(6)]


def test_the_mapped_pixels_can_be_written_without_reaching_the_file(records: list[Record], tmp_path: Path) -> None:
    PixelCache.build(records, 8, tmp_path, CPU).pixels.fill_(99)
    assert greys(PixelCache.build(records, 8, tmp_path, CPU)) == [0, 10, 20, 30, 40, 50]


def test_a_changed_photo_another_size_or_another_list_are_decoded_anew(records: list[Record], tmp_path: Path) -> None:
    first = cache_key(records, 8)
    assert cache_key([Record(record.path, "other") for record in records], 8) == first
    assert cache_key(records, 9) != first
    assert cache_key(records[::-1], 8) != first
    PixelCache.build(records, 8, tmp_path / "cache", CPU)
    Image.new("L", (20, 10), 200).save(records[0].path)
    os.utime(records[0].path, ns=(1, 1))
    assert cache_key(records, 8) != first
    assert greys(PixelCache.build(records, 8, tmp_path / "cache", CPU))[0] == 200


@pytest.mark.parametrize("folder", [None, "cache"])
def test_broken_photos_are_left_out_and_named(records: list[Record], tmp_path: Path, folder: str | None) -> None:
    records[1].path.write_bytes(b"hello")
    records[4].path.unlink()
    cache_dir = tmp_path / folder if folder else None
    for _ in range(2):  # the second time from the sidecar
        cache = PixelCache.build(records, 8, cache_dir, CPU)
        assert greys(cache) == [0, 20, 30, 50]
        assert cache.records == (records[0], records[2], records[3], records[5])
        assert cache.sizes[:, 0].tolist() == [20, 22, 23, 25]
        assert cache.broken == [(records[1].path, "not an image"), (records[4].path, "No such file or directory")]


def test_a_photo_that_became_readable_is_seen(records: list[Record], tmp_path: Path) -> None:
    """Its time stamp need not tell: here the sidecar of a build that could not read it is put in place."""
    PixelCache.build(records, 8, tmp_path / "cache", CPU)
    stem = tmp_path / "cache" / cache_key(records, 8)
    sidecar = json.loads(stem.with_suffix(".json").read_text())
    sidecar |= {"shape": [5, 8, 8, 3], "sizes": sidecar["sizes"][1:], "broken": [[0, "Permission denied"]]}
    stem.with_suffix(".json").write_text(json.dumps(sidecar))
    pixels = stem.with_suffix(".pixels").read_bytes()
    stem.with_suffix(".pixels").write_bytes(pixels[: 5 * 8 * 8 * 3])
    assert greys(PixelCache.build(records, 8, tmp_path / "cache", CPU)) == [0, 10, 20, 30, 40, 50]


def test_a_class_without_a_readable_photo_is_an_error(records: list[Record]) -> None:
    for record in records[1::2]:
        record.path.write_bytes(b"hello")
    with pytest.raises(UserError, match=r"Class 'b' has no readable photo.*1\.png: not an image"):
        PixelCache.build(records, 8, None, CPU)


def test_no_readable_photo_at_all_is_an_error(records: list[Record], tmp_path: Path) -> None:
    for record in records:
        record.path.write_bytes(b"hello")
    for cache_dir in (None, tmp_path / "cache", tmp_path / "cache"):
        with pytest.raises(UserError, match="None of the 6 photos can be read"):
            PixelCache.build(records, 8, cache_dir, CPU)


def test_no_records_give_an_empty_cache(tmp_path: Path) -> None:
    cache = PixelCache.build([], 8, tmp_path, CPU)
    assert (len(cache), tuple(cache.pixels.shape), tuple(cache.sizes.shape)) == (0, (0, 8, 8, 3), (0, 2))


@pytest.mark.parametrize("damage", ["sidecar gone", "sidecar cut", "pixels gone", "pixels cut"])
def test_damage_is_built_anew(records: list[Record], tmp_path: Path, damage: str, decodes: list[Path]) -> None:
    PixelCache.build(records, 8, tmp_path / "cache", CPU)
    stem = tmp_path / "cache" / cache_key(records, 8)
    victim = stem.with_suffix(".json" if "sidecar" in damage else ".pixels")
    if "gone" in damage:
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:50])
    assert greys(PixelCache.build(records, 8, tmp_path / "cache", CPU)) == [0, 10, 20, 30, 40, 50]
    assert len(decodes) == 12


def test_an_interrupted_build_leaves_nothing_that_counts(records: list[Record], tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PixelCache.build(records, 8, tmp_path / "cache", CPU, progress=interrupt)
    assert list((tmp_path / "cache").iterdir()) == []
    assert greys(PixelCache.build(records, 8, tmp_path / "cache", CPU)) == [0, 10, 20, 30, 40, 50]


def test_the_remains_of_a_killed_build_are_removed(records: list[Record], tmp_path: Path) -> None:
    leftover = tmp_path / f".{'0' * 32}.tmp"
    leftover.write_bytes(b"half a photo")
    PixelCache.build(records[:2], 8, tmp_path, CPU)
    assert leftover.exists()  # may be in use
    os.utime(leftover, (0, 0))
    PixelCache.build(records, 8, tmp_path, CPU)
    assert not leftover.exists()


def test_concurrent_builds_agree(records: list[Record], tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        builds = [pool.submit(PixelCache.build, records, 8, tmp_path / "cache", CPU, 1) for _ in range(6)]
    assert [greys(build.result()) for build in builds] == [[0, 10, 20, 30, 40, 50]] * 6
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_full_disk_says_how_much_is_needed(
    records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = records * 1000
    needed = r"6000 photos need 72000000\.00 GB, or about 9000000\.00 GB as JPEG"
    with pytest.raises(UserError, match=needed + r", but FDCNET_CACHE_GB allows 100\.00 GB"):
        PixelCache.build(many, 2_000_000, tmp_path / "cache", CPU)
    monkeypatch.setenv("FDCNET_CACHE_GB", "1e12")
    with pytest.raises(UserError, match=r"disk is full: .* needs 72000000\.00 GB"):
        PixelCache.build(many, 2_000_000, tmp_path / "cache", CPU)


def test_a_folder_that_cannot_be_made_is_an_error(records: list[Record], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        PixelCache.build(records, 8, tmp_path / "file" / "cache", CPU)


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDCNET_CACHE", "/a/b")
    assert default_cache_dir() == Path("/a/b")
    monkeypatch.delenv("FDCNET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert default_cache_dir() == Path("/c/fdcnet")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/x")
    assert default_cache_dir() == Path("/home/x/.cache/fdcnet")


def test_real_photos(shared_data: Path, tmp_path: Path) -> None:
    paths = sorted((shared_data / "CUB_200_2011" / "images").rglob("*.webp"))[:20]
    cache = PixelCache.build([Record(path, path.parent.name) for path in paths], 256, tmp_path, CPU)
    assert cache.broken == []
    with Image.open(paths[7]) as image:
        assert np.array_equal(cache.pixels[7].numpy(), np.asarray(image.convert("RGB")))


def test_a_limit_that_is_no_number_is_refused(
    records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDCNET_CACHE_GB", "much")
    with pytest.raises(UserError, match="FDCNET_CACHE_GB cannot be 'much'"):
        PixelCache.build(records, 8, tmp_path / "cache", CPU)


def test_the_cache_keeps_within_its_limit(
    records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blocks() -> list[str]:
        return sorted(path.stem for path in (tmp_path / "cache").glob("*.pixels"))

    one_block = len(records) * 8 * 8 * 3
    monkeypatch.setenv("FDCNET_CACHE_GB", str(2.5 * one_block / 1e9))
    stems = []
    for size in (8, 8, 7):  # the second one is the first, used again
        PixelCache.build(records, size, tmp_path / "cache", CPU)
        stems.append(cache_key(records, size))
    for age, stem in enumerate((stems[0], stems[2])):
        os.utime(tmp_path / "cache" / f"{stem}.json", (age, age))
    PixelCache.build(records, 8, tmp_path / "cache", CPU)  # now the newest
    monkeypatch.setattr(cache_module, "_in_use", set())  # as in the next process
    PixelCache.build(records[:-1], 8, tmp_path / "cache", CPU)
    assert blocks() == sorted([stems[0], cache_key(records[:-1], 8)])
    assert len(PixelCache.build(records, 8, tmp_path / "cache", CPU)) == len(records)


def test_other_files_share_the_limit(records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDCNET_CACHE", str(tmp_path / "cache"))
    one_block = len(records) * 8 * 8 * 3
    monkeypatch.setenv("FDCNET_CACHE_GB", str(2.5 * one_block / 1e9))
    contents = {name: name.encode() * (one_block // 2) for name in "abc"}
    for age, name in enumerate("ab"):
        keep(name, contents[name])
        os.utime(next((tmp_path / "cache").glob(f"{name}.*")), (age, age))
    assert kept("a") == contents["a"]  # now the newest
    PixelCache.build(records, 8, tmp_path / "cache", CPU)
    keep("c", contents["c"])
    assert [kept(name) for name in "abc"] == [contents["a"], None, contents["c"]]
    keep("d", bytes(2 * one_block))  # does not fit beside the photos of this process
    assert kept("d") is None


@pytest.mark.parametrize("damage", [lambda stored: stored[:-1], lambda stored: stored[:-1] + b"?", lambda stored: b""])
def test_a_damaged_file_is_not_used(
    damage: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDCNET_CACHE", str(tmp_path))
    keep("name", b"content")
    assert kept("name") == b"content"
    [file] = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert kept("name") is None


def test_a_run_never_evicts_its_own_photos_and_never_exceeds_the_limit(
    records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decodes: list[Path]
) -> None:
    one_block = len(records) * 8 * 8 * 3
    monkeypatch.setenv("FDCNET_CACHE_GB", str(1.5 * one_block / 1e9))
    training = PixelCache.build(records, 8, tmp_path / "cache", CPU)
    test = PixelCache.build(records[1:], 8, tmp_path / "cache", CPU)  # stays in memory
    assert greys(test) == greys(training)[1:]
    stored = [path for path in (tmp_path / "cache").iterdir() if path.suffix == ".pixels"]
    assert [path.stem for path in stored] == [cache_key(records, 8)]
    decodes.clear()
    PixelCache.build(records, 8, tmp_path / "cache", CPU)  # the next run
    assert decodes == []
