import dataclasses
import sys
from pathlib import Path

import pytest

from fdcnet import config
from fdcnet.config import Config, Protocol
from fdcnet.errors import UserError
from fdcnet.models.drift import DriftSettings


def test_flags_beat_overrides_beat_the_recipe_beats_the_defaults(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("seed: 1\ntrain: {batch_size: 8, base_epochs: 9}\nmemory: {budget: 7}\n")
    loaded = config.load(recipe, ["train.batch_size=16", "seed=2"], seed=3, train={"optim": {"lr": 0.5}}, method=None)
    assert (loaded.seed, loaded.train.batch_size, loaded.train.base_epochs) == (3, 16, 9)
    assert (loaded.memory.budget, loaded.train.optim.lr, loaded.method) == (7, 0.5, Config().method)


def test_groups_are_given_as_dicts() -> None:
    loaded = config.load(
        None, ["train.batch_size=16"], data={"base_classes": 3}, train={"optim": {"lr": 0.5}}, seed=None
    )
    assert (loaded.data.base_classes, loaded.train.optim.lr, loaded.train.batch_size) == (3, 0.5, 16)
    assert loaded == config.load(None, ["data.base_classes=3", "train.optim.lr=0.5", "train.batch_size=16"])
    with pytest.raises(UserError, match=r"no setting 'train\.optim\.rate'"):
        config.load(train={"optim": {"rate": 1}})


def test_one_key_of_a_group_leaves_its_others_as_they_are() -> None:
    """Also in a group whose defaults are not those of its class."""
    usual = config.load().section(DriftSettings).optim
    assert usual != config.OptimConfig()
    assert config.load(overrides=["drift.optim.lr=0.003"]).section(DriftSettings).optim == dataclasses.replace(
        usual, lr=0.003
    )


def test_yaml_round_trip(tmp_path: Path) -> None:
    loaded = config.load(None, ["protocols=[{map: topk-mean}, {threshold: 0.3}]", "train.optim.decay_at=[0.5, 0.75]"])
    recipe = tmp_path / "r.yaml"
    recipe.write_text(config.to_yaml(loaded))
    assert config.load(recipe) == loaded


@pytest.mark.parametrize("text", ["[", "@x", "a: b: c"])
def test_text_that_is_no_yaml_is_taken_as_it_is(text: str) -> None:
    assert config.load(None, [f"data.path={text}"]).data.path == text


def test_an_entry_of_a_list_can_be_addressed() -> None:
    loaded = config.load(None, ["protocols.0.threshold=0.3", "protocols.1.map=topk-mean"])
    given = Protocol(threshold=0.3, threshold_source="given in the settings")
    assert loaded.protocols == (given, Protocol(map="topk-mean"))


@pytest.mark.parametrize("text", ["1e-3", "0.001", "1.0e-3"])
def test_numbers_are_read_as_people_write_them(text: str) -> None:
    assert config.load(None, [f"train.optim.lr={text}"]).train.optim.lr == 0.001


@pytest.mark.parametrize(
    ("override", "problem", "remedy"),
    [
        ("train.batchsize=3", "no setting 'train.batchsize'", "'train.batch_size'"),
        ("train.lr=3", "no setting 'train.lr'", "Did you mean 'train.optim.lr'?"),  # not train.step_lr
        ("batch_size=3", "no setting 'batch_size'", "Did you mean 'train.batch_size'?"),
        ("metod=joint", "no setting 'metod'", "'method'"),
        ("zzz=1", "no setting 'zzz'", "Known keys: method"),
        ("train.batch_size=x", "must be a whole number", "train.batch_size=10"),
        ("train.batch_size=1.5", "must be a whole number", "train.batch_size=10"),
        ("train.batch_size=true", "must be a whole number", "train.batch_size=10"),
        ("model.score_relu=1", "true or false", "model.score_relu=true"),
        ("model.classifier=cos", "cannot be 'cos'", "linear, cosine"),
        ("train=3", "a group of settings", "train.base_epochs"),
        ("seed.x=3", "must be a whole number", "seed"),
        ("train.optim.decay_at=0.5", "must be a list", "[...]"),
        ("protocols.0.crops=3", "cannot be 3", "1, 2, 10"),
        ("protocols.7.crops=2", "no protocol 7", "protocols.1"),
        ("seed", "has no '='", "--set train.batch_size=32"),
    ],
)
def test_mistakes_are_named_with_their_remedy(override: str, problem: str, remedy: str) -> None:
    with pytest.raises(UserError) as caught:
        config.load(None, [override])
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


def test_a_recipe_extends_another(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("seed: 1\ntrain: {batch_size: 8, optim: {lr: 0.5}}\nprotocols: [{}, {}]\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\ntrain: {optim: {lr: 0.25}}\nprotocols: [{crops: 1}]\n")
    loaded = config.load(tmp_path / "mine.yaml")
    assert (loaded.seed, loaded.train.batch_size, loaded.train.optim.lr) == (1, 8, 0.25)
    assert loaded.protocols == (Protocol(crops=1),)


@pytest.mark.parametrize("name", ["cub200-mobilenet_v1-ccil", "cub200-mobilenet_v1-ccil.yaml"])
def test_a_recipe_extends_one_of_the_package_unless_a_file_has_its_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"extends: {name}\nseed: 7\n")
    loaded = config.load(tmp_path / "mine.yaml")
    assert (loaded.method, loaded.seed, loaded.data.base_classes) == ("ccil", 7, 100)
    (tmp_path / name).write_text("method: joint\n")
    assert config.load(tmp_path / "mine.yaml").method == "joint"


def test_recipes_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(UserError, match="extends itself"):
        config.load(tmp_path / "a.yaml")


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [", "just text"])
def test_a_broken_recipe_is_refused(tmp_path: Path, text: str) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(text)
    with pytest.raises(UserError):
        config.load(recipe)


def test_a_missing_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no recipe"):
        config.load(tmp_path / "none.yaml")
    (tmp_path / "mine.yaml").write_text('extends: "no\\0file"\n')  # a name that no file system allows
    with pytest.raises(UserError, match="no recipe"):
        config.load(tmp_path / "mine.yaml")


def test_every_recipe_of_the_project_loads() -> None:
    recipes = sorted((Path(__file__).parents[1] / "src/fdcnet/recipes").glob("*.yaml"))
    assert recipes
    for recipe in recipes:
        config.load(recipe)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("model.sharing=7", "model.sharing cannot be 7."),
        ("train.label_smoothing=-3", "train.label_smoothing cannot be -3."),
        ("distill.average=9", "distill.average cannot be 9."),
        ("foster.boost_share=4", "foster.boost_share cannot be 4."),
        ("drift.optim.momentum=1", "drift.optim.momentum cannot be 1."),
        ("protocols.0.iou=0", "protocols.0.iou cannot be 0."),
    ],
)
def test_numbers_out_of_range_are_refused_with_the_range(override: str, problem: str) -> None:
    with pytest.raises(UserError) as error:
        config.load(overrides=[override])
    assert error.value.problem == problem
    assert error.value.remedy.startswith("Set it to ")


def test_ranges_also_hold_in_python() -> None:
    with pytest.raises(UserError, match=r"zoom cannot be 0\.\nSet it to more than 0 and at most 1\."):
        config.DataConfig(zoom=0)


def test_sections_of_methods_lie_beside_the_others_in_files() -> None:
    values = config.to_dict(config.load(overrides=["rebalancing.margin=0.25"]))
    assert values["rebalancing"]["margin"] == 0.25
    assert "sections" not in values
    assert config.from_dict(Config, values) == config.load(overrides=["rebalancing.margin=0.25"])


PLUG_IN = """
from dataclasses import dataclass
from fdcnet.config import Section
from fdcnet.methods.base import Method

@dataclass(frozen=True)
class Settings(Section):
    strength: float = 1.0

class Plugged(Method):
    sections = {"plugged": Settings}
"""


def test_a_plug_in_that_is_not_used_is_neither_imported_nor_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that was saved beside it must be readable where it is not installed."""
    (tmp_path / "plugged_method.py").write_text(PLUG_IN)
    info = tmp_path / "plugged-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fdcnet.methods]\nplugged = plugged_method:Plugged\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "plugged" not in config.to_dict(config.load()) and "plugged_method" not in sys.modules
    for used in (config.load(method="plugged"), config.load(overrides=["plugged.strength=1.0"])):
        assert config.to_dict(used)["plugged"] == {"strength": 1.0}
        assert config.from_dict(Config, config.to_dict(used)) == used
