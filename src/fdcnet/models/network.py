"""The localization network of BAS: shared features, a classifier with its own tail, and a localizer."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fdcnet.config import ModelConfig
from fdcnet.models.backbones import build_backbone
from fdcnet.models.backbones.base import Backbone
from fdcnet.models.discriminant import Layer
from fdcnet.models.heads import CosineScores, LinearScores, LocalizerHead
from fdcnet.models.weights import pretrained_backbone


@dataclass
class Outputs:
    """All outputs of one forward pass."""

    features: Tensor  # (B, C, H1, W1)  F, shared
    tail_features: Tensor  # (B, C', H2, W2)  input of the classifier's last three layers
    class_features: Tensor  # (B, D, H2, W2)  input of its last layer
    class_map: Tensor  # (B, K, H2, W2)  M^cls
    activation_map: Tensor  # (B, K, H2, W2)  what BAS suppresses; equals the class map unless the classifier is cosine
    loc_map: Tensor  # (B, K, H1, W1)  M^CAM, logits; (B, 1, H1, W1) where labels were given; (B, 0, H1, W1) if unwanted
    mask_change: Tensor | float | None = None  # (B, K, H1, W1)  compensation that is added after the sigmoid

    @property
    def scores(self) -> Tensor:
        """(B, K)"""
        return self.class_map.float().mean((2, 3))

    def pooled(self, layer: Layer) -> Tensor:
        """Mean features over the map, which a `Discriminant` reads: (B, D)

        "both": those of the class and of the tail, each of length one, side by side.
        """
        tail, own = (features.float().mean((2, 3)) for features in (self.tail_features, self.class_features))
        if layer == "both":
            return torch.cat([F.normalize(own, dim=1), F.normalize(tail, dim=1)], dim=1)
        return tail if layer == "tail" else own

    @property
    def masks(self) -> Tensor:
        """(B, K, H1, W1) in 0..1"""
        masks = self.loc_map.float().sigmoid()
        return masks if self.mask_change is None else masks + self.mask_change


class Classifier(nn.Module):
    """f_c: the backbone's tail, two hidden convolutions and the growing score layer."""

    def __init__(self, tail: nn.Module, tail_channels: int, config: ModelConfig) -> None:
        super().__init__()
        width = config.head_width
        self.tail = tail
        relu = config.classifier == "linear" if config.feature_relu is None else config.feature_relu
        last = nn.ReLU() if relu else nn.Identity()
        self.hidden: nn.Module = nn.Sequential(
            nn.Conv2d(tail_channels, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), last
        )
        for layer in self.hidden.children():
            if isinstance(layer, nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight)  # BAS
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        if config.classifier == "cosine":
            self.output: CosineScores | LinearScores = CosineScores(
                width, config.scale, config.learn_scale, config.bas_scores == "normalized"
            )
        else:
            self.output = LinearScores(width)
        self.score_relu = config.score_relu

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """-> tail features, class features, class map, activation map"""
        tail_features = self.tail(features)
        class_features = self.hidden(tail_features)
        class_map = self.rectified(self.output(class_features))
        if isinstance(self.output, LinearScores):
            return tail_features, class_features, class_map, class_map
        return tail_features, class_features, class_map, self.rectified(self.output.activation(class_features))

    def score_of(self, features: Tensor, labels: Tensor) -> Tensor:
        """Pooled activation of each sample's own class: (B,)"""
        class_features = self.hidden(self.tail(features))
        return self.rectified(self.output.activation_of(class_features, labels)).float().mean((1, 2))

    def rectified(self, score_map: Tensor) -> Tensor:
        return F.relu(score_map) if self.score_relu else score_map


class _ScoreOf(nn.Module):
    """A module whose forward returns the score of each sample's class, as `functional_call` needs it."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return self.classifier.score_of(features, labels)


class LocalizationNetwork(nn.Module):
    def __init__(self, backbone: Backbone, config: ModelConfig) -> None:
        super().__init__()
        self.lineage = backbone.lineage
        self.backbone: nn.Module = backbone.shared
        self.classifier = Classifier(backbone.tail, backbone.tail_channels, config)
        starts = (config.localizer_start == "zero", config.later_rows == "random")
        self.localizer = LocalizerHead(backbone.shared_channels, config.sharing, *starts)
        self.drift: nn.Module | None = None  # see models/drift.py
        self.widths = (backbone.shared_channels, backbone.tail_channels, config.head_width)

    @property
    def num_classes(self) -> int:
        return self.localizer.num_classes

    def grow(self, num_new: int) -> None:
        """Add classes. The outputs for old classes do not change."""
        self.classifier.output.grow(num_new)
        self.localizer.grow(num_new)

    def forward(self, images: Tensor, labels: Tensor | None = None, maps: bool = True, head: bool = True) -> Outputs:
        """With `labels`, compute only the map of each sample's class; without `maps`, no maps.

        Without `head`, stop at the tail's features: those of the class and its scores are empty.
        """
        features = self.backbone(images)
        if head:
            tail_features, class_features, class_map, activation_map = self.classifier(features)
        else:
            tail_features = self.classifier.tail(features)
            class_features = class_map = activation_map = tail_features[:, :0]
        if not maps:
            loc_map = features[:, :0]
        else:
            loc_map = self.localizer(features) if labels is None else self.localizer.of_class(features, labels)
        return Outputs(features, tail_features, class_features, class_map, activation_map, loc_map)

    def background_score(self, features: Tensor, masks: Tensor, labels: Tensor, own_statistics: bool = False) -> Tensor:
        """s_bg (equation 4): the score of each sample's class when the mask is erased from the shared features: (B,)

        Its gradient reaches the mask alone: the features and the classifier's parameters are held constant. Batch norm
        uses its running statistics. With those of the erased batch (`own_statistics`, BAS), it would scale up what
        little is left of the features.
        """
        erased = features.detach() * (1 - masks).to(features.dtype)
        values = {f"classifier.{name}": value.detach() for name, value in self.classifier.named_parameters()}
        if own_statistics:  # copied, so that the running averages do not change
            values |= {f"classifier.{name}": value.clone() for name, value in self.classifier.named_buffers()}
        with nullcontext() if own_statistics else in_eval_mode(self.classifier):
            return functional_call(_ScoreOf(self.classifier), values, (erased, labels))

    def masks_of(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """The mask of one class per image, from outputs made without maps: (B, H1, W1)"""
        return self.localizer.of_class(outputs.features, labels).float().sigmoid()[:, 0]

    @staticmethod
    def is_head(name: str) -> bool:
        """Whether a parameter belongs to the heads, which train at a higher rate than the pretrained rest."""
        return name.startswith(("classifier.hidden.", "classifier.output.", "localizer."))

    def frozen_copy(self) -> "LocalizationNetwork":
        """A frozen copy, as the reference of a later task."""
        return copy.deepcopy(self).requires_grad_(False).eval()


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Afterwards every part is in the mode that it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def new_network(config: ModelConfig, seed: int) -> LocalizationNetwork:
    """A network without classes, with a pretrained backbone unless the settings say otherwise."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LocalizationNetwork(pretrained_backbone(config.backbone, config.weights, config.cut), config)


def empty_network(config: ModelConfig, lineage: str, num_classes: int) -> LocalizationNetwork:
    """The network without its values, to be filled from a file."""
    network = LocalizationNetwork(build_backbone(config.backbone, lineage, config.cut), config)
    network.grow(num_classes)
    return network
