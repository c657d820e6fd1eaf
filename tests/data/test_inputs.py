"""What the words of the command stand for."""

import io
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from fdcnet.data import inputs
from fdcnet.data.decode import BadImage
from fdcnet.data.inputs import find_photos
from fdcnet.data.photo import Photo
from fdcnet.errors import UserError

NO_INPUT = io.BytesIO()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("one.jpg", "two/a.jpg", "two/b.png", "two/deep/a.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 10), "red").save(tmp_path / name)
    (tmp_path / "two" / "notes.txt").write_text("no photo")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_video(path: Path, num_frames: int = 50, size: tuple[int, int] = (64, 48)) -> Path:
    """Frames that grow lighter, 25 a second."""
    noise = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for number in range(num_frames):
            pixels = noise.integers(0, 9, (size[1], size[0], 3), np.uint8) + np.uint8(5 * number % 240)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        container.mux(stream.encode())
    return path


def names(*words: str, step: int | None = None) -> list[str]:
    return [photo.name for photo in find_photos(words, NO_INPUT, step)]


def test_a_folder_is_everything_below_it(folder: Path) -> None:
    assert names("two") == ["a.jpg", "b.png", "deep/a.jpg"]
    assert names(str(folder / "two")) == ["a.jpg", "b.png", "deep/a.jpg"]


def test_a_file_keeps_its_relative_path(folder: Path) -> None:
    assert names("one.jpg", "two/a.jpg", str(folder / "two" / "b.png")) == ["one.jpg", "two/a.jpg", "b.png"]


def test_a_pattern_keeps_the_names_from_its_first_star_on(folder: Path) -> None:
    assert names("two/**/*.jpg") == ["a.jpg", "deep/a.jpg"]
    assert names(f"{folder}/t*/?.png") == ["two/b.png"]


def test_no_two_photos_share_a_name(folder: Path) -> None:
    assert names("two", "two/deep", "two") == [
        *("a.jpg", "b.png", "deep/a.jpg"),
        "a-2.jpg",
        *("a-3.jpg", "b-2.png", "deep/a-2.jpg"),
    ]


def test_a_numbered_name_may_be_taken_already(folder: Path) -> None:
    for name in ("a.jpg", "a-2.jpg", "other/a.jpg", "third/a.jpg"):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(folder / name)
    words = [str(folder / name) for name in ("a.jpg", "a-2.jpg", "other/a.jpg", "third/a.jpg")]
    assert names(*words) == ["a.jpg", "a-2.jpg", "a-3.jpg", "a-4.jpg"]


@pytest.mark.parametrize("word", ["missing.jpg", "empty", "no/*.jpg", "two/*.gif"])
def test_what_is_not_there_is_refused_before_the_first_photo(word: str, folder: Path) -> None:
    with pytest.raises(UserError):
        find_photos(["one.jpg", word], NO_INPUT)


def test_a_photo_comes_from_standard_input(folder: Path) -> None:
    [photo] = find_photos(["-"], io.BytesIO((folder / "one.jpg").read_bytes()))
    assert photo.decode(8)[1] == (20, 10)
    with pytest.raises(UserError, match="Standard input is empty"):
        list(find_photos(["-"], NO_INPUT))


def test_standard_input_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_STDIN", 10)
    [photo] = find_photos(["-"], io.BytesIO(b"x" * 100))
    with pytest.raises(BadImage, match="larger than"):
        photo.decode(8)


def test_a_video_gives_a_frame_a_second(folder: Path) -> None:
    make_video(folder / "clip.mp4")
    frames = list(find_photos(["clip.mp4"], NO_INPUT))
    assert [photo.name for photo in frames] == ["clip.mp4/frame-000000.jpg", "clip.mp4/frame-000025.jpg"]
    assert [photo.seconds for photo in frames] == [0, 1]
    pixels, size = frames[1].decode(8)
    assert size == (64, 48)
    assert abs(float(pixels.mean()) - 125) < 8
    assert len(names("clip.mp4", step=10)) == 5


def test_large_frames_wait_in_a_smaller_size(folder: Path) -> None:
    make_video(folder / "large.mp4", num_frames=1, size=(2000, 1000))
    [photo] = find_photos(["large.mp4"], NO_INPUT)
    assert isinstance(photo.source, Image.Image)
    assert photo.source.size == (1600, 800)
    assert photo.decode(8)[1] == (2000, 1000)


def test_a_damaged_video_ends_with_a_reason(folder: Path) -> None:
    content = make_video(folder / "clip.avi").read_bytes()
    (folder / "cut.avi").write_bytes(content[: len(content) * 8 // 10])
    (folder / "not.mp4").write_text("no video")
    (folder / "empty.mp4").write_bytes(b"")
    found = list(find_photos(["cut.avi", "not.mp4", "empty.mp4", "one.jpg"], NO_INPUT))
    assert found[0].problem is None  # what is there of a cut video is seen
    assert [photo.name for photo in found if photo.problem] == ["not.mp4", "empty.mp4"]
    assert found[-1] == Photo(Path("one.jpg"), "one.jpg")


def test_sound_is_no_video(folder: Path) -> None:
    with av.open("sound.mp4", "w") as container:
        stream = container.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate = 44100
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    [photo] = find_photos(["sound.mp4"], NO_INPUT)
    assert photo.problem == "it has no video stream"


def test_a_missing_package_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "clip.mp4").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match=r"Videos need the package av.*\n.*fdcnet\[video\]"):
        find_photos(["clip.mp4"], NO_INPUT)


def test_a_step_is_a_whole_number_from_one(folder: Path) -> None:
    with pytest.raises(UserError, match="frame step cannot be 0"):
        find_photos(["one.jpg"], NO_INPUT, 0)
