"""Predictions for photos in every form, compared with the evaluator and with each other."""

import io
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from PIL import Image

from fdcnet import Localizer, Prediction, evaluate
from fdcnet.config import Config
from fdcnet.data.decode import upright
from fdcnet.data.photo import Photo
from fdcnet.data.records import Dataset
from fdcnet.errors import UserError
from fdcnet.inference.localizer import predict_protocol
from fdcnet.inference.prediction import find_boxes
from fdcnet.store.bundle import load_bundle
from fdcnet.training.run import train


@pytest.fixture(scope="module")
def localizer(taught: Path) -> Localizer:
    return Localizer.load(taught / "run" / "model", device="cpu")


@pytest.fixture(scope="module")
def photos(taught: Path) -> list[Path]:
    return sorted((taught / "photos" / "test").rglob("*.jpg"))


def same(first: Prediction, second: Prediction, tolerance: float = 1e-4) -> bool:
    return (
        first.class_name == second.class_name
        and np.allclose(first.heat, second.heat, atol=tolerance)
        and np.allclose(first.boxes_xyxy, second.boxes_xyxy, atol=1)
    )


def test_a_prediction_has_class_box_map_and_the_best_classes(localizer: Localizer, photos: list[Path]) -> None:
    found = localizer.predict(photos[0])
    assert found.source == str(photos[0])
    assert found.image_size == (40, 40)
    assert found.class_name == found.top[0].class_name
    assert found.score == found.top[0].score == max(entry.score for entry in found.top)
    assert [entry.task for entry in found.top] == [localizer.tasks[localizer.classes.index(e[0])] for e in found.top]
    assert {entry.task for entry in found.top} == {1, 2}
    assert sum(entry.score for entry in found.top) == pytest.approx(1)
    assert found.heat.shape == (8, 8)
    assert found.heat.min() == 0 and found.heat.max() == 1
    assert found.box_xyxy is not None
    x0, y0, x1, y1 = found.box_xyxy
    assert 0 <= x0 < x1 <= 40 and 0 <= y0 < y1 <= 40
    assert "heat" not in repr(found)


def test_a_localizer_shows_what_it_knows(localizer: Localizer) -> None:
    first = ", ".join(localizer.classes[:3])
    assert repr(localizer) == f"<Localizer: 4 classes ({first}, ...), tiny, cpu>"


def test_boxes_and_classes_are_those_of_the_evaluation(taught: Path, localizer: Localizer, photos: list[Path]) -> None:
    changes = {"frame": "image", "crops": 1, "map": "class", "map_views": 1}
    _, table = evaluate(taught / "run" / "model", str(taught / "photos"), protocol=changes, device="cpu")
    row_of = {Path(path).parts[-2:]: row for row, path in enumerate(table.path)}
    close = 0
    for photo in photos:
        row = row_of[photo.parts[-2:]]
        label = int(table.label[row])  # the evaluation boxes the true class
        found = localizer.predict(photo, class_name=localizer.classes[label])
        assert localizer.predict(photo).class_name == localizer.classes[int(table.top5[row, 0])]
        assert found.score == pytest.approx(float(table.p_true[row]), abs=0.02)
        assert found.box_xyxy is not None
        close += np.abs(np.array(found.box_xyxy) * 32 / 40 - table.box[row]).max() <= 2
    assert close >= len(photos) - 1  # the evaluation squeezes twice, so that a speck may fall on either side


def as_tensor(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)


FORMS = {
    "text": str,
    "path": Path,
    "bytes": Path.read_bytes,
    "pillow": Image.open,
    "array": lambda path: np.array(Image.open(path).convert("RGB")),
    "floats": lambda path: np.array(Image.open(path).convert("RGB")) / 255,
    "alpha": lambda path: np.array(Image.open(path).convert("RGBA")),
    "tensor": as_tensor,
    "float tensor": lambda path: as_tensor(path).float() / 255,
}


@pytest.mark.parametrize("form", FORMS)
def test_photos_come_in_many_forms(form: str, localizer: Localizer, photos: list[Path]) -> None:
    found = localizer.predict(FORMS[form](photos[1]))
    assert same(found, localizer.predict(photos[1]))
    assert found.draw().size == (400, 400)


def test_grey_arrays_are_photos_too(localizer: Localizer) -> None:
    grey = np.arange(40 * 30, dtype=np.uint8).reshape(40, 30)
    found = localizer.predict(grey)
    assert found.image_size == (30, 40)
    assert same(found, localizer.predict(torch.from_numpy(grey)[None]))


@pytest.mark.parametrize(
    "wrong", [3, None, np.zeros((2, 2, 2)), np.zeros(4), np.full((4, 4, 3), 300), np.full((4, 4), -0.5), {"a": 1}]
)
def test_other_types_are_refused(wrong: Any, localizer: Localizer) -> None:
    with pytest.raises(UserError):
        localizer.predict(wrong)


def test_several_photos_give_a_list(localizer: Localizer, photos: list[Path]) -> None:
    alone = [localizer.predict(photo) for photo in photos]
    together = localizer.predict(photos)
    assert all(same(*pair) for pair in zip(alone, together, strict=True))
    stacked = np.stack([np.array(Image.open(photo).convert("RGB")) for photo in photos])
    for batch in (stacked, torch.from_numpy(stacked).permute(0, 3, 1, 2)):
        assert all(same(*pair) for pair in zip(alone, localizer.predict(batch), strict=True))
    assert localizer.predict([]) == []


def test_a_named_class_is_boxed(localizer: Localizer, photos: list[Path]) -> None:
    best = localizer.predict(photos[0])
    other = best.top[-1].class_name
    found = localizer.predict(photos[0], class_name=other)
    assert found.class_name == other
    assert found.score == pytest.approx(best.top[-1].score)
    assert found.top == best.top
    with pytest.raises(UserError, match=r"does not know the class 'rnged disc'\.\nDid you mean 'ringed disc'"):
        localizer.predict(photos[0], class_name="rnged disc")


def test_the_map_of_one_class_is_that_of_all(taught: Path, localizer: Localizer, photos: list[Path]) -> None:
    """Compensation included."""
    state = load_bundle(taught / "run" / "model")
    assert state.network.drift is not None
    torch.nn.init.normal_(localizer.state.network.drift.loc_drift[-1].weight)  # type: ignore[union-attr, index]
    try:
        for name in localizer.classes:
            found = localizer.predict(photos[0], class_name=name)
            pixels = torch.from_numpy(np.array(Image.open(photos[0]).resize((32, 32), Image.Resampling.BILINEAR)))[None]
            lineage = state.network.lineage
            images = ((pixels.float() - torch.tensor(lineage.mean)) / torch.tensor(lineage.std)).permute(0, 3, 1, 2)
            mask = localizer.method.outputs(localizer.state, images).masks[0, localizer.classes.index(name)]
            wanted = ((mask - mask.min()) / (mask.max() - mask.min())).detach().numpy()
            assert np.abs(wanted - found.heat).max() < 1e-3
    finally:
        localizer.state.network.drift.loc_drift.load_state_dict(state.network.drift.loc_drift.state_dict())  # type: ignore[union-attr]


def test_a_head_that_decides_nothing_is_not_computed(
    small_dataset: Dataset, small_config: Callable[..., Config], tmp_path: Path, photos: list[Path]
) -> None:
    """Models of light lessons classify by the tail's features. The head would take a fifth of the time."""
    train(small_config("slda"), small_dataset, tmp_path / "run")
    localizer = Localizer.load(tmp_path / "run" / "model", device="cpu")
    images = localizer.as_input([Photo(photo).decode(localizer.side)[0] for photo in photos])
    with torch.inference_mode():
        outputs = localizer.method.outputs(localizer.state, images)
        scores = localizer.state.class_scores(outputs).softmax(1)
    computed = []
    localizer.state.network.classifier.hidden.register_forward_hook(lambda *_: computed.append(1))
    for photo, own in zip(photos, scores.tolist(), strict=True):
        assert localizer.predict(photo).score == pytest.approx(max(own), abs=1e-4)
    assert not computed


def test_a_low_score_is_none_of_these(localizer: Localizer, photos: list[Path]) -> None:
    best = localizer.predict(photos[0])
    found = localizer.predict(photos[0], min_score=best.score + 1e-3)
    assert (found.class_name, found.task, found.box_xyxy, found.boxes_xyxy) == (None, None, None, ())
    assert found.score == pytest.approx(best.score)
    assert found.top == best.top
    assert found.draw().size == (400, 400)
    assert found.at(0.5).boxes_xyxy == ()
    assert found.to_dict()["class"] is None


def test_regions() -> None:
    heat = np.zeros((8, 8), np.float32)
    heat[0, 0] = 1
    heat[4:7, 4:8] = 1
    [largest] = find_boxes(heat, 0.5, 8, (80, 160))
    assert largest == (40, 80, 80, 140)
    assert find_boxes(heat, 0.5, 8, (80, 160), all_regions=True) == (largest, (0, 0, 10, 20))
    assert find_boxes(np.zeros((8, 8), np.float32), 0.5, 8, (80, 160)) == ((0, 0, 80, 160),)


def test_another_threshold_does_not_run_the_network_again(localizer: Localizer, photos: list[Path]) -> None:
    found = localizer.predict(photos[0], threshold=0.7, all_regions=True)
    assert found.at(0.7, all_regions=True).boxes_xyxy == found.boxes_xyxy
    assert localizer.predict(photos[0]).at(0.7).box_xyxy == found.box_xyxy
    assert localizer.predict(photos[0]).threshold == predict_protocol(localizer.state.config.protocols).threshold


@pytest.mark.parametrize("options", [{"threshold": 2}, {"min_score": -1}, {"top_k": 0}])
def test_wrong_options_are_refused_at_once(options: dict[str, Any], localizer: Localizer) -> None:
    with pytest.raises(UserError):
        localizer.predict_many(["nothing is opened yet"], **options)


def test_top_k(localizer: Localizer, photos: list[Path]) -> None:
    assert len(localizer.predict(photos[0], top_k=2).top) == 2
    assert len(localizer.predict(photos[0], top_k=99).top) == 4


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_refer_to_the_photo_as_displayed(orientation: int, localizer: Localizer, photos: list[Path]) -> None:
    """A camera stores the photo turned, and says so."""
    shown = Image.open(photos[0]).convert("RGB").resize((60, 40))
    stored = {
        1: lambda image: image,
        2: lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: lambda image: image.transpose(Image.Transpose.ROTATE_180),
        4: lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: lambda image: image.transpose(Image.Transpose.TRANSPOSE),
        6: lambda image: image.transpose(Image.Transpose.ROTATE_90),
        7: lambda image: image.transpose(Image.Transpose.TRANSVERSE),
        8: lambda image: image.transpose(Image.Transpose.ROTATE_270),
    }[orientation](shown)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    stored.save(file, "PNG", exif=exif)
    found, wanted = localizer.predict(file.getvalue()), localizer.predict(shown)
    assert found.image_size == (60, 40)
    assert same(found, wanted)
    assert np.array_equal(np.asarray(upright(file.getvalue())), np.asarray(shown))
    assert upright(file.getvalue(), max_side=30).size == (30, 20)


def test_a_prediction_draws_saves_and_becomes_a_dict(localizer: Localizer, photos: list[Path], tmp_path: Path) -> None:
    found = localizer.predict(photos[0])
    found.save(tmp_path / "out.jpg")
    assert Image.open(tmp_path / "out.jpg").size == (400, 400)
    facts = found.to_dict(heat=True)
    assert facts["class"] == found.class_name
    assert facts["box"] == facts["boxes"][0] == [round(value, 2) for value in found.box_xyxy or ()]
    assert np.allclose(facts["heat"], found.heat, atol=1e-4)
    assert "heat" not in found.to_dict()
    assert found.heat_map().shape == (40, 40)
    assert found.heat_map((12, 7)).shape == (7, 12)
    large = localizer.predict(Image.open(photos[0]).resize((2000, 1000)))
    assert large.draw().size == (1600, 800)
    assert large.draw(max_side=None).size == (2000, 1000)
    shown = Image.open(io.BytesIO(large._repr_png_()))  # what a notebook displays
    assert (shown.format, shown.size) == ("PNG", (800, 400))


def test_a_long_name_fits_on_a_photo(localizer: Localizer, photos: list[Path]) -> None:
    found = localizer.predict(photos[0])
    object.__setattr__(found, "class_name", "né " * 100)
    found.draw()


def test_a_stream_keeps_the_order_and_skips_damaged_photos(localizer: Localizer, photos: list[Path]) -> None:
    told: list[tuple[str, str]] = []
    sources = [photos[0], b"no photo", photos[1], Path("missing.jpg"), photos[2], photos[3].read_bytes()[:200]]
    found = list(localizer.predict_many(sources, batch_size=2, on_error=lambda *what: told.append(what)))
    assert [prediction.source for prediction in found] == [str(photo) for photo in photos[:3]]
    assert told[0] == ("photo", "not an image")
    assert told[1] == ("missing.jpg", "No such file or directory")
    assert told[2][0] == "photo"
    with pytest.raises(UserError, match="cannot be read: not an image"):
        list(localizer.predict_many(sources))
    with pytest.raises(UserError, match=r"missing\.jpg cannot be read"):
        localizer.predict("missing.jpg")


def test_a_stream_takes_no_more_than_it_needs(localizer: Localizer, photos: list[Path]) -> None:
    """An endless camera must not fill the memory, and a stream that is left must leave no thread behind."""
    taken = 0

    def camera() -> Iterator[Path]:
        nonlocal taken
        while True:
            taken += 1
            yield photos[taken % len(photos)]

    before = threading.active_count()
    stream = localizer.predict_many(camera(), batch_size=2)
    for _ in range(10):
        next(stream)
    assert taken < 10 + 2 * 2 + 8
    stream.close()  # type: ignore[attr-defined]
    assert threading.active_count() <= before


def test_loading_does_not_read_the_exemplars(taught: Path, tmp_path: Path) -> None:
    shutil.copytree(taught / "run" / "model", tmp_path / "model")
    shutil.rmtree(tmp_path / "model" / "memory")
    localizer = Localizer.load(str(tmp_path / "model"), device="cpu")
    assert len(localizer.state.memory) == 0
    assert localizer.state.memory.budget == 9
    with pytest.raises(UserError, match="damaged"):
        load_bundle(tmp_path / "model")


def test_a_drawing_that_fails_leaves_the_old_file(
    localizer: Localizer, photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(image: Image.Image, file: BinaryIO, *words: Any, **options: Any) -> None:
        file.write(b"half")
        raise OSError("the disk is full")

    found = localizer.predict(photos[0])
    (tmp_path / "out.jpg").write_bytes(b"old")
    with pytest.raises(UserError, match="Unsupported image extension"):
        found.save(tmp_path / "out")
    monkeypatch.setattr(Image.Image, "save", torn)
    with pytest.raises(OSError, match="full"):
        found.save(tmp_path / "out.jpg")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out.jpg", b"old")]
