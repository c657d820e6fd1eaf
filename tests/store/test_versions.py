"""Versions of a model: adding, pruning, going back, one writer at a time, and what a kill or a full disk leaves."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fdcnet.config import Config
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Record
from fdcnet.errors import UserError
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.models.network import new_network
from fdcnet.store import layout
from fdcnet.store import versions as module
from fdcnet.store.bundle import has_bundle, load_bundle, read_description, save_bundle
from fdcnet.store.description import seal
from fdcnet.store.versions import add_version, after_tasks, can_go_back, is_unborn, rollback, versions, writing


@pytest.fixture
def make(small_config: Callable[..., Config]) -> Callable[..., State]:
    def state(*classes: str, task_sizes: tuple[int, ...] = ()) -> State:
        config = small_config("baseline")
        network = new_network(config.model, 7)
        network.grow(len(classes))
        memory = ExemplarMemory(9)
        memory.add(0, torch.zeros((1, 40, 40, 3), dtype=torch.uint8), ["a.jpg"])
        return State(config, network.eval(), memory, list(classes), list(task_sizes or (len(classes),)))

    return state


def add(state: State, path: Path, keep: int = 3, **facts: object) -> int:
    with writing(path):
        return add_version(state, path, facts, keep).number


def numbers(path: Path) -> list[int]:
    return [version.number for version in versions(path)]


def classes(path: Path) -> list[str]:
    return load_bundle(path).classes


def test_the_newest_version_is_the_model(make: Callable[..., State], tmp_path: Path) -> None:
    model = tmp_path / "new" / "model"
    assert versions(model) == []
    assert add(make("a", "b"), model, added=["a", "b"]) == 1
    assert add(make("a", "b", "ü/[c]", task_sizes=(2, 1)), model, added=["ü/[c]"]) == 2
    assert classes(model) == ["a", "b", "ü/[c]"]
    first, second = versions(model)
    assert (first.current, second.current) == (False, True)
    assert (first.parent, second.parent) == (None, 1)
    assert (first.added, second.added) == (("a", "b"), ("ü/[c]",))
    assert classes(first.path) == ["a", "b"]
    assert second.num_bytes > 1000
    assert sorted(entry.name for entry in model.iterdir()) == ["current", "versions"]


def test_only_so_many_earlier_ones_are_kept(make: Callable[..., State], tmp_path: Path) -> None:
    for _ in range(4):
        add(make("a", "b"), tmp_path / "model", keep=2)
    assert numbers(tmp_path / "model") == [2, 3, 4]
    add(make("a", "b"), tmp_path / "model", keep=0)
    assert numbers(tmp_path / "model") == [5]


def test_back_and_forward(make: Callable[..., State], tmp_path: Path) -> None:
    model = tmp_path / "model"
    add(make("a", "b"), model)
    add(make("a", "b", "c"), model)
    assert can_go_back(model)
    assert rollback(model).number == 1
    assert not can_go_back(model)
    assert classes(model) == ["a", "b"]
    with pytest.raises(UserError, match="no earlier version"):
        rollback(model)
    with pytest.raises(UserError, match="no version 7"):
        rollback(model, 7)
    assert rollback(model, 2).number == 2
    assert classes(model) == ["a", "b", "c"]


def test_ancestors_are_kept_before_what_was_left_behind(make: Callable[..., State], tmp_path: Path) -> None:
    model = tmp_path / "model"
    add(make("a", "b"), model)
    for _ in range(2):
        add(make("a", "b", "c"), model)
    rollback(model, 1)
    add(make("a", "b", "d"), model, keep=2)
    assert numbers(model) == [1, 3, 4]
    add(make("a", "b", "d", "e"), model, keep=1)
    assert numbers(model) == [4, 5]
    assert rollback(model).number == 4
    rollback(model, 5)
    (model / "versions" / "4" / "learned.json").unlink()
    seal(model / "versions" / "4", read_description(model / "versions" / "4"))
    assert rollback(model).number == 4


def test_what_the_model_knew_after_each_task(make: Callable[..., State], tmp_path: Path) -> None:
    model = tmp_path / "model"
    add(make("a", "b"), model)
    add(make("a", "b", "wrong", task_sizes=(2, 1)), model)
    rollback(model)
    add(make("a", "b", "c", task_sizes=(2, 1)), model)
    add(make("a", "b", "c", task_sizes=(2, 1)), model)  # more photos: no task of its own
    assert {task: version.number for task, version in after_tasks(model).items()} == {1: 1, 2: 4}


def test_a_bundle_without_versions_becomes_the_first(make: Callable[..., State], tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_bundle(make("a", "b"), model)
    assert [(version.number, version.current) for version in versions(model)] == [(1, True)]
    with pytest.raises(UserError, match="no earlier version"):
        rollback(model)
    assert classes(model) == ["a", "b"]
    assert add(make("a", "b", "c"), model) == 2
    assert sorted(entry.name for entry in model.iterdir()) == ["current", "versions"]
    assert rollback(model).classes == ("a", "b")
    assert classes(model) == ["a", "b"]


def test_a_kill_while_a_bundle_without_versions_gets_its_first_leaves_nothing(
    make: Callable[..., State], tmp_path: Path
) -> None:
    """Neither a version that was never current, nor the photos of the bundle that lay in the folder."""
    flat, model = tmp_path / "flat", tmp_path / "model"
    save_bundle(make("a", "b"), flat)
    shutil.copytree(flat, model)
    add(make("a", "b", "c"), model)
    shutil.copytree(flat, model, dirs_exist_ok=True)
    (model / "unfinished").write_text("2")
    pointer = (model / "current").read_bytes()

    (model / "current").unlink()  # before it was written
    with writing(model):
        pass
    assert [(version.number, version.classes) for version in versions(model)] == [(1, ("a", "b"))]
    assert not (model / "versions" / "2").exists()

    add(make("a", "b", "c"), model)
    shutil.copytree(flat, model, dirs_exist_ok=True)  # after it was written, before the old files were removed
    assert (model / "current").read_bytes() == pointer
    with writing(model):
        pass
    assert sorted(entry.name for entry in model.iterdir()) == ["current", "versions"]


def test_held_out_photos_come_back(make: Callable[..., State], tmp_path: Path) -> None:
    state = make("a", "b")
    records = (Record(Path("x.jpg"), "b", ((1.0, 2.0, 3.0, 4.5),)), Record(Path("y.jpg"), "a"))
    pixels = torch.randint(0, 256, (2, 40, 40, 3), dtype=torch.uint8)
    state.held_out = PixelCache(records, torch.tensor([[60, 50], [40, 30]]), pixels)
    add(state, tmp_path / "model")
    found = load_bundle(tmp_path / "model").held_out
    assert found is not None
    assert found.records == records
    assert torch.equal(found.pixels, pixels) and torch.equal(found.sizes, state.held_out.sizes)
    without = load_bundle(tmp_path / "model", memory=False)
    assert without.held_out is None and len(without.memory) == 0


@pytest.mark.parametrize("step", ["write_bundle", "_point"])
@pytest.mark.parametrize("flat", [True, False])
def test_a_full_disk_leaves_the_model_as_it_was(
    make: Callable[..., State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, flat: bool
) -> None:
    model = tmp_path / "model"
    if flat:
        save_bundle(make("a", "b"), model)
    else:
        add(make("a", "b"), model)
    before = {file: file.read_bytes() for file in model.rglob("*") if file.is_file()}

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, step, full)
        with pytest.raises(UserError, match="disk is full"):
            add(make("a", "b", "c"), model)
    assert classes(model) == ["a", "b"]
    assert all(file.read_bytes() == content for file, content in before.items())
    assert not list(model.rglob("*.tmp"))
    add(make("a", "b", "c"), model)
    assert classes(model) == ["a", "b", "c"]


def test_nothing_is_left_where_nothing_came_of_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), writing(tmp_path / "deep" / "model"):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


def test_a_model_under_its_other_name_is_found_by_the_next_writer(make: Callable[..., State], tmp_path: Path) -> None:
    save_bundle(make("a", "b"), tmp_path / "m")
    (tmp_path / "m").rename(tmp_path / "m.old")  # as a kill between the two moves leaves it
    with writing(tmp_path / "m"):
        assert load_bundle(tmp_path / "m").classes == ["a", "b"]
    assert has_bundle(tmp_path / "m") and not (tmp_path / "m.old").exists()


def test_a_second_writer_is_refused_even_in_another_thread(make: Callable[..., State], tmp_path: Path) -> None:
    model, problems = tmp_path / "model", []
    add(make("a", "b"), model)

    def second() -> None:
        try:
            rollback(model)
        except UserError as error:
            problems.append(error.problem)

    with writing(model):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        assert classes(model) == ["a", "b"]  # readers go on
    assert problems == [f"{model} is being changed by process {os.getpid()} on {os.uname().nodename}."]
    with writing(model):
        pass


def test_the_lock_of_a_killed_process_is_void(make: Callable[..., State], tmp_path: Path) -> None:
    model = tmp_path / "model"
    add(make("a", "b"), model)
    code = (
        "import os, sys, pathlib; from fdcnet.store.versions import writing\n"
        "with writing(pathlib.Path(sys.argv[1])):\n"
        "    (pathlib.Path(sys.argv[1]) / 'versions' / '2.new').mkdir(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(model)], check=False).returncode == -9
    assert (model / "lock").exists() and (model / "versions" / "2.new").exists()
    assert add(make("a", "b", "c"), model) == 2
    assert numbers(model) == [1, 2]


def test_a_copied_version_becomes_a_model_of_its_own(make: Callable[..., State], tmp_path: Path) -> None:
    for names in ("ab", "abc", "abcd"):
        add(make(*names), tmp_path / "model")
    shutil.copytree(tmp_path / "model" / "versions" / "3", tmp_path / "copy")  # its learned.json says: parent 2
    assert add(make(*"abcde"), tmp_path / "copy") == 2
    assert [(version.number, version.parent) for version in versions(tmp_path / "copy")] == [(1, None), (2, 1)]
    assert rollback(tmp_path / "copy").classes == tuple("abcd")


def test_a_version_that_was_half_removed_is_none(make: Callable[..., State], tmp_path: Path) -> None:
    model = tmp_path / "model"
    for names in ("ab", "abc", "abcd"):
        add(make(*names), model)
    (model / "versions" / "2" / "fdcnet.json").unlink()
    assert numbers(model) == [1, 3]
    assert add(make(*"abcde"), model) == 4
    assert not (model / "versions" / "2").exists()


@pytest.mark.parametrize("at", ["lock", "new", "version"])
def test_a_killed_first_lesson_can_be_repeated(make: Callable[..., State], tmp_path: Path, at: str) -> None:
    model = tmp_path / "model"
    (model / "versions" / "1.new").mkdir(parents=True)
    (model / "lock").write_text("process 7 on nowhere")
    if at == "lock":
        (model / "versions" / "1.new").rmdir()
        (model / "versions").rmdir()
    if at == "version":  # all was done but for `current`
        save_bundle(make("a", "b"), model / "versions" / "1")
        assert classes(model) == ["a", "b"] and not is_unborn(model)
    else:
        assert is_unborn(model) and not has_bundle(model)
    assert add(make("a", "b", "c"), model) == (2 if at == "version" else 1)
    assert classes(model) == ["a", "b", "c"]
    assert numbers(model) == ([1, 2] if at == "version" else [1])
    (tmp_path / "photos" / "versions").mkdir(parents=True)
    (tmp_path / "photos" / "a.jpg").touch()
    assert not is_unborn(tmp_path / "photos")


@pytest.mark.parametrize("text", ["[]", "{", "{}}", '{"added": ["a"]}', '{"created": 7}', '{"created": "monday"}'])
def test_damaged_facts_are_said_to_be_damaged(make: Callable[..., State], tmp_path: Path, text: str) -> None:
    add(make("a", "b"), tmp_path / "model")
    version = tmp_path / "model" / "versions" / "1"
    (version / "learned.json").write_text(text)
    seal(version, json.loads((version / "fdcnet.json").read_text()))
    with pytest.raises(UserError, match=r"learned\.json is damaged"):
        versions(tmp_path / "model")


READERS: dict[str, Callable[[Path], Any]] = {
    "versions": lambda path: [(version.number, version.current, version.classes) for version in versions(path)],
    "has_bundle": has_bundle,
    "read_description": lambda path: len(read_description(path)["classes"]),
    "load_bundle": classes,
}
AFTERWARDS = {
    "versions": [(2, True, ("a", "b", "c"))],
    "has_bundle": True,
    "read_description": 3,
    "load_bundle": ["a", "b", "c"],
}


@pytest.mark.parametrize(
    ("reads", "looks_up"),
    [("versions", "current_number"), ("versions", "kept_numbers")]
    + [(reads, "current_dir") for reads in ("has_bundle", "read_description", "load_bundle")],
)
@pytest.mark.parametrize("has_versions", [True, False])
def test_a_reader_whose_version_is_removed_between_two_looks_reads_the_next_one(
    make: Callable[..., State],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reads: str,
    looks_up: str,
    has_versions: bool,
) -> None:
    model = tmp_path / "model"
    (add if has_versions else save_bundle)(make("a", "b"), model)
    where = module if reads == "versions" else layout
    look = getattr(where, looks_up)

    def look_before_a_writer_comes(path: Path) -> Any:
        monkeypatch.undo()
        seen = look(path)
        add(make("a", "b", "c"), model, keep=0)
        return seen

    monkeypatch.setattr(where, looks_up, look_before_a_writer_comes)
    assert READERS[reads](model) == AFTERWARDS[reads]
    assert getattr(where, looks_up) is look, "nobody came"


def test_readers_see_whole_versions_while_others_are_removed(make: Callable[..., State], tmp_path: Path) -> None:
    model, problems = tmp_path / "model", []
    add(make("a", "b"), model)
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                assert sum(version.current for version in versions(model)) == 1
                assert all(version.num_bytes >= 0 for version in versions(model))
                assert has_bundle(model)
                assert classes(model) == ["a", "b"]
            except BaseException as error:
                problems.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(12):
        add(make("a", "b"), model, keep=0)
    done.set()
    reader.join()
    assert problems == []


@pytest.mark.parametrize("pointer", ["../../etc", "0", ""])
def test_a_damaged_pointer_is_said_to_be_damaged(make: Callable[..., State], tmp_path: Path, pointer: str) -> None:
    model = tmp_path / "model"
    add(make("a", "b"), model)
    (model / "current").write_text(pointer)
    with pytest.raises(UserError, match="damaged"):
        has_bundle(model)


@pytest.mark.parametrize("pointer", ["3", "?"])
def test_a_lost_current_version_is_left_for_one_that_is_there(
    make: Callable[..., State], tmp_path: Path, pointer: str
) -> None:
    model = tmp_path / "model"
    add(make("a", "b"), model)
    add(make("a", "b", "c"), model)
    (model / "current").write_text(pointer)
    with pytest.raises(UserError) as error:
        rollback(model)
    assert pointer != "3" or error.value.remedy.endswith(f"rollback {model} --to 2")
    assert rollback(model, 1).current
    assert [version.current for version in versions(model)] == [True, False]


def test_what_was_learned_is_readable(make: Callable[..., State], tmp_path: Path) -> None:
    add(make("a", "Bär"), tmp_path / "model", added=["Bär"], seconds=3.5)
    learned = json.loads((tmp_path / "model" / "versions" / "1" / "learned.json").read_text(encoding="utf-8"))
    assert learned.pop("created").endswith("+00:00")
    assert learned == {"version": 1, "parent": None, "added": ["Bär"], "seconds": 3.5}
