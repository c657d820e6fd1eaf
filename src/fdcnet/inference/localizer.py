"""A saved model as a tool: photos in, predictions out."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np
import torch

from fdcnet import geometry
from fdcnet.config import Protocol
from fdcnet.data.batches import normalise, prefetch
from fdcnet.data.decode import TOO_LARGE, BadImage
from fdcnet.data.photo import Photo, as_photo, is_batch
from fdcnet.data.records import Dataset
from fdcnet.errors import UserError
from fdcnet.files import did_you_mean
from fdcnet.inference.prediction import ClassScore, Prediction, find_boxes
from fdcnet.methods import find_method
from fdcnet.methods.base import State
from fdcnet.runtime.device import autocast_for, find_device
from fdcnet.store.bundle import load_bundle

if TYPE_CHECKING:
    from fdcnet.teaching.learn import LearnReport

BATCH = {"cpu": 8, "cuda": 32}
Decoded = tuple[np.ndarray, tuple[int, int]]
OnError = Callable[[str, str], None]
"""on_error(name, reason): told of a photo that cannot be read, which is then left out."""


class Options(TypedDict, total=False):
    """What may be asked of each photo."""

    class_name: str | None
    """Whose box and map: of this class; unless given, of the best one."""
    all_regions: bool
    """Boxes of all regions above the threshold, not only of the largest."""
    top_k: int
    """How many of the best classes are listed; 5 unless given."""
    min_score: float
    """Below it the answer is "none of these"; 0 unless given."""
    threshold: float | None
    """Of the map, 0..1; unless given, the model's own."""


@dataclass(frozen=True)
class Question:
    """What is asked of each photo."""

    label: int | None  # None: the best class
    all_regions: bool
    top_k: int
    min_score: float
    threshold: float


class Localizer:
    """Names and boxes what is on photos. Thread-safe: any number of threads may call `predict`."""

    def __init__(self, state: State, device: str = "auto") -> None:
        self.device = find_device(device)
        # On a CPU MobileNetV1 is faster in the plain layout, the other backbones about as fast.
        layout = torch.channels_last if self.device.type == "cuda" else torch.contiguous_format
        state.network.to(self.device, memory_format=layout).eval()  # type: ignore[call-overload]
        self.state = state
        self.method = find_method(state.config.method)()
        self.protocol = predict_protocol(state.config.protocols)
        self.side = state.config.data.crop
        self.lesson: LearnReport | None = None

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> "Localizer":
        """A bundle, such as runs/NAME/model. The photos in its memory are not read."""
        return cls(load_bundle(Path(path), memory=False), device)

    @classmethod
    def learn(
        cls, path: str | Path, photos: str | Path | Dataset, *, device: str = "auto", **options: Any
    ) -> "Localizer":
        """What `fdcnet learn` does: make this model, or add the photos' classes to it; `lesson` tells how it went.

        `options` are those of `fdcnet.learn`. A localizer that was loaded before goes on as it is.
        """
        from fdcnet.teaching.learn import learn  # it lies above this module

        lesson = learn(path, photos, device=device, **options)
        localizer = cls.load(path, device)
        localizer.lesson = lesson
        return localizer

    @property
    def classes(self) -> list[str]:
        return self.state.classes

    @property
    def tasks(self) -> list[int]:
        """The task (from 1) in which each class was learned."""
        return self.state.task_numbers

    @overload
    def predict(self, x: list[Any] | tuple[Any, ...], **options: Unpack[Options]) -> list[Prediction]: ...

    @overload
    def predict(self, x: Any, **options: Unpack[Options]) -> Prediction: ...

    def predict(self, x: Any, **options: Unpack[Options]) -> Prediction | list[Prediction]:
        """A `Prediction` for a path, bytes of a file, PIL image, array or tensor; a list of them for several.

        An array is (height, width, 3), a tensor (3, height, width): bytes, or floats from 0 to 1. One axis more in
        front, and it is a batch. `options`: class_name, all_regions, top_k, min_score, threshold (see `Options`).
        """
        question = self._question(**options)
        if is_batch(x):
            return list(self._stream(x, question, None, None))
        photo = as_photo(x)
        try:
            return self._answer([(photo, photo.decode(self.side))], question)[0]
        except BadImage as error:
            raise _unreadable(photo, error) from error

    def predict_many(
        self,
        sources: Iterable[Any],
        *,
        batch_size: int | None = None,
        on_error: OnError | None = None,
        **options: Unpack[Options],
    ) -> Iterator[Prediction]:
        """As `predict`, for any number of photos in constant memory: threads decode while the network works.

        A photo that cannot be read is an error, unless `on_error` is there to be told.
        """
        question = self._question(**options)
        return self._stream(sources, question, batch_size, on_error)

    def _question(
        self,
        class_name: str | None = None,
        all_regions: bool = False,
        top_k: int = 5,
        min_score: float = 0.0,
        threshold: float | None = None,
    ) -> Question:
        threshold = self.protocol.threshold if threshold is None else threshold
        for what, share in (("threshold", threshold), ("minimum score", min_score)):
            if not 0 <= share <= 1:
                raise UserError(f"The {what} cannot be {share}.", "Choose a number from 0 to 1.")
        if top_k < 1:
            raise UserError(f"The best {top_k} classes cannot be listed.", "Ask for one at least.")
        label = None if class_name is None else self._label(class_name)
        return Question(label, all_regions, min(top_k, len(self.classes)), min_score, threshold)

    def _label(self, class_name: str) -> int:
        if class_name in self.classes:
            return self.classes.index(class_name)
        hint = did_you_mean(class_name, self.classes, otherwise=f"It knows {', '.join(self.classes[:5])}.")
        raise UserError(f"The model does not know the class '{class_name}'.", hint)

    def _stream(
        self, sources: Iterable[Any], question: Question, batch_size: int | None, on_error: OnError | None
    ) -> Iterator[Prediction]:
        batch_size = batch_size or BATCH[self.device.type]
        batch: list[tuple[Photo, Decoded]] = []
        for photo, decoded in self._decoded(sources, ahead=batch_size):
            try:
                batch.append((photo, decoded.result()))
            except BadImage as error:
                if on_error is None:
                    raise _unreadable(photo, error) from error
                on_error(_called(photo), str(error))
            if len(batch) == batch_size:
                yield from self._answer(batch, question)
                batch = []
        if batch:
            yield from self._answer(batch, question)

    def _decoded(self, sources: Iterable[Any], ahead: int) -> Iterator[tuple[Photo, Future[Decoded]]]:
        """Photos in their order, at most `ahead` of them decoded before they are wanted."""
        pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="decode")
        try:
            pending: deque[tuple[Photo, Future[Decoded]]] = deque()
            for source in prefetch(sources):  # a video decodes its frames as they are taken
                photo = as_photo(source)
                pending.append((photo, pool.submit(photo.decode, self.side)))
                if len(pending) > ahead:
                    yield pending.popleft()
            while pending:
                yield pending.popleft()
        finally:
            pool.shutdown(cancel_futures=True)

    @torch.inference_mode()
    def _answer(self, batch: Sequence[tuple[Photo, Decoded]], question: Question) -> list[Prediction]:
        """The map of one class only is computed, when the scores have said which."""
        lineage = self.state.network.lineage
        pixels = torch.from_numpy(np.stack([pixels for _, (pixels, _) in batch])).to(self.device)
        images = normalise(pixels, lineage.mean, lineage.std)  # (B, 3, side, side)
        if self.device.type == "cpu":
            images = images.contiguous()
        with autocast_for(self.device, self.state.config.train.precision):
            outputs = self.method.outputs(self.state, images, maps=False)
            probabilities = self.state.class_scores(outputs).softmax(dim=1)
            best, order = (
                part[:, : question.top_k] for part in probabilities.sort(dim=1, descending=True, stable=True)
            )
            labels = order[:, 0] if question.label is None else torch.full_like(order[:, 0], question.label)
            masks = self.method.masks_of(self.state, outputs, labels)
        heats = geometry.normalise_map(masks.float(), self.protocol.normalization).cpu().numpy()  # (B, h, w)
        scores = probabilities.gather(1, labels[:, None])[:, 0].tolist()
        rows = zip(batch, labels.tolist(), scores, heats, best.tolist(), order.tolist(), strict=True)
        return [self._prediction(question, *row) for row in rows]

    def _prediction(
        self,
        question: Question,
        item: tuple[Photo, Decoded],
        label: int,
        score: float,
        heat: np.ndarray,
        best: list[float],
        order: list[int],
    ) -> Prediction:
        photo, (_, image_size) = item
        known = score >= question.min_score
        found = find_boxes(heat, question.threshold, self.side, image_size, question.all_regions) if known else ()
        return Prediction(
            name=photo.name,
            image_size=image_size,
            class_name=self.classes[label] if known else None,
            score=score,
            task=self.tasks[label] if known else None,
            boxes_xyxy=found,
            top=tuple(ClassScore(self.classes[i], value, self.tasks[i]) for i, value in zip(order, best, strict=True)),
            threshold=question.threshold,
            heat=heat,
            side=self.side,
            photo=photo,
        )


def predict_protocol(protocols: Sequence[Protocol]) -> Protocol:
    """A box is wanted of one class: so the threshold that was set for class maps, where there is one."""
    return min(protocols, key=lambda protocol: (protocol.map != "class", not protocol.compensated))


def _called(photo: Photo) -> str:
    return str(photo.source) if isinstance(photo.source, Path) else photo.name


def _unreadable(photo: Photo, error: BadImage) -> UserError:
    too_large = str(error).startswith(TOO_LARGE)
    remedy = "Make it smaller first." if too_large else "Give a whole photo: jpg, png, webp, bmp, gif or tif."
    return UserError(f"{_called(photo)} cannot be read: {error}.", remedy)
