"""The served model: the version in use, whoever changes it, and the earlier versions that are kept."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from fdcnet.errors import count
from fdcnet.inference.localizer import Localizer, Options
from fdcnet.inference.prediction import ClassScore, Prediction
from fdcnet.store.bundle import current_number, has_bundle, read_current, read_description
from fdcnet.store.versions import after_tasks, is_unborn, lineage, versions
from fdcnet.teaching.refine import can_refine
from fdcnet.web.classes import KeptPhotos, accuracy_history, num_learned, read_kept_photos
from fdcnet.web.engine import use_onnx_soon
from fdcnet.web.guard import Refused
from fdcnet.web.pool import WorkerPool

MAX_LOADED = 4  # versions in memory


class ServedModel:
    """Thread-safe. A lesson or another command may change the version in use at any time."""

    def __init__(self, path: Path, device: str = "auto", engine: str = "torch") -> None:
        self.path, self.device, self.engine = path, device, engine
        self._loaded: dict[tuple[Path, int], Localizer] = {}
        self._kept_photos: tuple[int, dict[str, KeptPhotos]] = (0, {})  # of one version
        self._lock = threading.Lock()

    @property
    def exists(self) -> bool:
        return has_bundle(self.path)

    @property
    def version(self) -> int:
        return current_number(self.path) or 1

    def localizer(self, bundle: Path | None = None) -> Localizer:
        """The model in `bundle`; by default the version in use."""
        if bundle is None:
            if not self.exists:
                raise Refused(409, "The model knows no classes yet.", "Teach it two classes first.")
            return read_current(self.path, self.localizer)
        with self._lock:
            file = bundle / "fdcnet.json"
            key = (bundle, file.stat().st_mtime_ns if file.is_file() else 0)
            localizer = self._loaded.pop(key, None) or self._load(bundle)
            self._loaded[key] = localizer  # most recently used last
            while len(self._loaded) > MAX_LOADED:
                self._loaded.pop(next(iter(self._loaded)))
            return localizer

    def _load(self, bundle: Path) -> Localizer:
        localizer = Localizer.load(bundle, self.device)
        if self.engine == "onnx":
            use_onnx_soon(localizer, bundle)
        return localizer

    def predict(self, photo: bytes, after: int | None, heat: bool, **options: Unpack[Options]) -> dict[str, Any]:
        """The prediction for a photo by the version in use, or by the model as it was after task `after`."""
        localizer, answered_by = self.localizer(), "current"
        num_tasks = max(localizer.tasks)
        if after is not None and after > num_tasks:
            raise Refused(404, f"There is no task {after}.", f"The model has learned {count(num_tasks, 'task')}.")
        if after is not None and after < num_tasks:
            kept = after_tasks(self.path).get(after)
            answered_by = "kept" if kept else "restricted"
            localizer = self.localizer(kept.path) if kept else localizer
        if answered_by == "restricted" and after is not None:
            prediction = _predict_earlier_classes(localizer, photo, after, options)
        else:
            prediction = localizer.predict(photo, **options)
        known = [task for task in localizer.tasks if after is None or task <= after]
        extra = {"side": prediction.side, "answered_by": answered_by, "num_classes": len(known)}
        return prediction.to_dict(heat) | extra

    def info(self) -> dict[str, Any]:
        """What the page needs before the first photo."""
        info: dict[str, Any] = {"name": self.path.resolve().name, "version": 0, "tasks": [], "threshold": 0.5}
        if not self.exists:
            return info
        localizer, kept = self.localizer(), after_tasks(self.path)
        tasks = [
            {
                "task": task,
                "classes": [name for name, own in zip(localizer.classes, localizer.tasks, strict=True) if own == task],
                "kept": task in kept,
            }
            for task in sorted(set(localizer.tasks))
        ]
        config = localizer.state.config
        return info | {
            "version": self.version,
            "tasks": tasks,
            "threshold": localizer.protocol.threshold,
            "method": config.method,
            "backbone": config.model.backbone,
            "can_refine": can_refine(localizer.state),
            "report": self.run_folder is not None,
        }

    def classes(self) -> list[dict[str, Any]]:
        """Photo counts and accuracy of each class, in the order in which they were learned."""
        if not self.exists:
            return []
        localizer, kept, lessons = self.localizer(), self.kept_photos(), lineage(self.path)[::-1]
        return [
            {
                "name": name,
                "task": task,
                "num_learned": num_learned(name, lessons),
                "num_exemplars": kept[name].num_exemplars,
                "num_held_out": kept[name].num_held_out,
                "num_thumbnails": len(kept[name].thumbnails),
                "history": accuracy_history(name, lessons),
            }
            for name, task in zip(localizer.classes, localizer.tasks, strict=True)
            if name in kept
        ]

    def kept_photos(self) -> dict[str, KeptPhotos]:
        """The photos in the version in use, by class. They are read once."""
        version = self.version
        if self._kept_photos[0] != version:
            self._kept_photos = version, read_kept_photos(self.path)
        return self._kept_photos[1]

    def history(self) -> list[dict[str, Any]]:
        """All kept versions, oldest first."""
        return [
            {
                "version": version.number,
                "current": version.current,
                "parent": version.parent,
                "created": version.created.isoformat(),
                "num_classes": len(version.classes),
                "num_tasks": version.num_tasks,
                "added": list(version.added),
                "more": list(version.learned.get("more", ())),
                "box_training": version.box_training,
                "light": version.learned.get("light"),
                "seconds": version.learned.get("seconds"),
                "old_before": version.learned.get("old_before"),
                "old_after": version.learned.get("old_after"),
                "new_after": version.learned.get("new_after"),
                "bytes": version.num_bytes,
            }
            for version in versions(self.path)
        ]

    @property
    def run_folder(self) -> Path | None:
        """The folder of the training run that made the model, if the model is still in it."""
        folder = self.path.resolve().parent
        return folder if (folder / "run.json").is_file() else None

    def refuse_other_folders(self) -> None:
        if self.path.exists() and not is_unborn(self.path):
            read_description(self.path)


class ServedModels:
    """The user's model, and the example as long as the user's model does not exist."""

    def __init__(self, path: Path, device: str = "auto", engine: str = "torch") -> None:
        self.own = ServedModel(path, device, engine)
        self.example: ServedModel | None = None
        self.pool: WorkerPool | None = None

    def predict(self, photo: bytes, after: int | None, heat: bool, **options: Unpack[Options]) -> dict[str, Any]:
        """As `ServedModel.predict`, by a worker process if there are any."""
        model = self.current
        if self.pool is None:
            return model.predict(photo, after, heat, **options)
        return self.pool.predict(model.path, photo, after=after, heat=heat, **options)

    @property
    def current(self) -> ServedModel:
        return self.example if self.shows_example and self.example else self.own

    @property
    def shows_example(self) -> bool:
        return self.example is not None and self.example.exists and not self.own.exists


def _predict_earlier_classes(localizer: Localizer, photo: bytes, after: int, options: Options) -> Prediction:
    """The prediction among the classes of the first tasks. Their scores are rescaled to sum to one."""
    wanted = options.copy()
    min_score, top_k = wanted.pop("min_score", 0.0), wanted.get("top_k", 5)
    everything = localizer.predict(photo, top_k=len(localizer.classes))
    earlier = [entry for entry in everything.top if entry.task <= after]
    total = sum(entry.score for entry in earlier) or 1.0
    top = [ClassScore(name, score / total, task) for name, score, task in earlier]
    wanted["class_name"] = wanted.get("class_name") or top[0].class_name
    chosen = next((entry for entry in top if entry.class_name == wanted["class_name"]), None)
    if chosen is None:
        problem = f"After task {after} the model did not know '{wanted['class_name']}'."
        raise Refused(400, problem, "Ask for a later task.")
    found = replace(localizer.predict(photo, **wanted), score=chosen.score, top=tuple(top[:top_k]))
    return found if chosen.score >= min_score else replace(found, class_name=None, task=None, boxes_xyxy=())
