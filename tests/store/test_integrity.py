"""Checksums, links and limits: a model may be damaged, or come from somebody who means harm."""

import json
import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fdcnet.cli import app
from fdcnet.config import Config
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Record
from fdcnet.errors import UserError
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.models.network import new_network
from fdcnet.store.bundle import load_bundle, save_bundle
from fdcnet.store.description import problems, seal
from fdcnet.store.layout import kept_numbers
from fdcnet.store.verify import verify
from fdcnet.store.versions import add_version, rollback, versions, writing

Make = Callable[..., State]


@pytest.fixture
def make(small_config: Callable[..., Config]) -> Make:
    def state(*classes: str) -> State:
        config = small_config("baseline")
        network = new_network(config.model, 7)
        network.grow(len(classes))
        memory = ExemplarMemory(9)
        noise = torch.Generator().manual_seed(0)
        photos = torch.randint(0, 256, (3, 40, 40, 3), dtype=torch.uint8, generator=noise)
        memory.add(0, photos[:2], ["a.jpg", "b.jpg"])
        held_out = PixelCache((Record(Path("c.jpg"), classes[0]),), torch.tensor([[40, 40]]), photos[2:])
        return State(config, network.eval(), memory, list(classes), [len(classes)], held_out=held_out,
                     photo_history={"0123": True})  # fmt: skip

    return state


def add(state: State, path: Path, keep: int = 3) -> None:
    with writing(path):
        add_version(state, path, {"seconds": 1.5}, keep)


def description(bundle: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bundle / "fdcnet.json").read_text())
    return found


def without_checksums(bundle: Path) -> None:
    """As fdcnet wrote bundles before it had checksums."""
    old = {key: value for key, value in description(bundle).items() if key not in ("files", "digest")}
    (bundle / "fdcnet.json").write_text(json.dumps(old | {"format": 1}))


# --- damage ---


def test_a_flipped_bit_in_any_file_is_found(make: Make, tmp_path: Path) -> None:
    add(make("a", "b"), tmp_path / "model")
    bundle = tmp_path / "model" / "versions" / "1"
    files = sorted(path for path in bundle.rglob("*") if path.is_file())
    assert len(files) == 9
    generator = random.Random(0)
    for file in files:
        content = file.read_bytes()
        for _ in range(6):
            place = generator.randrange(len(content))
            flipped = content[place] ^ (1 << generator.randrange(8))
            file.write_bytes(content[:place] + bytes([flipped]) + content[place + 1 :])
            assert problems(bundle), (file, place)
            with pytest.raises(UserError):
                load_bundle(bundle), versions(tmp_path / "model")
        file.write_bytes(content)
    assert problems(bundle) == []


def test_the_last_intact_version_is_offered(make: Make, tmp_path: Path) -> None:
    model = tmp_path / "model"
    for _ in range(3):
        add(make("a", "b"), model)
    for number in ("2", "3"):
        (model / "versions" / number / "memory" / "given.json").write_text("{}")
    with pytest.raises(UserError, match="does not match its checksum") as error:
        load_bundle(model)
    assert error.value.remedy == f"Version 1 is intact: fdcnet rollback {model} --to 1"
    with pytest.raises(UserError, match="does not match its checksum") as error:
        rollback(model, 2)
    assert "fdcnet verify" in error.value.remedy
    assert [bool(version.problems) for version in verify(model)] == [False, True, True]
    shown = CliRunner().invoke(app, ["verify", str(model)])
    assert shown.exit_code == 1
    assert "version 1: intact, 9 files" in shown.output
    assert "version 3 (current): damaged" in shown.output and f"rollback {model} --to 1" in shown.output
    rollback(model, 1)
    assert load_bundle(model).classes == ["a", "b"]


def test_a_bundle_without_checksums_loads_with_a_notice(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tmp_path / "model"
    save_bundle(make("a", "b"), model)
    without_checksums(model)
    with caplog.at_level(logging.WARNING):
        state = load_bundle(model)
        load_bundle(model)
    assert [record.getMessage() for record in caplog.records] == [
        f"{model} has no checksums: an older fdcnet wrote it. The next lesson adds them."
    ]
    assert len(state.memory) == 2 and state.held_out and state.photo_history == {"0123": True}
    assert CliRunner().invoke(app, ["verify", str(model)]).output.endswith("readable, without checksums\n")
    add(make("a", "b", "c"), model)
    assert [version.has_checksums for version in verify(model)] == [False, True]
    assert load_bundle(versions(model)[0].path).classes == ["a", "b"]


def test_checksums_cannot_be_left_out(make: Make, tmp_path: Path) -> None:
    save_bundle(make("a", "b"), tmp_path / "model")
    found = description(tmp_path / "model")
    for change in ({"format": 1}, {"files": {}}, {"digest": ""}, {"format": 0}):
        (tmp_path / "model" / "fdcnet.json").write_text(json.dumps(found | change))
        with pytest.raises(UserError, match="is damaged"):
            load_bundle(tmp_path / "model")


def test_what_a_model_lacks_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no model"):
        verify(tmp_path / "nothing")


def test_memory_that_ran_out_is_not_called_damage(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_bundle(make("a", "b"), tmp_path / "model")

    def no_thread(self: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", no_thread)
    with pytest.raises(UserError, match="Out of memory or threads while reading"):
        load_bundle(tmp_path / "model")


def test_a_version_that_was_never_used_is_removed(make: Make, tmp_path: Path) -> None:
    """A kill after the version was written and before `current` named it."""
    model = tmp_path / "model"
    add(make("a", "b"), model)
    add(make("a", "b", "c"), model)
    (model / "current").write_text("1\n")
    (model / "unfinished").write_text("2")
    with writing(model):
        pass
    assert kept_numbers(model) == [1]
    assert sorted(path.name for path in model.iterdir()) == ["current", "versions"]


def test_a_pipe_instead_of_a_file_does_not_block(make: Make, tmp_path: Path) -> None:
    model = tmp_path / "model"
    add(make("a", "b"), model)
    os.mkfifo(model / "unfinished")
    with writing(model):
        pass
    assert kept_numbers(model) == [1]


# --- links ---


@pytest.mark.parametrize("name", ["lock", "versions", "current", "unfinished", "stopped"])
def test_links_of_a_model_are_not_followed(name: str, make: Make, tmp_path: Path) -> None:
    model, photos = tmp_path / "model", tmp_path / "photos"
    save_bundle(make("a", "b"), model)
    (photos / "2019").mkdir(parents=True)
    (photos / "2019" / "a.jpg").write_text("precious")
    (model / name).symlink_to(photos if name == "versions" else photos / "2019" / "a.jpg")
    for write in (lambda: add(make("a", "b", "c"), model), lambda: rollback(model)):
        with pytest.raises(UserError, match=f"{name} is a link"):
            write()
    assert (photos / "2019" / "a.jpg").read_text() == "precious"


@pytest.mark.parametrize("name", ["memory", "memory/images", "held_out", "held_out/images", "fdcnet.json"])
@pytest.mark.parametrize("old", [True, False])
def test_links_inside_a_bundle_are_refused(name: str, old: bool, make: Make, tmp_path: Path) -> None:
    save_bundle(make("a", "b"), tmp_path / "model")
    if old:
        without_checksums(tmp_path / "model")
    (tmp_path / "model" / name).rename(tmp_path / "elsewhere")
    (tmp_path / "model" / name).symlink_to(tmp_path / "elsewhere")
    for read in (load_bundle, lambda path: add(make("a", "b", "c"), path)):
        with pytest.raises(UserError, match="is a link"):
            read(tmp_path / "model")


@pytest.mark.parametrize("name", ["weights.safetensors", "memory/manifest.jsonl", "memory/images/000000.png"])
@pytest.mark.parametrize("old", [True, False])
def test_files_that_are_links_are_refused(name: str, old: bool, make: Make, tmp_path: Path) -> None:
    save_bundle(make("a", "b"), tmp_path / "model")
    if old:
        without_checksums(tmp_path / "model")
    (tmp_path / "model" / name).rename(tmp_path / "elsewhere")
    (tmp_path / "model" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link"):
        load_bundle(tmp_path / "model")


@pytest.mark.parametrize("old", [True, False])
def test_only_the_files_of_a_model_are_copied_and_removed(old: bool, make: Make, tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_bundle(make("a", "b"), model)
    if old:
        without_checksums(model)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("key")
    (model / "memory" / "extra").symlink_to(tmp_path / "secret")
    (model / "memory" / "images" / "extra").symlink_to(tmp_path / "secret" / "key")
    (model / "memory" / "notes.txt").write_text("mine")
    (model / "versions" / "2019").mkdir(parents=True)
    (model / "versions" / "2019" / "a.jpg").write_text("photo")
    (model / "versions" / "²").mkdir()
    (model / "versions" / "7.new").mkdir()
    (model / "versions" / "7.new" / "a.jpg").write_text("photo")
    add(make("a", "b", "c"), model)
    copied = {path.name for path in (model / "versions" / "1").rglob("*")}
    assert not copied & {"extra", "key", "notes.txt"}
    assert (tmp_path / "secret" / "key").read_text() == "key"
    assert (model / "versions" / "²").exists()
    assert (model / "versions" / "2019" / "a.jpg").exists() and (model / "versions" / "7.new" / "a.jpg").exists()
    left = sorted(path.relative_to(model).as_posix() for path in (model / "memory").rglob("*"))
    assert left == ["memory/extra", "memory/images", "memory/images/extra", "memory/notes.txt"]
    assert not (model / "weights.safetensors").exists() and not (model / "held_out").exists()


def test_a_name_that_leads_out_of_a_model_is_refused(make: Make, tmp_path: Path) -> None:
    save_bundle(make("a", "b"), tmp_path / "model")
    found = description(tmp_path / "model")
    for name in ("../secret", "/etc/passwd", "memory/images/../../../secret", "memory\\..\\x", "notes.txt"):
        forged = found | {"files": found["files"] | {name: "0"}}
        seal_as(tmp_path / "model", forged)
        with pytest.raises(UserError, match="not part of a model"):
            load_bundle(tmp_path / "model")


def seal_as(bundle: Path, forged: dict[str, Any]) -> None:
    from fdcnet.store.description import _digest

    content = {key: value for key, value in forged.items() if key != "digest"}
    (bundle / "fdcnet.json").write_text(json.dumps(content | {"digest": _digest(content)}))


# --- limits ---


def test_nothing_is_allocated_for_what_the_weights_do_not_hold(make: Make, tmp_path: Path) -> None:
    """head_width 9000 would take 3 GB, two million classes 6 GB."""
    save_bundle(make("a", "b"), tmp_path / "model")
    found = description(tmp_path / "model")
    wide = found["config"] | {"model": found["config"]["model"] | {"head_width": 30_000}}
    many = {"classes": [{"name": str(i), "task": 1} for i in range(90_000)], "task_sizes": [90_000]}
    for change in ({"config": wide}, many):
        seal(tmp_path / "model", found | change)
        before = peak_megabytes()
        with pytest.raises(UserError, match="has shape"):
            load_bundle(tmp_path / "model")
        assert peak_megabytes() - before < 300
    seal(tmp_path / "model", found | {"classes": [{"name": "x", "task": 1}] * 100_001, "task_sizes": [100_001]})
    with pytest.raises(UserError, match="100,001 classes"):
        load_bundle(tmp_path / "model")


def peak_megabytes() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_photos_that_would_fill_the_memory_are_refused(make: Make, tmp_path: Path) -> None:
    save_bundle(make("a", "b"), tmp_path / "model")
    found = description(tmp_path / "model")
    manifest = tmp_path / "model" / "memory" / "manifest.jsonl"
    lines = [json.dumps({"label": 0, "rank": i, "name": "a", "file": f"{i}.png"}) + "\n" for i in range(200)]
    for i in range(200):
        os.link(tmp_path / "model" / "memory" / "images" / "000000.png", manifest.parent / "images" / f"{i}.png")
    manifest.write_text("".join(lines))
    large = found["config"] | {"data": found["config"]["data"] | {"size": 4000}}
    seal(tmp_path / "model", found | {"config": large})
    with pytest.raises(UserError, match="200 photos of 4000 x 4000 pixels take too much memory"):
        load_bundle(tmp_path / "model")
    seal(tmp_path / "model", found | {"config": found["config"] | {"data": found["config"]["data"] | {"size": 10**6}}})
    with pytest.raises(UserError, match="too large"):
        load_bundle(tmp_path / "model")
