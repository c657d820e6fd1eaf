"""Train the boxes of a light model on the photos that it keeps: what the page's Refine button does."""

import time
from dataclasses import asdict, replace
from pathlib import Path

from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Task
from fdcnet.errors import UserError
from fdcnet.methods import find_method
from fdcnet.methods.base import Method, State
from fdcnet.runtime.device import find_device
from fdcnet.runtime.listener import Listener
from fdcnet.runtime.progress import default_listener
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.bundle import load_bundle
from fdcnet.store.versions import add_version, writing
from fdcnet.teaching import KEEP, defaults
from fdcnet.teaching.cancel import Cancel, CancellableListener
from fdcnet.teaching.learn import LearnReport, accuracy_of
from fdcnet.training.task import learn_task


def refine(
    model: str | Path,
    *,
    epochs: int | None = None,
    keep: int = KEEP,
    device: str = "auto",
    progress: bool = True,
    listener: Listener | None = None,
    cancel: Cancel | None = None,
) -> LearnReport:
    """Train the localizer on the exemplars of all classes and save the result as a new version.

    Boxes of classes that were added in one pass start as the mean of the others; this trains them. The class of a photo
    does not change, because the statistics that decide it stay as they are.
    """
    started, model = time.monotonic(), Path(model)
    listener = CancellableListener(listener or default_listener(progress), cancel)
    given = {} if epochs is None else {"train.step_epochs": epochs}
    try:
        with writing(model):
            old = load_bundle(model)
            refuse_refinement(model, old)
            num_classes, num_photos = len(old.classes), len(old.memory)
            config = defaults.resolve(old, True, find_device(device), num_classes, num_photos, None, given)
            runtime, state = Runtime.of(replace(config, device=device), None, listener), replace(old, config=config)
            runtime.place(state.network)
            before = accuracy_of(state, runtime, state.held_out)
            _train(state, runtime)
            report = LearnReport(
                model=model,
                added=(),
                more=(),
                num_classes=num_classes,
                light=True,
                trained=True,
                old_before=before,
                old_after=accuracy_of(state, runtime, state.held_out),
                new_after=None,
                num_photos={},
                seconds=round(time.monotonic() - started, 1),
                version=0,
            )
            saved = {key: value for key, value in asdict(report).items() if key not in ("model", "version")}
            state = replace(state, config=old.config)
            return replace(report, version=add_version(state, model, saved | {"refined": True}, keep).number)
    finally:
        listener.close()


def can_refine(state: State) -> bool:
    """Whether statistics decide the class, so that training changes nothing but boxes."""
    return state.config.train.views > 0 and state.discriminant is not None and state.discriminant.layer == "tail"


def refuse_refinement(model: Path, state: State) -> None:
    if not can_refine(state):
        problem = f"{model} was not made by light lessons: training it on few photos could change how it names them."
        raise UserError(problem, "Teach it with 'fdcnet learn --full', which trains it on all photos of a lesson.")
    if set(state.memory.pixels) != set(range(len(state.classes))):
        problem = f"{model} does not keep photos of all its classes."
        raise UserError(problem, "Refine the model that it was copied from.")


def _train(state: State, runtime: Runtime) -> None:
    own = find_method(state.config.method)
    # Models of earlier versions trained their heads with distillation, which would keep the boxes as they are.
    method = own() if own.closed_form else Method()
    task = Task(len(state.task_sizes) + 1, (), len(state.classes), (), ())
    for line in defaults.describe(state, runtime, task, 0, len(state.held_out.records) if state.held_out else 0, True):
        runtime.listener.note(line)
    nothing_new = PixelCache.build((), state.config.data.size, None, runtime.device)
    learn_task(state, method, task, nothing_new, runtime)
    state.task_sizes.pop()  # it is not a task
