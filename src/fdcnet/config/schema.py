"""The settings that all methods share. Comments name the source of a default: a paper, BAS's settings or our results.

The settings of a method are declared beside it, as a `Section` of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from fdcnet.config.section import Section, number

S = TypeVar("S", bound=Section)
ClassifierChoice = Literal["auto", "head", "lda"]
Frame = Literal["crop", "image"]
VIEWS = {1: "one-view", 2: "two-views"}


@dataclass(frozen=True)
class DataConfig(Section):
    """The photos, and the order in which their classes arrive."""

    path: str = "synthetic"
    """Folder or file of photos (the format is detected), or `synthetic` for the generated set."""
    format: str = "auto"
    """Data format, as listed by `fdcnet data check --help`; auto: detect it."""
    classes: int = number(0, at_least=0)
    """Use only the first N classes in natural order (ImageNet-100: the first 100). 0: all."""
    base_classes: int = number(0, at_least=0)
    """Number of classes in the first task. 0: all classes in one task."""
    step_classes: int = number(0, at_least=0)
    """Number of classes in each later task. 0: all remaining classes."""
    order: str = "natural"
    """Class order: natural, seeded (shuffled), or a text file with one class name per line."""
    order_seed: int | None = None
    """Seed of the shuffled order, so that runs with different seeds can share it. Default: `seed`."""
    tasks: int = number(0, at_least=0)
    """Learn only the first N tasks, for example to make a base model. 0: all."""
    holdout: float = number(0.0, at_least=0, below=1)
    """Fraction of each class's training photos to evaluate on instead of the test set. Use it to choose settings."""
    size: int = number(256, at_least=1)  # BAS
    """Side of the decoded square photo, in pixels."""
    crop: int = number(224, at_least=1)  # BAS
    """Side of the square the network sees, in pixels."""
    zoom: float = number(0.6, above=0, at_most=1)  # ours: results/tuning.md, J
    """Training crops have between this fraction and all of the photo's side. 1: plain crops (BAS)."""
    colour: float = number(0.0, at_least=0, below=1)
    """Brightness, contrast and saturation of training crops vary by up to this fraction. 0: no variation (BAS)."""


@dataclass(frozen=True)
class ModelConfig(Section):
    """The localization network."""

    backbone: str = "efficientnet_lite0"  # ours: its weights come with the installation; paper: mobilenet_v1
    """Backbone, as listed by `fdcnet train --help`."""
    weights: str = "auto"
    """Pretrained weights: a .safetensors or .pth file, `auto` (the backbone's default source), or `none`."""
    cut: Literal["bas", "dilated", "averaged"] = "averaged"  # ours: results/tuning.md, A to C
    """How strides are removed for larger maps. bas: only removed, which hurts pretrained features. dilated: later
    convolutions are dilated to repair them. averaged: also, the tail downsamples by averaging."""
    head_width: int = number(1024, at_least=1)  # BAS
    """Channels of the classifier's two hidden convolutions."""
    classifier: Literal["linear", "cosine"] = "cosine"  # paper, section 3.3; BAS: linear
    """Score layer of the classifier head."""
    scale: float = number(10.0, above=0)  # ours: from 1, the cross-entropy of 100 classes stays above 3.6
    """Initial scale of a cosine classifier."""
    learn_scale: bool = True  # paper; its public code leaves it at 1
    """Learn the scale of a cosine classifier."""
    feature_relu: bool | None = None
    """ReLU before the score layer. Default: on for a linear classifier (BAS), off for cosine (LUCIR, public code)."""
    bas_scores: Literal["activation", "normalized"] = "activation"  # ours: the mask cannot change a normalized score
    """What the foreground and suppression losses read with a cosine classifier: features times unit class weights, or
    the cosine scores themselves (equations 2 to 4 as printed)."""
    score_relu: bool = False  # ours: results/tuning.md, E; BAS: true, its journal version: false
    """ReLU after the class map. Without it, negative scores count as zero in the suppression ratio only."""
    sharing: float = number(0.8, at_least=0, at_most=1)  # ours: results/tuning.md, R0 to R4; BAS: 0
    """How much localizer rows share: each is mixed with the mean of all rows. 0: independent, 1: one row for all."""
    localizer_start: Literal["random", "zero"] = "zero"  # ours: as above; BAS: random
    """Initial localizer rows of the first task."""
    later_rows: Literal["mean", "random"] = "mean"  # ours: random rows learn no usable mask in 20 epochs; paper: random
    """Initial localizer rows of later tasks: the mean of the old ones, or random (needs `sharing` 0)."""


@dataclass(frozen=True)
class LossWeights(Section):
    """Weights of the loss terms: alpha_1 to alpha_7 of the paper (beta is `drift.dc_loc`). The weight of `cls` is 1.

    Terms of weight 0 are not computed.
    """

    cls_fg: float = number(0.5, at_least=0)  # alpha_1; BAS, CUB, MobileNetV1 and InceptionV3
    """Classification of the foreground."""
    bas: float = number(1.0, at_least=0)  # alpha_2; BAS
    """Background activation suppression."""
    area: float = number(0.5, at_least=0)  # alpha_3; ours: results/tuning.md, masks of any size; BAS, CUB: 1.5 and 1.0
    """Area of the mask."""
    kd_cls: float = number(1.0, at_least=0)  # alpha_4; ours: results/tuning.md, T0 to V6
    """Distillation of class probabilities."""
    kd_loc: float = number(10.0, at_least=0)  # alpha_5; ours, not tuned yet
    """Distillation of masks."""
    kd_feat_cls: float = number(0.2, at_least=0)  # alpha_6; ours: as kd_cls
    """Distillation of the classifier's features."""
    kd_feat_loc: float = number(1.0, at_least=0)  # alpha_7; ours: as kd_cls
    """Distillation of the shared features."""
    kd_mean: float = number(0.0, at_least=0)  # ours; not in the paper
    """Distillation of the previous network's class-averaged mask to the masks of new classes."""


@dataclass(frozen=True)
class OptimConfig(Section):
    """SGD with four learning rates: backbone or heads, weights or biases."""

    lr: float = number(0.005, above=0)  # ours: results/tuning.md, G to J; BAS: 0.001
    """Learning rate of the pretrained backbone."""
    head_factor: float = number(2.0, at_least=0)  # ours: as above; BAS: 10
    """Learning rate of the heads, relative to `lr`."""
    bias_factor: float = number(2.0, at_least=0)  # BAS
    """Learning rate of biases, relative to weights."""
    momentum: float = number(0.9, at_least=0, below=1)  # BAS
    """Momentum."""
    nesterov: bool = True  # BAS
    """Nesterov momentum."""
    weight_decay: float = number(0.001, at_least=0)  # ours: results/tuning.md, I and J; BAS: 5e-4
    """Weight decay."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """Learning rate schedule."""
    decay_at: tuple[float, ...] = (0.8,)  # BAS: epoch 80 of 100
    """For `step`: fractions of the phase after which the rate falls tenfold."""
    warmup: float = number(0.0, at_least=0, below=1)
    """Fraction of the phase over which the rate rises from zero."""
    clip_norm: float = number(0.0, at_least=0)
    """Maximum gradient norm. 0: no limit."""


@dataclass(frozen=True)
class TrainConfig(Section):
    """Training."""

    base_epochs: int = number(20, at_least=1)  # ours, for speed; paper, CUB-200, MobileNetV1: 50
    """Epochs of the first task."""
    step_epochs: int = number(20, at_least=1)  # ours, for speed; paper, CUB-200, MobileNetV1: 150
    """Epochs of each later task."""
    step_lr: float = number(0.0, at_least=0)
    """Learning rate of later tasks. 0: that of the first task."""
    batch_size: int = number(64, at_least=1)  # the paper's public code; BAS, CUB: 32
    """Photos in a batch."""
    label_smoothing: float = number(0.0, at_least=0, below=1)
    """Label smoothing of the classification loss."""
    sampling: Literal["natural", "balanced", "paired"] = "natural"
    """Photos of a later task. natural: each once per epoch. balanced: all classes equally often. paired: half of each
    batch new photos, half exemplars of old and new classes (CCIL)."""
    imprint: bool = False
    """Initialize new classes with the mean features of their photos (LUCIR)."""
    separate_softmax: bool = False
    """Photos of new classes compete with new classes only, unless they are exemplars (CCIL; the paper's public
    code)."""
    allowed_background: float = number(0.5, at_least=0, at_most=1)  # ours: results/tuning.md, masks of any size; BAS: 1
    """Share of the class score that may remain outside of a photo's mask before its area counts less. Meant to keep
    masks from collapsing while the classifier still knows little. 1: area always counts in full (BAS)."""
    foreground: Literal["recognized", "all"] = "recognized"  # ours: results/tuning.md, foreground; BAS: all
    """Photos that count in the foreground loss. recognized: each by the probability of its class, so that masks do not
    become empty or full while the classifier still knows little. all: equally (BAS)."""
    mask_shifts: bool = True  # ours: results/tuning.md, masks of any size
    """Shift the logits of each photo's mask by a different amount, so that masks become nearly binary."""
    erased_statistics: Literal["running", "batch"] = "running"  # ours: as above; BAS: batch
    """Batch norm of the features that remain when the mask is erased: running statistics, or those of the batch."""
    full_rate_classes: int = number(100, at_least=0)  # ours: as above; BAS: 0
    """With fewer classes, the localizer learns at a rate that is lower in proportion, but faster in a short first task,
    so that masks become decided. 0: always at the rate of the other heads."""
    loc_warmup: float = number(0.0, at_least=0, at_most=1)
    """Fraction of the first task over which the weights of the localization losses rise from zero."""
    views: int = number(0, at_least=0)
    """Light training: freeze backbone and tail, and compute the features of N views of each photo once. 0: train the
    whole network."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """auto: bf16 on a GPU, fp32 on a CPU."""
    micro_batch: int = number(0, at_least=0)
    """Photos of a batch that are computed at a time. 0: all, or fewer on a CPU with little memory. Gradients are added
    up, but batch norm sees the parts, so results differ a little from those of whole batches."""
    graphs: bool = True
    """Record training steps as CUDA graphs, which makes them about twice as fast. No effect on a CPU."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    checkpoint_minutes: float = number(2.0, at_least=0)
    """Minutes between checkpoints. Each phase also ends with one, and so does a run stopped by Ctrl-C or SIGTERM."""


@dataclass(frozen=True)
class MemoryConfig(Section):
    """The exemplar memory: the only old photos that a later task may use."""

    budget: int = number(2000, at_least=1)  # the paper's public code, ImageNet-100; not stated for CUB-200
    """Number of exemplars over all classes."""
    features: Literal["shared", "tail"] = "shared"
    """Pooled features used to select exemplars: shared (paper), or the tail's (public code)."""
    selection: Literal["herding", "ranked"] = "herding"
    """herding: greedy herding (paper). ranked: closest to the class mean first (public code)."""


@dataclass(frozen=True)
class LdaConfig(Section):
    """The closed-form classifier: a linear discriminant on pooled features."""

    layer: Literal["tail", "class", "both"] = "both"  # ours: results/tuning.md, closed-form classifier
    """Pooled features: those of the tail, of the last hidden layer, or both, each scaled to unit length."""
    shrinkage: float = number(0.7, at_least=0, at_most=1)  # ours: as above
    """Shrinkage of the shared covariance towards a multiple of the identity."""
    old_classes: Literal["moved", "exemplars"] = "moved"  # ours: results/tuning.md, statistics that move
    """Which photos of old classes are counted. moved: all; the features of those that are gone are estimated by how the
    features of exemplars and new photos have moved. exemplars: the exemplars alone."""


@dataclass(frozen=True)
class Protocol(Section):
    """How a model is evaluated. It is stored with every result."""

    map: Literal["class", "topk-mean"] = "class"
    """class: the map of the true class. topk-mean: the mean map of the top-k predicted classes (BAS on CUB)."""
    topk: int = number(0, at_least=0)
    """Number of classes for `topk-mean`. 0: all."""
    normalization: Literal["minmax", "max"] = "minmax"
    """Scale the map from its minimum to its maximum, or divide it by its maximum."""
    threshold: float = number(0.5, at_least=0, at_most=1)
    """Box threshold of the normalized map."""
    threshold_source: str = "default"
    """Where the threshold comes from; stored with the results."""
    crops: Literal[1, 2, 10] = 10
    """Views averaged for the class: the center crop, the crop and its mirror image, or ten crops."""
    map_views: Literal[1, 2] = 2  # ours: results/tuning.md, masks of any size; papers: 1
    """Views averaged for the map: the center crop, or the crop and its mirror image."""
    iou: float = number(0.5, above=0, below=1)
    """A box is correct if its IoU with a true box is above this."""
    average: Literal["image", "class"] = "class"  # BAS
    """Average over images or over classes."""
    frame: Frame = "crop"
    """crop: the center crop, with true boxes clipped to it (the papers). image: the whole photo."""
    inclusive_pixels: bool = True
    """Box widths count both border pixels, as in the papers' scripts."""
    compensated: bool = True
    """Use what a method adds to the network's own outputs for old classes. false: the network alone."""
    classifier: ClassifierChoice = "auto"
    """Which classifier decides the class: the classifier head, or the closed-form one (lda). auto: lda for methods that
    keep photos of all classes, else head."""

    @property
    def name(self) -> str:
        """Which map, in short."""
        map_ = f"top{self.topk}-mean" if self.topk and self.map == "topk-mean" else self.map
        return map_ if self.compensated else f"{map_}-plain"


@dataclass(frozen=True)
class Config(Section):
    """All settings of a run."""

    method: str = "fdcnet"
    """Method, as listed by `fdcnet methods`."""
    seed: int = 0
    """Seed of photo order, class order, crops, initial weights and held-out photos."""
    device: str = "auto"
    """auto, cpu, mps, cuda, or cuda:N."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    weights: LossWeights = field(default_factory=LossWeights)
    train: TrainConfig = field(default_factory=TrainConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    lda: LdaConfig = field(default_factory=LdaConfig)
    protocols: tuple[Protocol, ...] = (Protocol(),)
    """The first one is written to results.json, the others to results-<map>.json."""
    sections: Mapping[str, Section] = field(default_factory=dict)
    """Settings of the methods by name of their section. In files they lie beside the others, at the top level."""

    def section(self, kind: type[S]) -> S:
        """The settings of this kind; the defaults where none are stored."""
        return next((own for own in self.sections.values() if isinstance(own, kind)), None) or kind()


def protocol_names(protocols: Sequence[Protocol]) -> list[str]:
    """Names of result files: the map, and what distinguishes a protocol from the first one with that map."""
    first: dict[str, Protocol] = {}
    names = []
    for protocol in protocols:
        other = first.setdefault(protocol.name, protocol)
        classifier = "" if protocol.classifier == other.classifier else f"-{protocol.classifier}"
        threshold = "" if protocol.threshold == other.threshold else f"-{protocol.threshold:g}"
        name = protocol.name + classifier + threshold
        other_views = name in names and protocol.map_views != other.map_views
        names.append(f"{name}-{VIEWS[protocol.map_views]}" if other_views else name)
    return names
