"""A stopped lesson continues where it was, exactly, and leaves nothing behind."""

import signal
from pathlib import Path

import pytest
import torch

from fdcnet.data.records import Dataset
from fdcnet.data.synthetic import make_synthetic
from fdcnet.errors import UserError
from fdcnet.runtime.listener import Epoch, Listener
from fdcnet.store.bundle import has_bundle, load_bundle
from fdcnet.teaching.learn import Cancelled, learn
from fdcnet.teaching.stopped import stopped_at

SMALL = ("data.size=40", "data.crop=32", "model.head_width=16", "train.batch_size=4")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root = tmp_path_factory.mktemp("photos")
    return make_synthetic(root, num_classes=3, train_per_class=6, test_per_class=1, size=40)


class StopInEpoch(Listener):
    """Sends a signal to this process in the second step of the second epoch."""

    def __init__(self, number: signal.Signals = signal.SIGINT) -> None:
        self.number, self.epochs, self.steps = number, 0, 0

    def step(self, num_images: int) -> None:
        self.steps += self.epochs == 1
        if (self.epochs, self.steps) == (1, 2):
            signal.raise_signal(self.number)

    def epoch_ended(self, epoch: Epoch) -> None:
        self.epochs = epoch.number


class Notes(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.epochs = 0

    def note(self, text: str) -> None:
        self.notes.append(text)

    def epoch_ended(self, epoch: Epoch) -> None:
        self.epochs = epoch.number


def teach(model: Path, photos: Dataset, listener: Listener, light: bool = True, **options: object) -> None:
    new = not has_bundle(model)
    settings = {"backbone": "tiny", "overrides": SMALL} if new else {}
    learn(model, photos, full=not light, epochs=3, device="cpu", cache=False, listener=listener, **settings, **options)  # type: ignore[arg-type]


def same_weights(first: Path, second: Path) -> bool:
    one, two = (load_bundle(path).network.state_dict() for path in (first, second))
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(("light", "number"), [(True, signal.SIGINT), (False, signal.SIGTERM)])
def test_a_stopped_lesson_continues_exactly(
    light: bool, number: signal.Signals, photos: Dataset, tmp_path: Path
) -> None:
    teach(tmp_path / "whole", photos, Notes(), light)
    model, notes = tmp_path / "model", Notes()
    with pytest.raises(KeyboardInterrupt):
        teach(model, photos, StopInEpoch(number), light)
    assert not has_bundle(model)
    assert str(stopped_at(model)) == "task 1, phase main, epoch 2, after step 2"
    teach(model, photos, notes, light)
    assert "Resuming from task 1, phase main, epoch 2, after step 2." in notes.notes
    assert same_weights(model, tmp_path / "whole")
    assert sorted(path.name for path in model.iterdir()) == ["current", "versions"]


def test_another_lesson_does_not_continue_it(photos: Dataset, tmp_path: Path) -> None:
    model, notes = tmp_path / "model", Notes()
    with pytest.raises(KeyboardInterrupt):
        teach(model, photos, StopInEpoch())
    teach(model, photos.first(2), notes)
    assert not any(note.startswith("Resuming") for note in notes.notes)
    assert sorted(path.name for path in model.iterdir()) == ["current", "versions"]


def test_a_damaged_checkpoint_is_no_dead_end(photos: Dataset, tmp_path: Path) -> None:
    teach(tmp_path / "whole", photos, Notes())
    model, notes = tmp_path / "model", Notes()
    with pytest.raises(KeyboardInterrupt):
        teach(model, photos, StopInEpoch())
    [file] = model.glob("stopped/*/checkpoint.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    teach(model, photos, notes)
    assert any("is damaged" in note and note.endswith("The lesson starts over.") for note in notes.notes)
    assert same_weights(model, tmp_path / "whole")


def test_a_checkpoint_behind_a_link_is_refused(photos: Dataset, tmp_path: Path) -> None:
    model, outside = tmp_path / "model", tmp_path / "outside"
    with pytest.raises(KeyboardInterrupt):
        teach(model, photos, StopInEpoch())
    [folder] = (model / "stopped").iterdir()
    folder.rename(outside)
    folder.symlink_to(outside)
    before = (outside / "checkpoint.safetensors").read_bytes()
    with pytest.raises(UserError, match="is a link"):
        teach(model, photos, Notes())
    assert (outside / "checkpoint.safetensors").read_bytes() == before


def test_a_cancelled_lesson_leaves_nothing(photos: Dataset, tmp_path: Path) -> None:
    listener = Notes()
    with pytest.raises(Cancelled):  # after the last epoch, which ends with a checkpoint
        teach(tmp_path / "model", photos, listener, cancel=lambda: listener.epochs == 3)
    assert not (tmp_path / "model").exists()


def test_a_lesson_goes_on_without_checkpoints_if_they_cannot_be_written(photos: Dataset, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "stopped").touch()  # a file, where the folder of checkpoints would be
    notes = Notes()
    teach(tmp_path / "model", photos, notes)
    assert any(note.startswith("No checkpoint was written") for note in notes.notes)
    assert has_bundle(tmp_path / "model")
