"""Label Studio tasks with predictions."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from fdcnet.files import write_bytes
from fdcnet.inference.annotation import AnnotatedPhoto, Annotation, xywh
from fdcnet.inference.writers.base import ESCAPED, FileWriter, JsonList

LOCAL_FILES = "/data/local-files/?d="  # where Label Studio serves files of its own machine


class LabelStudioWriter(FileWriter):
    """A JSON file of tasks, and beside it the labeling interface that they need, as .xml."""

    def __init__(self, path: Path, classes: Sequence[str], prefix: str = LOCAL_FILES) -> None:
        super().__init__(path, classes)
        self.prefix = prefix

    def begin(self) -> None:
        self.tasks = JsonList(self.file)

    def add(self, photo: AnnotatedPhoto) -> None:
        address = self.prefix + quote(photo.name, errors="surrogateescape")
        self.tasks.add({"data": {"image": address}, "predictions": [as_prediction(photo)]})

    def end(self) -> None:
        self.tasks.end()
        self.file.write("\n")
        if not self.to_stdout:
            write_bytes(self.path.with_suffix(".xml"), labelling_interface(self.classes).encode("utf-8", ESCAPED))


def labelling_interface(classes: Sequence[str]) -> str:
    """The project configuration in which the regions below can be shown and corrected."""
    labels = "".join(f"    <Label value={quoteattr(name)}/>\n" for name in classes)
    return (
        '<View>\n  <Image name="image" value="$image"/>\n'
        f'  <RectangleLabels name="label" toName="image">\n{labels}  </RectangleLabels>\n</View>\n'
    )


def as_prediction(photo: AnnotatedPhoto, from_name: str = "label", to_name: str = "image") -> dict[str, Any]:
    """One prediction of a task. Its score is that of the least certain region: Label Studio can sort by it."""
    names = {"from_name": from_name, "to_name": to_name}
    regions = [_rectangle(annotation, photo.image_size) | names for annotation in photo.annotations]
    score = min((region["score"] for region in regions), default=0.0)
    return {"model_version": "fdcnet", "score": score, "result": regions}


def _rectangle(annotation: Annotation, image_size: tuple[int, int]) -> dict[str, Any]:
    """Label Studio's coordinates are percent of the photo."""
    width, height = image_size
    x, y, w, h = xywh(annotation.box_xyxy)
    return {
        "id": uuid.uuid4().hex[:10],
        "type": "rectanglelabels",
        "original_width": width,
        "original_height": height,
        "image_rotation": 0,
        "score": round(annotation.score, 4),
        "value": {
            "x": 100 * x / width,
            "y": 100 * y / height,
            "width": 100 * w / width,
            "height": 100 * h / height,
            "rotation": 0,
            "rectanglelabels": [annotation.class_name],
        },
    }
