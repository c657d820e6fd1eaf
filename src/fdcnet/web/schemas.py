"""The responses of the API. OpenAPI describes them from here."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Box = tuple[float, float, float, float]


class _Response(BaseModel):
    model_config = ConfigDict(populate_by_name=True)


class Problem(_Response):
    problem: str
    remedy: str = Field(description="What to do about it.")


class ClassScore(_Response):
    class_: str = Field(alias="class")
    score: float
    task: int = Field(description="Task in which the model learned the class, from 1.")


class Prediction(_Response):
    """The output of `fdcnet predict --json`, plus what the page needs."""

    width: int
    height: int
    class_: str | None = Field(alias="class", description="null if no class reaches min_score.")
    score: float
    task: int | None
    box: Box | None = Field(description="x0, y0, x1, y1 in pixels of the photo as displayed.")
    boxes: list[Box]
    top: list[ClassScore]
    threshold: float
    unfamiliar: bool = Field(description="Whether the photo may show none of the known classes.")
    side: int = Field(
        description="Side of the square in which boxes are found: resize the map to it, threshold it, scale back."
    )
    answered_by: Literal["current", "kept", "restricted"] = Field(
        description="The version in use; a kept earlier version; or, if that one was not kept, the version in use "
        "restricted to the classes known then."
    )
    num_classes: int = Field(description="Number of classes to choose from.")
    heat: list[list[float]] | None = Field(default=None, description="Map of the class, 0 to 1, row by row.")


class BatchEntry(_Response):
    name: str = Field(description="File name of the photo.")
    prediction: Prediction | None = None
    problem: str | None = Field(default=None, description="Why there is no prediction.")


class TaskInfo(_Response):
    task: int
    classes: list[str]
    kept: bool = Field(description="Whether the version after this task is kept.")


class Limits(_Response):
    photo_bytes: int
    lesson_bytes: int
    photos: int
    classes: int
    min_photos: int = Field(description="Number of photos that a new class needs.")


class ModelInfo(_Response):
    name: str
    version: int = Field(description="0 if there is no model yet.")
    tasks: list[TaskInfo]
    threshold: float
    method: str | None = None
    backbone: str | None = None
    is_example: bool = Field(default=False, description="Whether it is the example. The first lesson replaces it.")
    can_refine: bool = Field(default=False, description="Whether /api/lesson/refine can train its boxes.")
    report: bool = Field(default=False, description="Whether /run has a report of the training run.")
    learning: bool
    limits: Limits


class Accuracy(_Response):
    """Percent of held-out photos."""

    top1_cls: float | None
    gt_known: float | None
    top1_loc: float | None
    num_photos: int
    by_class: dict[str, float | None] = {}


class ClassAccuracy(_Response):
    """Percent of the held-out photos of a class that are recognized."""

    version: int
    before: float | None = Field(description="Before the lesson that made this version.")
    after: float


class ClassInfo(_Response):
    name: str
    task: int
    num_learned: int | None = Field(description="Photos used in the lessons of the kept versions, if known.")
    num_exemplars: int
    num_held_out: int
    num_thumbnails: int
    history: list[ClassAccuracy] = Field(description="One entry per kept version, oldest first.")


class VersionInfo(_Response):
    version: int
    current: bool
    parent: int | None
    created: str
    num_classes: int
    num_tasks: int
    added: list[str]
    more: list[str]
    box_training: str = Field(description="How the boxes were trained, if this version differs in its boxes alone.")
    light: bool | None
    seconds: float | None
    old_before: Accuracy | None
    old_after: Accuracy | None
    new_after: Accuracy | None
    bytes: int


class LessonInfo(_Response):
    state: Literal["none", "learning", "done", "failed", "cancelled", "lost"]
    cancelling: bool = False
    is_first: bool = Field(default=False, description="Whether the model did not exist before.")
    is_refinement: bool = Field(default=False, description="Whether it trains the boxes on the photos that are kept.")
    classes: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = Field(default=[], description="Unusable photos: name and reason.")
    stage: str = ""
    progress: float = Field(default=0.0, description="Of the whole lesson, 0 to 1. Never decreases.")
    seconds: float = 0.0
    seconds_left: float | None = None
    messages: list[str] = []
    epochs: list[dict[str, Any]] = Field(default=[], description="For each epoch: phase, epoch, epochs, losses.")
    loss_names: dict[str, str] = Field(default={}, description="What the losses of the epochs are called in words.")
    photos: list[dict[str, Any]] = Field(
        default=[], description="Predictions before and after; /api/lesson/photos/N is the picture."
    )
    num_examples: int = Field(default=0, description="After the example lesson: new photos to try.")
    report: dict[str, Any] | None = None
    problem: str | None = None
    remedy: str | None = None


class LabelledPhotoInfo(_Response):
    number: int
    name: str
    class_: str = Field(alias="class")
    width: int
    height: int
    found: Box = Field(description="The box that the model found.")
    box: Box | None = Field(description="The box that will be exported; null if the photo was rejected.")
    confidence: float = Field(description="Ranks the boxes that were found. Not a probability.")
    reviewed: bool = Field(description="Whether a person accepted, corrected or rejected it.")


class Correction(_Response):
    box: Box | None = Field(description="x0, y0, x1, y1 in pixels. The box that was found accepts it; null rejects.")


class LearnedBoxes(_Response):
    version: int = Field(description="The version that was made.")
    num_boxes: int = Field(description="Checked boxes that it learned from.")
    num_redrawn: int = Field(description="Other boxes that it drew again.")


class LabelsInfo(_Response):
    state: Literal["none", "boxing", "learning", "ready", "failed"]
    classes: list[str] = []
    num_boxed: int = 0
    num_photos: int = 0
    photos: list[LabelledPhotoInfo] = Field(default=[], description="When ready: least certain first.")
    stage: str = Field(default="", description="While learning from boxes: what is being done.")
    progress: float = Field(default=0.0, description="While learning from boxes: 0 to 1. Never decreases.")
    learned: LearnedBoxes | None = Field(default=None, description="After learning from boxes.")
    skipped: list[dict[str, str]] = Field(default=[], description="Unusable photos: name and reason.")
    problem: str | None = None
    remedy: str | None = None
