"""Match corrected boxes with the photos, check them, and apply them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from fdcnet.data.decode import BadImage, image_size
from fdcnet.errors import UserError, count
from fdcnet.files import did_you_mean
from fdcnet.inference.annotation import Annotation
from fdcnet.teaching.label_boxes import LabelledPhoto
from fdcnet.teaching.label_photos import KnownPhoto
from fdcnet.teaching.label_shapes import Shape, bounds, is_same_box, read_shapes

SLACK = 0.01  # fraction of the photo by which a box may reach beyond it; it is then clipped
ROUNDING = 1.0  # pixels by which a box may differ in another format


@dataclass(frozen=True)
class Correction:
    annotations: tuple[Annotation, ...]
    submitted: bool  # a person confirmed this photo, so it counts as reviewed even if nothing changed


def read_corrections(file: Path, photos: Sequence[KnownPhoto], classes: Sequence[str]) -> dict[str, Correction]:
    """Corrections by the name of the photo. Anything that does not fit the photos is an error."""
    finder = _Finder(photos)
    found: dict[str, Correction] = {}
    missing: list[str] = []
    for name, shapes, submitted in read_shapes(file):
        photo = finder.find(name)
        if photo is None:
            missing.append(name)
            continue
        try:
            size = image_size(photo.path)
        except BadImage as error:
            problem = f"{file} corrects {photo.name}, which cannot be read: {error}."
            raise UserError(problem, "Replace the photo, or remove its entry.") from None
        annotations = tuple(checked(shape, photo.name, size, classes, str(file)) for shape in shapes)
        found[photo.name] = Correction(annotations, submitted)
    if missing:
        problem = f"{file} corrects {count(len(missing), 'photo')} not in this set, such as {missing[0]}."
        raise UserError(problem, "Name the photos for which the corrections were made, or remove these entries.")
    return found


class _Finder:
    """Finds photos by name, with or without extension; by the file name alone where that is unique."""

    def __init__(self, photos: Sequence[KnownPhoto]) -> None:
        self.known: dict[str, KnownPhoto | None] = {}
        for photo in photos:
            path = PurePosixPath(photo.name)
            for key in {path.name, path.stem} - {photo.name}:
                self.known[key] = None if key in self.known else photo
        for photo in photos:
            self.known[str(PurePosixPath(photo.name).with_suffix(""))] = photo
        self.known |= {photo.name: photo for photo in photos}

    def find(self, name: str) -> KnownPhoto | None:
        path = PurePosixPath(name)
        uploaded = path.name.partition("-")[2]  # Label Studio puts eight characters and a dash before uploads
        for key in (name, *("/".join(path.parts[i:]) for i in range(1, len(path.parts))), uploaded):
            if (photo := self.known.get(key)) is not None:
                return photo
        return None


def checked(shape: Shape, photo: str, size: tuple[int, int], classes: Sequence[str], source: str) -> Annotation:
    """The shape as an annotation of `photo`. `source` is named in errors."""
    if shape.class_name not in classes:
        remedy = did_you_mean(shape.class_name, classes, f"The classes are: {', '.join(classes[:5])} ...")
        raise UserError(f"{source} gives {photo} the class '{shape.class_name}', which is unknown.", remedy)
    width, height = size
    scale = (width, height) if shape.fractions else (1, 1)
    points = [(x * scale[0], y * scale[1]) for x, y in shape.points]
    inside = all(
        -SLACK * side - 1 <= value <= (1 + SLACK) * side + 1  # false for NaN
        for point in points
        for value, side in zip(point, size, strict=True)
    )
    if not inside:
        problem = f"{source}: a shape on {photo} reaches beyond the photo, which has {width} x {height} pixels."
        raise UserError(problem, "Correct the shape, or remove it.")
    clipped = tuple((min(max(x, 0.0), width), min(max(y, 0.0), height)) for x, y in points)
    box = bounds(clipped)
    if box[0] >= box[2] or box[1] >= box[3]:
        raise UserError(f"{source}: a box on {photo} is empty.", "Correct the box, or remove it.")
    return Annotation(shape.class_name, box, 1.0, clipped if len(clipped) > 2 else ())


def apply_correction(
    photo: LabelledPhoto, correction: Correction, before: Sequence[Annotation] | None, tolerance: float = ROUNDING
) -> LabelledPhoto:
    """`before` is what the person saw. Boxes that were confirmed unchanged keep their masks."""
    if before is None or not is_unchanged(correction, before, tolerance):
        return replace(photo, annotations=correction.annotations, reviewed=True)
    if not correction.submitted:
        return photo
    return replace(photo, annotations=tuple(replace(annotation, score=1.0) for annotation in before), reviewed=True)


def is_unchanged(correction: Correction, annotations: Sequence[Annotation], tolerance: float = ROUNDING) -> bool:
    """Whether a correction repeats what was there."""
    left = list(annotations)
    for corrected in correction.annotations:
        same = (a for a in left if is_same_box(a.box_xyxy, corrected.box_xyxy, tolerance))
        match = next((a for a in same if a.class_name == corrected.class_name), None)
        if match is None:
            return False
        left.remove(match)
    return not left
