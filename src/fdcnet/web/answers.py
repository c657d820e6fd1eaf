"""What the API answers: the source of its OpenAPI description."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Box = tuple[float, float, float, float]


class _Answer(BaseModel):
    model_config = ConfigDict(populate_by_name=True)


class Problem(_Answer):
    problem: str
    remedy: str = Field(description="What to do about it.")


class Score(_Answer):
    class_: str = Field(alias="class")
    score: float
    task: int = Field(description="In which the model learned it, from 1.")


class Look(_Answer):
    """As `fdcnet predict --json` writes it, and what else the page shows."""

    width: int
    height: int
    class_: str | None = Field(alias="class", description="null: none of these.")
    score: float
    task: int | None
    box: Box | None = Field(description="x0, y0, x1, y1 in pixels of the photo as displayed.")
    boxes: list[Box]
    top: list[Score]
    threshold: float
    side: int = Field(description="Of the square in which boxes are found: resize the map to it, compare, scale back.")
    how: Literal["now", "kept", "restricted"] = Field(
        description="Who answered: the version in use; a kept earlier one; or, since that one is not kept, the version "
        "in use among the classes known then."
    )
    num_classes: int = Field(description="Known to whoever answered.")
    heat: list[list[float]] | None = Field(default=None, description="The map of the class, 0 to 1, row by row.")
    preview: str | None = Field(
        default=None, description="The photo as a data address, for formats browsers do not show."
    )


class TaskFacts(_Answer):
    task: int
    classes: list[str]
    kept: bool = Field(description="Whether the version after this task is kept.")


class Limits(_Answer):
    photo_bytes: int
    lesson_bytes: int
    photos: int
    classes: int
    fewest: int = Field(description="Photos that a new class needs.")


class ModelFacts(_Answer):
    name: str
    version: int = Field(description="0: there is no model yet.")
    tasks: list[TaskFacts]
    threshold: float
    method: str | None = None
    backbone: str | None = None
    report: bool = Field(default=False, description="Whether /run has the report of the run that made it.")
    learning: bool
    limits: Limits


class Accuracy(_Answer):
    """Percent of held-out photos."""

    top1_cls: float | None
    gt_known: float | None
    top1_loc: float | None
    num_photos: int


class VersionFacts(_Answer):
    version: int
    current: bool
    parent: int | None
    created: str
    num_classes: int
    num_tasks: int
    added: list[str]
    more: list[str]
    light: bool | None
    seconds: float | None
    old_before: Accuracy | None
    old_after: Accuracy | None
    new_after: Accuracy | None
    bytes: int


class Lesson(_Answer):
    state: Literal["none", "learning", "done", "failed", "cancelled"]
    cancelling: bool = False
    classes: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = Field(default=[], description="Photos that cannot be used: name and reason.")
    doing: str = ""
    share: float = Field(default=0.0, description="Of what it is doing, 0 to 1.")
    seconds: float = 0.0
    seconds_left: float | None = None
    notes: list[str] = []
    epochs: list[dict[str, Any]] = Field(default=[], description="Of each one so far: phase, epoch, epochs, losses.")
    photos: list[dict[str, Any]] = Field(
        default=[], description="Before and after; /api/lesson/photos/N is the picture."
    )
    report: dict[str, Any] | None = None
    problem: str | None = None
    remedy: str | None = None
