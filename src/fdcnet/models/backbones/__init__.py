"""The backbones by name."""

import difflib

from fdcnet.errors import UserError
from fdcnet.models.backbones.base import Backbone, Cut, Lineage
from fdcnet.models.backbones.efficientnet_lite import EfficientNetLite0
from fdcnet.models.backbones.inception_v3 import InceptionV3
from fdcnet.models.backbones.mobilenet_v1 import MobileNetV1
from fdcnet.models.backbones.resnet50 import ResNet50
from fdcnet.models.backbones.tiny import Tiny
from fdcnet.models.backbones.vgg16 import VGG16

__all__ = ["BACKBONES", "Backbone", "Cut", "Lineage", "build_backbone", "find_backbone"]

BACKBONES: dict[str, type[Backbone]] = {
    "mobilenet_v1": MobileNetV1,
    "inception_v3": InceptionV3,
    "efficientnet_lite0": EfficientNetLite0,
    "resnet50": ResNet50,
    "vgg16": VGG16,
    "tiny": Tiny,
}


def find_backbone(name: str) -> type[Backbone]:
    if name in BACKBONES:
        return BACKBONES[name]
    near = difflib.get_close_matches(name, BACKBONES, n=1, cutoff=0.4)
    known = f"Did you mean '{near[0]}'?" if near else f"Choose one of: {', '.join(BACKBONES)}."
    raise UserError(f"There is no backbone '{name}'.", known)


def build_backbone(name: str, lineage: str | None = None, cut: Cut = "averaged") -> Backbone:
    """The graph with random weights; name, lineage and cut say all that a saved model needs to rebuild it."""
    kind = find_backbone(name)
    lineages = {known.name: known for known in kind.lineages}
    if lineage is not None and lineage not in lineages:
        raise UserError(f"{name} has no weights of lineage '{lineage}'.", f"Choose one of: {', '.join(lineages)}.")
    return kind(lineages[lineage] if lineage else kind.lineages[0], cut)
