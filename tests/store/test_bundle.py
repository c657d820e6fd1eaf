"""The saved model: what comes back, what is refused, and what a kill leaves."""

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

import fdcnet
from fdcnet.config import Config
from fdcnet.errors import UserError
from fdcnet.files import remove_leftovers
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.models.drift import DriftSettings, add_drift
from fdcnet.models.network import new_network
from fdcnet.store.bundle import FORMAT, has_bundle, load_bundle, read_description, save_bundle
from fdcnet.store.description import seal

Make = Callable[..., Config]
SOURCE = Path(fdcnet.__file__).parent


@pytest.fixture
def state(small_config: Make) -> State:
    """Three classes of two tasks; the memory was filled out of order."""
    config = small_config("baseline")
    network = new_network(config.model, 7)
    network.grow(3)
    memory = ExemplarMemory(9)
    noise = torch.Generator().manual_seed(0)
    for label, names in ((2, ["z.jpg", "a.jpg"]), (0, ["b.jpg", "ü [1].jpg", "c.jpg"]), (1, ["d.jpg"])):
        memory.add(label, torch.randint(0, 256, (len(names), 40, 40, 3), dtype=torch.uint8, generator=noise), names)
    return State(config, network.eval(), memory, ["ringed disc", "Bär", "x/y"], [2, 1])


def test_everything_comes_back(state: State, tmp_path: Path) -> None:
    save_bundle(state, tmp_path / "model")
    loaded = load_bundle(tmp_path / "model")
    assert loaded.config == state.config
    assert loaded.classes == ["ringed disc", "Bär", "x/y"]
    assert loaded.task_sizes == [2, 1]
    assert loaded.task_numbers == [1, 1, 2]
    saved, found = state.network.state_dict(), loaded.network.state_dict()
    assert found.keys() == saved.keys()
    for name, value in saved.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    assert not loaded.network.training
    assert loaded.network.lineage == state.network.lineage


def test_values_are_laid_out_in_memory_as_before(small_config: Make, tmp_path: Path) -> None:
    """Convolutions round differently otherwise, and a resumed run would not be the same to the last bit."""
    config = small_config("fdcnet")
    network = new_network(config.model, 7)
    network.grow(3)
    add_drift(network, 2, config.section(DriftSettings))
    save_bundle(State(config, network, ExemplarMemory(9), ["a", "b", "c"], [2, 1]), tmp_path / "model")
    found = dict(load_bundle(tmp_path / "model").network.named_parameters())
    for name, value in network.named_parameters():
        assert (found[name].stride(), found[name].requires_grad) == (value.stride(), value.requires_grad), name


def test_loading_does_not_import_the_compiler_of_pytorch(state: State, tmp_path: Path) -> None:
    """It takes longer than everything else: some operations on the meta device need it."""
    add_drift(state.network, 2, state.config.section(DriftSettings))
    save_bundle(state, tmp_path / "model")
    code = (
        "import sys; from pathlib import Path; from fdcnet.store.bundle import load_bundle; load_bundle(Path('model'));"
        "assert not {'torch._dynamo', 'sympy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_the_memory_comes_back_pixel_by_pixel_in_rank_order(state: State, tmp_path: Path) -> None:
    save_bundle(state, tmp_path / "model")
    memory = load_bundle(tmp_path / "model").memory
    assert memory.budget == 9
    assert memory.names == {2: ["z.jpg", "a.jpg"], 0: ["b.jpg", "ü [1].jpg", "c.jpg"], 1: ["d.jpg"]}
    for label, pixels in state.memory.pixels.items():
        assert torch.equal(memory.pixels[label], pixels)
    assert memory.all_labels().tolist() == [0, 0, 0, 1, 2, 2]


def test_settings_that_came_later_are_off_in_an_older_bundle(state: State, tmp_path: Path) -> None:
    save_bundle(state, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "fdcnet.json").read_text(encoding="utf-8"))["config"]
    del config["model"]["sharing"]
    config["model"]["common_foreground"] = False
    config["train"] |= {"weakest_erasing": 1.0, "area_loss": "mean"}
    change(tmp_path / "model", config=config)
    assert load_bundle(tmp_path / "model").config.model.sharing == 0.0


def test_an_empty_memory_comes_back_empty(state: State, tmp_path: Path) -> None:
    state.memory = ExemplarMemory(9)
    save_bundle(state, tmp_path / "model")
    assert len(load_bundle(tmp_path / "model").memory) == 0


def test_the_description_can_be_read_by_a_person(state: State, tmp_path: Path) -> None:
    save_bundle(state, tmp_path / "model")
    description = json.loads((tmp_path / "model" / "fdcnet.json").read_text(encoding="utf-8"))
    assert description["format"] == FORMAT
    assert description["method"] == "baseline"
    assert description["classes"][1:] == [{"name": "Bär", "task": 1}, {"name": "x/y", "task": 2}]
    assert "Bär" in (tmp_path / "model" / "fdcnet.json").read_text(encoding="utf-8")


def change(bundle: Path, **changes: object) -> None:
    """Rewrite fdcnet.json as a forger would: with valid checksums."""
    seal(bundle, json.loads((bundle / "fdcnet.json").read_text(encoding="utf-8")) | changes)


def refused(path: Path) -> UserError:
    with pytest.raises(UserError) as error:
        load_bundle(path)
    assert len(str(error.value).splitlines()) == 2, "one line what is wrong, one line what to do"
    return error.value


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    assert "is not a model" in refused(tmp_path).problem
    assert "There is no model" in refused(tmp_path / "nothing").problem
    assert not has_bundle(tmp_path)


def test_a_misspelt_name_is_answered_with_the_right_one(state: State, tmp_path: Path) -> None:
    save_bundle(state, tmp_path / "birds")
    assert refused(tmp_path / "bird").remedy == f"Did you mean '{tmp_path / 'birds'}'?"


def test_a_newer_format_is_refused(state: State, tmp_path: Path) -> None:
    save_bundle(state, tmp_path / "model")
    (tmp_path / "model" / "fdcnet.json").write_text(json.dumps({"format": FORMAT + 1, "unheard": "of"}))
    error = refused(tmp_path / "model")
    assert f"newer fdcnet (format {FORMAT + 1}, this one reads {FORMAT})" in error.problem
    assert error.remedy == "Update fdcnet."


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"text"', "{}", '{"format": "1"}', '{"format": 1}'])
def test_a_damaged_description_is_refused(text: str, state: State, tmp_path: Path) -> None:
    save_bundle(state, tmp_path / "model")
    (tmp_path / "model" / "fdcnet.json").write_text(text)
    assert "fdcnet.json is damaged" in refused(tmp_path / "model").problem


@pytest.mark.parametrize(
    "changes",
    [
        *({"classes": 3}, {"classes": ["a", "b", "c"]}, {"classes": [{"name": None, "task": 1}] * 3}),
        *({"task_sizes": 3}, {"task_sizes": [1, 1]}, {"task_sizes": [-1, 4]}, {"task_sizes": [10**12]}),
        *({"num_compensated": -1}, {"num_compensated": "x"}, {"num_compensated": 10**9}),
        *({"config": None}, {"config": {"model": None}}, {"lineage": 7}),
        *({"config": {"model": {"backbone": "tiny", "head_width": width}}} for width in (-1, 10**9)),
        {"config": {"model": {}, "protocols": []}},
    ],
)
def test_a_description_that_makes_no_sense_is_refused(changes: dict[str, object], state: State, tmp_path: Path) -> None:
    save_bundle(state, tmp_path / "model")
    change(tmp_path / "model", **changes)
    assert "fdcnet.json is damaged" in refused(tmp_path / "model").problem


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def swap_for_another_model(file: Path) -> None:
    from safetensors.torch import save_file

    save_file({f"layer{i}.weight": torch.ones(2) for i in range(40)}, file)


def spoil(file: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_file(load_file(file) | {"localizer.weight": load_file(file)["localizer.weight"] * float("nan")}, file)


@pytest.mark.parametrize(
    "damage", [cut, spoil, swap_for_another_model, Path.unlink, lambda file: file.write_bytes(b"")]
)
def test_damaged_weights_are_refused(damage: Callable[[Path], None], state: State, tmp_path: Path) -> None:
    save_bundle(state, tmp_path / "model")
    damage(tmp_path / "model" / "weights.safetensors")
    error = refused(tmp_path / "model")
    assert "weights.safetensors is damaged" in error.problem
    assert "copy" in error.remedy
    change(tmp_path / "model")
    error = refused(tmp_path / "model")
    assert "weights.safetensors is damaged" in error.problem
    assert "copy" in error.remedy


@pytest.mark.parametrize("file", ["manifest.jsonl", "images/000001.png"])
@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_a_damaged_memory_is_refused(damage: Callable[[Path], None], file: str, state: State, tmp_path: Path) -> None:
    save_bundle(state, tmp_path / "model")
    damage(tmp_path / "model" / "memory" / file)
    assert "memory is damaged" in refused(tmp_path / "model").problem


@pytest.mark.parametrize(
    "changes",
    [
        *({"label": label} for label in (3, -1, "0", 1.5, [0], None)),
        *({"file": "../../../secret.png"}, {"file": "/secret.png"}, {"file": "small.png"}, {"file": "grey.png"}),
        *({"file": "text.png"}, {"file": "000001.png"}),
    ],
)
def test_a_memory_that_makes_no_sense_is_refused(changes: dict[str, object], state: State, tmp_path: Path) -> None:
    """Above all, no other file of the machine becomes an exemplar."""
    save_bundle(state, tmp_path / "model")
    images = tmp_path / "model" / "memory" / "images"
    Image.new("RGB", (40, 40)).save(tmp_path / "secret.png")
    Image.new("RGB", (32, 32)).save(images / "small.png")
    Image.new("L", (40, 40)).save(images / "grey.png")
    (images / "text.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n")
    manifest = tmp_path / "model" / "memory" / "manifest.jsonl"
    first, *others = manifest.read_text().splitlines()
    manifest.write_text("\n".join([json.dumps(json.loads(first) | changes), *others]))
    change(tmp_path / "model")
    assert "memory is damaged" in refused(tmp_path / "model").problem


@pytest.mark.parametrize("name", ["a\u2028b.jpg", "a\x85b.jpg", "a\x1cb.jpg", "a\nb.jpg"])
def test_any_name_of_a_photo_comes_back(name: str, state: State, tmp_path: Path) -> None:
    state.memory.names[1] = [name]
    save_bundle(state, tmp_path / "model")
    assert load_bundle(tmp_path / "model").memory.names[1] == [name]


class Killed(BaseException):
    """Like a kill, it is caught by nobody."""


def kill_at_move(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    rename, moves = Path.rename, 0

    def dying(self: Path, target: Path) -> Path:
        nonlocal moves
        moves += 1
        if moves == number:
            raise Killed
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", dying)


def kill_at_removal(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    rmtree, removals = shutil.rmtree, 0

    def dying(path: Path, ignore_errors: bool = False) -> None:
        nonlocal removals
        removals += 1
        if removals == number:
            raise Killed
        rmtree(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", dying)


def kill_while_writing(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def dying(self: Path, *arguments: object, **options: object) -> int:
        raise Killed

    monkeypatch.setattr(Path, "write_text", dying)


@pytest.mark.parametrize(
    ("kill", "number", "survivor"),
    [
        (kill_while_writing, 1, "old"),
        (kill_at_move, 1, "old"),  # the new one is complete
        (kill_at_move, 2, "old"),
        (kill_at_move, 3, "old"),  # between the two moves: nothing under its own name
        (kill_at_move, 4, "new"),  # the old one is still there
        (kill_at_removal, 1, "new"),
    ],
)
def test_a_kill_while_saving_leaves_a_model(
    kill: Callable[[pytest.MonkeyPatch, int], None], number: int, survivor: str, state: State, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    save_bundle(state, path)
    state.classes = ["one", "two", "three"]
    with pytest.MonkeyPatch.context() as patch:
        kill(patch, number)
        with pytest.raises(Killed):
            save_bundle(state, path)
    assert has_bundle(path)
    expected = ["one", "two", "three"] if survivor == "new" else ["ringed disc", "Bär", "x/y"]
    loaded = load_bundle(path)
    assert loaded.classes == expected
    assert len(loaded.memory) == 6
    assert read_description(path)["classes"][0]["name"] == expected[0]

    save_bundle(state, path)  # the resumed run saves again
    assert load_bundle(path).classes == ["one", "two", "three"]
    remove_leftovers(tmp_path, older_than=0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_nothing_is_unpickled() -> None:
    """safetensors and JSON only; models/weights.py alone reads a foreign .pth, with weights_only."""
    unsafe = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("joblib", "load")}
    found: list[str] = []
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            place = f"{file.relative_to(SOURCE).as_posix()}:{getattr(node, 'lineno', 0)}"
            found += [f"{place} {name}" for name in names if name.split(".")[0] in ("pickle", "dill", "shelve")]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
                if (owner, node.func.attr) in unsafe:
                    safe = any(
                        keyword.arg == "weights_only" and ast.literal_eval(keyword.value) is True
                        for keyword in node.keywords
                    )
                    if not (safe and file.name == "weights.py"):
                        found.append(f"{place} {owner}.{node.func.attr}")
    assert found == []
