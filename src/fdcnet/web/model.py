"""The model that is served: the version in use, whatever changes it, and the earlier ones that are kept."""

import base64
import io
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from fdcnet.data.decode import upright
from fdcnet.errors import count
from fdcnet.inference.localizer import Localizer, Options
from fdcnet.inference.prediction import ClassScore, Prediction
from fdcnet.store.bundle import current_number, has_bundle, read_current, read_description
from fdcnet.store.versions import after_tasks, is_unborn, versions
from fdcnet.web.guard import Refused

LOADED = 4  # versions kept in memory
PREVIEW = 1600  # pixels of the longer side


class Model:
    """Thread-safe. A lesson or another command may change the version in use between any two questions."""

    def __init__(self, path: Path, device: str = "auto") -> None:
        self.path, self.device = path, device
        self._loaded: dict[tuple[Path, int], Localizer] = {}
        self._lock = threading.Lock()

    @property
    def exists(self) -> bool:
        return has_bundle(self.path)

    @property
    def version(self) -> int:
        return current_number(self.path) or 1

    def localizer(self, bundle: Path | None = None) -> Localizer:
        """Of one bundle; of the version in use unless one is named."""
        if bundle is None:
            if not self.exists:
                raise Refused(409, "The model knows no class yet.", "Teach it two classes first.")
            return read_current(self.path, self.localizer)
        with self._lock:
            file = bundle / "fdcnet.json"
            key = (bundle, file.stat().st_mtime_ns if file.is_file() else 0)
            found = self._loaded.pop(key, None) or Localizer.load(bundle, self.device)
            self._loaded[key] = found  # the latest at the end
            while len(self._loaded) > LOADED:
                self._loaded.pop(next(iter(self._loaded)))
            return found

    def look(
        self, photo: bytes, after: int | None, heat: bool, preview: bool, **options: Unpack[Options]
    ) -> dict[str, Any]:
        """What the model says about a photo, now or as it was after an earlier task."""
        localizer, how = self.localizer(), "now"
        num_tasks = max(localizer.tasks)
        if after is not None and after > num_tasks:
            raise Refused(404, f"There is no task {after}.", f"The model has learned {count(num_tasks, 'task')}.")
        if after is not None and after < num_tasks:
            kept = after_tasks(self.path).get(after)
            how = "kept" if kept else "restricted"
            localizer = self.localizer(kept.path) if kept else localizer
        if how == "restricted" and after is not None:
            prediction = _among_earlier(localizer, photo, after, options)
        else:
            prediction = localizer.predict(photo, **options)
        known = [task for task in localizer.tasks if after is None or task <= after]
        facts = prediction.to_dict(heat) | {"side": prediction.side, "how": how, "num_classes": len(known)}
        if preview:
            facts["preview"] = _preview(photo)
        return facts

    def facts(self) -> dict[str, Any]:
        """What the page needs before the first photo."""
        facts: dict[str, Any] = {"name": self.path.resolve().name, "version": 0, "tasks": [], "threshold": 0.5}
        if not self.exists:
            return facts
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
        return facts | {
            "version": self.version,
            "tasks": tasks,
            "threshold": localizer.protocol.threshold,
            "method": config.method,
            "backbone": config.model.backbone,
            "report": self.run_folder is not None,
        }

    def history(self) -> list[dict[str, Any]]:
        """All versions that are kept, the oldest first."""
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
        """Of the run that made it, if it still lies there."""
        folder = self.path.resolve().parent
        return folder if (folder / "run.json").is_file() else None

    def refuse_what_is_no_model(self) -> None:
        if self.path.exists() and not is_unborn(self.path):
            read_description(self.path)


def _among_earlier(localizer: Localizer, photo: bytes, after: int, options: Options) -> Prediction:
    """The answer where only the classes of the first tasks may be named: their scores sum to one again."""
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


def _preview(photo: bytes) -> str:
    """For formats that browsers do not show."""
    buffer = io.BytesIO()
    upright(photo, PREVIEW).save(buffer, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
