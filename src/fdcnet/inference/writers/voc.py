"""Pascal VOC annotations, as read by labelImg, torchvision and FiftyOne."""

import xml.etree.ElementTree as ET
from pathlib import PurePosixPath
from types import TracebackType
from typing import Self

from fdcnet.files import write_bytes
from fdcnet.inference.annotation import AnnotatedPhoto, Annotation
from fdcnet.inference.writers.base import ESCAPED, Writer, make_folder


class VocWriter(Writer):
    """A folder with Annotations/NAME.xml per photo, and the list of photos in ImageSets/Main/trainval.txt."""

    def __enter__(self) -> Self:
        make_folder(self.path / "Annotations")
        self.photo_of: dict[str, str] = {}  # name without extension -> its photo
        return self

    def add(self, photo: AnnotatedPhoto) -> None:
        name = str(PurePosixPath(photo.name).with_suffix(""))
        if (other := self.photo_of.setdefault(name, photo.name)) != photo.name:
            self.skipped.append(f"no VOC annotation for {photo.name}: {other} has the same annotation file, {name}.xml")
            return
        root = _annotation(photo)
        ET.indent(root)
        write_bytes(self.path / "Annotations" / f"{name}.xml", ET.tostring(root, "utf-8") + b"\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            listed = "".join(f"{name}\n" for name in self.photo_of)
            write_bytes(self.path / "ImageSets" / "Main" / "trainval.txt", listed.encode("utf-8", "surrogateescape"))


def _annotation(photo: AnnotatedPhoto) -> ET.Element:
    root = ET.Element("annotation")
    ET.SubElement(root, "folder").text = "JPEGImages"
    ET.SubElement(root, "filename").text = photo.name.encode("utf-8", ESCAPED).decode()
    size = ET.SubElement(root, "size")
    for key, value in zip(("width", "height", "depth"), (*photo.image_size, 3), strict=True):
        ET.SubElement(size, key).text = str(value)
    ET.SubElement(root, "segmented").text = "0"
    for annotation in photo.annotations:
        root.append(_object(annotation))
    return root


def _object(annotation: Annotation) -> ET.Element:
    element = ET.Element("object")
    ET.SubElement(element, "name").text = annotation.class_name
    ET.SubElement(element, "pose").text = "Unspecified"
    ET.SubElement(element, "truncated").text = "0"
    ET.SubElement(element, "difficult").text = "0"
    box = ET.SubElement(element, "bndbox")
    for key, value in zip(("xmin", "ymin", "xmax", "ymax"), annotation.box_xyxy, strict=True):
        ET.SubElement(box, key).text = str(round(value))
    return element
