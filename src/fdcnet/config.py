"""Settings: frozen dataclasses < recipe YAML < `--set a.b=c` < flags. An unknown key is refused with the nearest one.

Every default says where it comes from: a paper, BAS's public settings, or a run of ours under results/.
"""

import dataclasses
import reprlib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from fdcnet.errors import UserError
from fdcnet.files import did_you_mean, parse_yaml

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

RECIPES = Path(__file__).parent / "recipes"
T = TypeVar("T", bound="DataclassInstance")
Classifier = Literal["auto", "head", "lda"]


@dataclass(frozen=True)
class DataConfig:
    """Which photos, and in what order their classes arrive."""

    path: str = "synthetic"
    """A folder or file of photos (the layout is recognised), or `synthetic` for the generated set."""
    format: str = "auto"
    """auto, folders, csv, coco, cub, imagenet, wsol."""
    classes: int = 0
    """Use the first N classes in natural order; 0: all (ImageNet-100 = the first 100)."""
    base_classes: int = 0
    """Classes of task 1; 0: all classes in one task."""
    step_classes: int = 0
    """Classes of each later task; 0: all that remain."""
    order: str = "natural"
    """natural, seeded (shuffled), or a text file with one class name per line."""
    order_seed: int | None = None
    """Seed of the shuffled order, so that runs with other seeds can share it. Left open: `seed`."""
    holdout: float = 0.0
    """Test on this share of each class's training photos instead: for choosing settings without the test set."""
    size: int = 256
    """Side of the decoded square photo."""  # BAS
    crop: int = 224
    """Side of the square the network sees."""  # BAS
    zoom: float = 0.6  # ours: results/tuning.md, J
    """Training squares are cut from this share to all of a photo's side and resized; 1: a plain crop (BAS)."""
    colour: float = 0.0
    """Brightness, contrast and saturation of training squares vary by up to this share; 0: they do not (BAS)."""


@dataclass(frozen=True)
class ModelConfig:
    """The localization network."""

    backbone: str = "efficientnet_lite0"  # ours: its weights come with the installation; paper: mobilenet_v1
    weights: str = "auto"
    """A .safetensors or .pth file, `auto` (the official file of that backbone), or `none`."""
    cut: Literal["bas", "dilated", "averaged"] = "averaged"  # ours: results/tuning.md, A to C
    """How strides are taken out for larger maps. bas: just so, which breaks pretrained features. dilated: later
    convolutions are dilated, which repairs them. averaged: also, the tail's reduction averages cells and skips none."""
    head_width: int = 1024
    """Channels of the classifier's two hidden convolutions."""  # BAS
    classifier: Literal["linear", "cosine"] = "cosine"  # paper, section 3.3; BAS: linear
    scale: float = 10.0
    """Start of a cosine classifier's scale."""  # ours: from 1, the cross-entropy of 100 classes stays above 3.6
    learn_scale: bool = True  # paper; its public code leaves it at 1
    feature_relu: bool | None = None
    """ReLU before the score layer. Left open: for a linear one (BAS), not for a cosine one (LUCIR, public code)."""
    score_relu: bool = False  # ours: results/tuning.md, E; BAS: true, its journal version: false
    """ReLU after the class map; without it, negative scores count as none inside the suppression ratio only."""
    sharing: float = 0.8  # ours: results/tuning.md, R0 to R4; BAS: 0
    """How far each localizer row is drawn to the mean of all rows: 0, each on its own, to 1, one for all."""
    localizer_start: Literal["random", "zero"] = "zero"  # ours: as above; BAS: random
    """The localizer rows of the first task. Later ones start as the mean of the old ones."""


@dataclass(frozen=True)
class LossWeights:
    """alpha_1..7 of the paper; beta is `drift.dc_loc`. cls itself has weight 1. A term of weight 0 is not computed."""

    cls_fg: float = 0.5  # alpha_1; BAS, CUB, MobileNetV1 and InceptionV3
    bas: float = 1.0  # alpha_2; BAS
    area: float = 0.9  # alpha_3; ours: results/tuning.md, masks of any size; BAS, CUB: MobileNetV1 1.5, InceptionV3 1.0
    kd_cls: float = 1.0  # alpha_4; ours: results/tuning.md, T0 to V6
    kd_loc: float = 10.0  # alpha_5; ours, not tuned yet
    kd_feat_cls: float = 0.2  # alpha_6; ours: as kd_cls
    kd_feat_loc: float = 1.0  # alpha_7; ours: as kd_cls
    kd_mean: float = 0.0
    """Ours: masks of new classes against the previous network's class-averaged mask, where it has none of their own."""


@dataclass(frozen=True)
class OptimConfig:
    """SGD with four learning rates: backbone or heads, weights or biases."""

    lr: float = 0.005  # ours: results/tuning.md, G to J; BAS: 0.001
    head_factor: float = 2.0  # ours: as above; BAS: 10
    bias_factor: float = 2.0  # BAS
    momentum: float = 0.9  # BAS
    nesterov: bool = True  # BAS
    weight_decay: float = 0.001  # ours: results/tuning.md, I and J; BAS: 5e-4
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    decay_at: tuple[float, ...] = (0.8,)
    """`step` only: shares of the run after which the rate falls tenfold."""  # BAS: epoch 80 of 100
    warmup: float = 0.0
    """Share of the run over which the rate rises from zero."""
    clip_norm: float = 0.0
    """Largest gradient norm; 0: no limit."""


@dataclass(frozen=True)
class TrainConfig:
    """How long and how fast."""

    base_epochs: int = 20  # ours, for speed; paper, CUB-200, MobileNetV1: 50
    step_epochs: int = 20  # ours, for speed; paper, CUB-200, MobileNetV1: 150
    step_lr: float = 0.0
    """Rate of later tasks, for `optim.lr`; 0: the same as the first task's."""
    batch_size: int = 64  # the paper's public code; BAS, CUB: 32
    label_smoothing: float = 0.0
    """Of the classification loss alone."""
    sampling: Literal["natural", "balanced", "paired"] = "natural"
    """Photos of a later task: each once an epoch; all classes equally often; or half of each batch new photos and half
    exemplars of old and new classes (CCIL)."""
    imprint: bool = False
    """New classes start with the mean class features of their photos (LUCIR) instead of random scores."""
    separate_softmax: bool = False
    """Photos of new classes compete with new classes only, unless they are there as exemplars (CCIL; the paper's public
    code)."""
    allowed_background: float = 0.5  # ours: results/tuning.md, masks of any size; BAS: 1
    """Share of the class's score that may survive outside of a photo's mask before its area counts less. Masks can then
    not collapse while the classifier knows little. 1: area always counts in full (BAS)."""
    loc_warmup: float = 0.0
    """Share of the first task over which the localization losses rise to their weights, after the classifier's."""
    views: int = 0
    """0: the whole network learns. N: light training; backbone and tail stay as they are, and the shared features of N
    views of each photo are computed only once."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """auto: bf16 on a GPU, fp32 on a CPU."""
    graphs: bool = True
    """Record training steps as CUDA graphs, which makes them about twice as fast. Without effect on a CPU."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    checkpoint_minutes: float = 2.0
    """How much work a kill may cost; a checkpoint is also written at the end of each phase."""


@dataclass(frozen=True)
class DistillConfig:
    """How the previous network is remembered. The weights of the terms are under `weights`."""

    temperature: float = 1.0  # ours; the paper's public code: 2
    softmax: Literal["old", "all"] = "old"
    """Class probabilities among the old classes (public code), or among all, then sliced (equation 7 as written)."""
    masks: Literal["mean_square", "norm"] = "mean_square"
    """Distance of masks: mean square (public code), or the L2 norm (equation 8 as written)."""
    compensated: bool = False
    """Distil the previous network's compensated outputs instead of its plain ones."""
    average: float = 0.0  # ours: results/tuning.md, averaged weights
    """Share of the previous network's weights in those that a later task ends with: 0.5 is their mean."""


@dataclass(frozen=True)
class DriftConfig:
    """The feature drift compensation modules."""

    classes: bool = True
    """Compensate class scores (g_dc-c); the paper's ablation switches it."""
    maps: bool = True
    """Compensate localization maps (g_dc-l)."""
    epochs: int = 10  # ours, for speed; public code: 40
    dc_loc: float = 1.0  # beta; public code
    new_photos: Literal["previous", "own"] = "own"  # ours: results/tuning.md; paper: previous
    """What photos of new classes teach: the previous network's scores of old classes (paper), which bring back what was
    wrong of them, or to leave the network's own as they are."""
    zero_start: bool = True  # ours: a module that says nothing does no harm; public code: false
    place: Literal["inside", "after"] = "inside"
    """Add to the localization logits (equation 11), or to the mask after the sigmoid (public code, `loc_scale` 0.2)."""
    class_scale: float = 1.0
    loc_scale: float = 1.0
    optim: OptimConfig = field(  # ours, not tuned yet; public code: plain SGD, lr 0.001
        default_factory=lambda: OptimConfig(lr=0.01, head_factor=1.0, bias_factor=1.0, weight_decay=1e-4, clip_norm=1.0)
    )


@dataclass(frozen=True)
class RebalancingConfig:
    """Rebalancing (LUCIR); `aanets` has the same losses."""

    less_forget: float = 10.0  # LUCIR's code, ImageNet; CIFAR: 5
    """Weight of the less-forget loss, times the root of the number of old classes over that of new ones."""
    margin_ranking: float = 1.0  # LUCIR
    """Weight of the margin ranking loss."""
    margin: float = 0.5  # LUCIR
    """By how much an old class's own cosine shall exceed those of new classes."""
    rivals: int = 2  # LUCIR
    """How many new classes, the nearest ones, a photo of an old class is ranked against."""


@dataclass(frozen=True)
class CCILConfig:
    """CCIL."""

    kd: float = 1.0  # CCIL's code: 100 (ImageNet-100), of a mean over old classes too; of 100 classes, this
    """Weight of distillation."""
    power: float = 0.66  # CCIL's code
    """It is multiplied by this power of all classes over new ones."""
    temperature: float = 2.0  # CCIL
    """Of the class probabilities that are distilled."""


@dataclass(frozen=True)
class AANetsConfig:
    """AANets: what it adds to `rebalancing`."""

    outer_every: int = (
        10  # ours: a tenth of the steps, so that all methods see as many photos; authors: a pass an epoch
    )
    """Each so many steps, one learns the shares of the branches, on exemplars of all classes."""
    outer_lr: float = 0.02  # ours, not tuned; the authors' 1e-8 leaves the shares where they were
    """Learning rate of the shares."""


@dataclass(frozen=True)
class FosterConfig:
    """FOSTER: boosting, then compression."""

    boost_share: float = 0.57  # FOSTER's code: 170 epochs and 130
    """Share of a later task's epochs for boosting; compression has the rest."""
    boost_beta: float = 0.97  # FOSTER's code, ImageNet-100
    """Logit alignment while boosting: how fast further photos of a class count less."""
    compress_beta: float = 0.97  # FOSTER's code, ImageNet-100
    """The same for the balanced distillation."""
    kd: float = 1.0  # FOSTER's code
    """Weight of distillation while boosting."""
    temperature: float = 2.0  # FOSTER
    """Of the class probabilities that are distilled."""
    compress_weight_decay: float = 0.0  # FOSTER's code
    """Of SGD while compressing."""


@dataclass(frozen=True)
class MemoryConfig:
    """The exemplars: the only old photos that a later task may see."""

    budget: int = 2000  # the paper's public code, ImageNet-100; the paper names no number for CUB-200
    features: Literal["shared", "tail"] = "shared"
    """Pooled features that say how representative a photo is: shared (paper), or the tail's (public code)."""
    selection: Literal["herding", "ranked"] = "herding"
    """Greedy herding (paper), or nearest to the class mean first (public code)."""


@dataclass(frozen=True)
class LdaConfig:
    """The closed-form classifier: a linear discriminant on the features of the exemplars under the present network."""

    layer: Literal["tail", "class", "both"] = "both"  # ours: results/tuning.md, closed-form classifier
    """Pooled features: those of the tail, of the last hidden layer, or both, each scaled to length one."""
    shrinkage: float = 0.7  # ours: as above
    """How far the common covariance is drawn towards a multiple of the identity: 0, not at all, to 1."""


@dataclass(frozen=True)
class Protocol:
    """How a localizer is measured. It is written into every result."""

    map: Literal["class", "topk-mean"] = "class"
    """`class`: the map of the true class. `topk-mean`: the mean map of the top-k predicted classes (BAS on CUB)."""
    topk: int = 0
    """For `topk-mean`: how many classes; 0: all."""
    normalization: Literal["minmax", "max"] = "minmax"
    threshold: float = 0.5
    threshold_source: str = "default"
    crops: Literal[1, 2, 10] = 10
    """Views averaged for the class: centre; centre and its mirror image; ten-crop."""
    iou: float = 0.5
    """A box is right if its overlap with a true box is larger than this."""
    average: Literal["image", "class"] = "class"  # BAS
    frame: Literal["crop", "image"] = "crop"
    """`crop`: the centre crop, true boxes clipped to it (the papers). `image`: the whole photo."""
    inclusive_pixels: bool = True
    """Widths count both border pixels, as in the papers' scripts."""
    compensated: bool = True
    """With what a method adds to the network's own outputs for old classes; false: the network alone."""
    classifier: Classifier = "auto"
    """Who decides the class: the classifier head, or the closed-form classifier (`lda`). auto: the latter, for methods
    that keep photos of all classes."""

    @property
    def name(self) -> str:
        """Which map, in short."""
        return self.map.replace("k", str(self.topk) if self.topk else "k") + ("" if self.compensated else "-plain")


def protocol_names(protocols: typing.Sequence[Protocol]) -> list[str]:
    """Results are filed under these: the map, and what else tells a protocol from the first one with that map."""
    first: dict[str, Protocol] = {}
    names = []
    for protocol in protocols:
        other = first.setdefault(protocol.name, protocol)
        classifier = "" if protocol.classifier == other.classifier else f"-{protocol.classifier}"
        threshold = "" if protocol.threshold == other.threshold else f"-{protocol.threshold:g}"
        names.append(protocol.name + classifier + threshold)
    return names


def refuse_protocol(protocol: Protocol) -> None:
    if not 0 <= protocol.threshold <= 1:
        raise UserError(f"A map cannot be cut at {protocol.threshold:g}.", "Set threshold between 0 and 1.")
    if not 0 < protocol.iou < 1:
        raise UserError(f"Boxes cannot overlap by {protocol.iou:g}.", "Set iou between 0 and 1, such as 0.5.")


@dataclass(frozen=True)
class Config:
    method: str = "fdcnet"
    seed: int = 0
    device: str = "auto"
    """auto, cpu, cuda, or cuda:N."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    weights: LossWeights = field(default_factory=LossWeights)
    train: TrainConfig = field(default_factory=TrainConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    drift: DriftConfig = field(default_factory=DriftConfig)
    rebalancing: RebalancingConfig = field(default_factory=RebalancingConfig)
    ccil: CCILConfig = field(default_factory=CCILConfig)
    aanets: AANetsConfig = field(default_factory=AANetsConfig)
    foster: FosterConfig = field(default_factory=FosterConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    lda: LdaConfig = field(default_factory=LdaConfig)
    protocols: tuple[Protocol, ...] = (Protocol(),)
    """The first one goes to results.json, each further one to results-<map>.json."""


def load(recipe: str | Path | None = None, overrides: typing.Sequence[str] = (), **flags: Any) -> Config:
    """Resolve the settings. `overrides` are `a.b=c` strings; `flags` are settings and groups of them, or None.

    Example: `load(method="fdcnet", data={"base_classes": 10}, train={"optim": {"lr": 0.002}})`
    """
    values = read_recipe(find_recipe(recipe)) if recipe else {}
    for key, value in parse_overrides(overrides).items():
        _assign(values, key, value)
    for key, value in leaves(flags):
        if value is not None:
            _assign(values, key.replace("__", "."), value)
    return from_dict(Config, values)


def changed(config: Config, changes: typing.Mapping[str, Any]) -> Config:
    """The same settings but for these dotted keys."""
    values = to_dict(config)
    for key, value in changes.items():
        _assign(values, key, value)
    return from_dict(Config, values)


def parse_overrides(overrides: typing.Sequence[str]) -> dict[str, Any]:
    """`a.b=c` strings -> dotted keys and values."""
    parsed = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            raise UserError(f"--set {override!r} has no '='.", "Write it as --set train.batch_size=32.")
        parsed[key.strip()] = _parse_scalar(text)
    return parsed


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def find_recipe(recipe: str | Path) -> Path:
    """A YAML file, or one of the package's recipes by its name."""
    if Path(recipe).is_file():
        return Path(recipe)
    if str(recipe) in recipe_names():
        return RECIPES / f"{recipe}.yaml"
    hint = did_you_mean(Path(recipe).stem, recipe_names(), otherwise="")
    raise UserError(f"There is no recipe '{recipe}'.", f"{hint} 'fdcnet config list' shows all of them.".lstrip())


def read_recipe(path: Path, inside: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The settings in a YAML file, laid over those of the file that its key `extends` names, if any."""
    if "\0" in str(path) or path.resolve() in inside:
        raise UserError(f"The recipe {path} extends itself.", "Remove one 'extends'.")
    if not path.is_file():
        raise UserError(f"There is no recipe {path}.", "Name a YAML file, for instance one of those under recipes/.")
    try:
        values = parse_yaml(path.read_text(encoding="utf-8")) or {}
    except ValueError as error:
        raise UserError(f"{path} is not valid YAML: {error}", "Correct the file.") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} does not hold settings.", "A recipe is a YAML mapping such as 'method: finetune'.")
    base = values.pop("extends", None)
    return _laid_over(read_recipe(path.parent / str(base), (*inside, path.resolve())), values) if base else values


def _laid_over(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Groups are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in values.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _laid_over(base[key], value) if both else value
    return merged


def to_dict(config: Any) -> dict[str, Any]:
    """Plain values only, so that YAML and JSON can hold them."""
    return _plain(dataclasses.asdict(config))


def leaves(values: typing.Mapping[str, Any], prefix: str = "") -> typing.Iterator[tuple[str, Any]]:
    """Nested plain values by dotted key."""
    for key, value in values.items():
        if isinstance(value, typing.Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def to_yaml(config: Config) -> str:
    return yaml.safe_dump(to_dict(config), sort_keys=False)


def from_dict(kind: type[T], values: dict[str, Any], where: str = "", base: T | None = None) -> T:
    """Build a settings dataclass, refusing unknown keys and values of the wrong type; the rest is as in `base`."""
    hints = typing.get_type_hints(kind)
    for key in values:
        if key not in hints:
            hint = did_you_mean(str(key), hints, otherwise=f"Known keys: {', '.join(hints)}.", prefix=where)
            raise UserError(f"There is no setting '{where}{key}'.", hint)
    if kind is Protocol and "threshold" in values:
        values = {"threshold_source": "given in the settings"} | values
    base = kind() if base is None else base
    given = {key: _convert(hints[key], value, f"{where}{key}", getattr(base, key)) for key, value in values.items()}
    return dataclasses.replace(base, **given)


def _convert(hint: Any, value: Any, key: str, default: Any = None) -> Any:
    """`default`: where the keys of a group that are not given come from."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, hint):
            return value
        if not isinstance(value, dict):
            raise UserError(
                f"'{key}' is a group of settings, not {reprlib.repr(value)}.",
                f"Set its keys, such as {key}.{_first_key(hint)}.",
            )
        return from_dict(hint, value, f"{key}.", default)
    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise UserError(
                f"'{key}' cannot be {reprlib.repr(value)}.", f"Choose one of: {', '.join(map(str, choices))}."
            )
        return value
    if origin is tuple:
        gap = next((n for i, n in enumerate(value) if n != str(i)), None) if isinstance(value, dict) else None
        if gap is not None:
            raise UserError(
                f"There is no {key.removesuffix('s')} {gap}: they count from 0.", f"The next is {key}.{len(value) - 1}."
            )
        items = value.values() if isinstance(value, dict) else value
        if isinstance(items, str) or not hasattr(items, "__iter__"):
            raise UserError(f"'{key}' must be a list, not {reprlib.repr(value)}.", f"Write {key}=[...].")
        inner = typing.get_args(hint)[0]
        return tuple(_convert(inner, item, f"{key}.{i}") for i, item in enumerate(items))
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(typing.get_args(hint)[0], value, key)
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise UserError(
            f"'{key}' must be {_kind_name(hint)}, not {reprlib.repr(value)}.", f"Set it like {key}={_example(hint)}."
        )
    return value


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested plain values; a number addresses an entry of a list."""
    *groups, last = key.split(".")
    for i, name in enumerate(groups):
        inner = values.get(name)
        if isinstance(inner, (list, tuple)):
            inner = {str(n): entry for n, entry in enumerate(inner)}
        elif inner is None and name == "protocols":
            inner = {"0": {}}
        elif inner is None:
            inner = {}
        elif not isinstance(inner, dict):
            raise UserError(f"'{'.'.join(groups[: i + 1])}' is a single value.", f"It has no key '{last}'.")
        values[name] = inner
        values = inner
    values[last] = value


def _parse_scalar(text: str) -> Any:
    try:
        value = parse_yaml(text)
    except ValueError:  # such as a lone bracket or @: plain text
        return text
    if isinstance(value, str):  # YAML reads 1e-3 as text
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(inner) for inner in value]
    return value


def _first_key(kind: type) -> str:
    return dataclasses.fields(kind)[0].name


def _kind_name(hint: Any) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(hint, str(hint))


def _example(hint: Any) -> str:
    return {int: "10", float: "0.1", bool: "true", str: "name"}.get(hint, "...")
