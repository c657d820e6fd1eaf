"""Lessons that cannot work are refused before a photo is opened or a file is written."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fdcnet.data.records import Dataset
from fdcnet.errors import UserError
from fdcnet.methods.base import State
from fdcnet.store.bundle import CURRENT, has_bundle
from fdcnet.store.versions import is_unborn
from fdcnet.teaching.holdout import FEWEST_PHOTOS

LONGEST_NAME = 200


def refuse_swapped_arguments(model: Path, photos: str | Path | Dataset) -> None:
    remedy = "Name the model first, then the photos: fdcnet learn MODEL PHOTOS"
    if not isinstance(photos, Dataset) and any((Path(photos) / file).is_file() for file in ("fdcnet.json", CURRENT)):
        raise UserError(f"{photos} is a model, not a folder of photos.", remedy)
    if model.exists() and not has_bundle(model) and not is_unborn(model):
        raise UserError(f"{model} already exists and is not a model.", remedy)


def refuse_options(holdout: float | None, memory: int | None, epochs: int | None, keep: int) -> None:
    if holdout is not None and not 0 <= holdout < 1:
        raise UserError(
            f"holdout cannot be {holdout:g}.", "Use a fraction below 1, such as 0.2, or 0 to hold out none."
        )
    if memory is not None and memory < 1:
        raise UserError(f"memory cannot be {memory}.", "Keep at least one photo of each class.")
    if epochs is not None and epochs < 1:
        raise UserError(
            f"epochs cannot be {epochs}.", "Use 1 or more, or leave it out to choose by the number of photos."
        )
    if keep < 0:
        raise UserError(f"keep cannot be {keep}.", "Use the number of earlier versions to keep, or 0.")


def refuse_lesson(model: Path, old: State | None, dataset: Dataset, more: bool, new_network: bool) -> None:
    """`more`: photos of known classes are allowed. `new_network`: a backbone or weights were given."""
    if old and new_network:
        raise UserError(
            f"{model} already has a backbone: {old.config.model.backbone}.",
            "Leave out --backbone and --weights, or start another model.",
        )
    if not dataset.train:
        raise UserError(f"{dataset.name} has no training photos.", "Put photos beside test/, or into train/.")
    _refuse_names(dataset.classes)
    known = [name for name in dataset.classes if old and name in old.classes]
    if known and not more:
        others = f" and {len(known) - 1} more" if len(known) > 1 else ""
        raise UserError(
            f"The model already knows '{known[0]}'{others}.",
            "Add --more to teach it further photos of them, or rename those folders.",
        )
    if old is None and len(dataset.classes) < 2:
        raise UserError(
            f"There is only one class ({', '.join(dataset.classes)}).",
            "Start a model with photos of two classes or more.",
        )
    new = [name for name in dataset.classes if name not in known]
    refuse_few_photos(Counter(record.label for record in dataset.train), new)


def refuse_few_photos(counts: Counter[str], classes: Sequence[str]) -> None:
    for name in classes:
        if counts[name] < FEWEST_PHOTOS:
            few = {0: "no training photos", 1: "one training photo"}.get(
                counts[name], f"{counts[name]} training photos"
            )
            raise UserError(f"Class '{name}' has {few}.", f"Add at least {FEWEST_PHOTOS} photos; 20 or more is better.")


def _refuse_names(classes: Sequence[str]) -> None:
    for name in classes:
        if len(name) > LONGEST_NAME:
            problem = f"The class name '{name[:40]}...' has {len(name)} characters."
            raise UserError(problem, f"Shorten it to {LONGEST_NAME} characters or fewer.")
        if not name.isprintable():
            raise UserError(f"The class name {name!r} has characters that cannot be printed.", "Rename the class.")
