"""COCO annotations, as read by pycocotools, CVAT and FiftyOne."""

import shutil
import tempfile
from typing import Any

from fdcnet.inference.annotation import AnnotatedPhoto, Annotation, Polygon, xywh
from fdcnet.inference.writers.base import ESCAPED, FileWriter, JsonList, as_json


class CocoWriter(FileWriter):
    """One JSON file. Annotations are collected in a second file, because COCO lists them after the photos."""

    def begin(self) -> None:
        categories = [{"id": i, "name": name, "supercategory": ""} for i, name in enumerate(self.classes, start=1)]
        self.file.write(f'{{"info": {{"description": "fdcnet"}},\n"categories": {as_json(categories)},\n"images": ')
        self.images = JsonList(self.file)
        second = tempfile.TemporaryFile("w+", encoding="utf-8", errors=ESCAPED)  # noqa: SIM115 (closed by `closing`)
        self.second = self.closing.enter_context(second)
        self.annotations = JsonList(self.second)
        self.num_images = self.num_objects = 0

    def add(self, photo: AnnotatedPhoto) -> None:
        self.num_images += 1
        width, height = photo.image_size
        self.images.add({"id": self.num_images, "file_name": photo.name, "width": width, "height": height})
        for annotation in photo.annotations:
            self.num_objects += 1
            ids = {"id": self.num_objects, "image_id": self.num_images}
            category = {"category_id": self.label_of[annotation.class_name] + 1}
            self.annotations.add(ids | category | _shape(annotation))

    def end(self) -> None:
        self.images.end()
        self.annotations.end()
        self.file.write(',\n"annotations": ')
        self.second.seek(0)
        shutil.copyfileobj(self.second, self.file)
        self.file.write("}\n")


def _shape(annotation: Annotation) -> dict[str, Any]:
    x, y, w, h = xywh(annotation.box_xyxy)
    polygon = annotation.polygon
    return {
        "bbox": [round(value, 2) for value in (x, y, w, h)],
        "area": round(_area(polygon) if polygon else w * h, 2),  # COCO's area is that of the mask
        "segmentation": [[round(value, 2) for point in polygon for value in point]] if polygon else [],
        "iscrowd": 0,
        "score": round(annotation.score, 4),
    }


def _area(polygon: Polygon) -> float:
    following = (*polygon[1:], polygon[0])
    return abs(sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in zip(polygon, following, strict=True))) / 2
