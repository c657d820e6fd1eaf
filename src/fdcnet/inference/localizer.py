"""Run a saved model on photos."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np
import torch
from torch import Tensor

from fdcnet import geometry
from fdcnet.config import Protocol
from fdcnet.data.batches import normalise, prefetch
from fdcnet.data.decode import TOO_LARGE, BadImage
from fdcnet.data.photo import Photo, as_photo, is_batch
from fdcnet.data.records import Dataset
from fdcnet.errors import UserError, count
from fdcnet.files import did_you_mean
from fdcnet.inference import hub
from fdcnet.inference.engine import check_engine, use_onnx
from fdcnet.inference.prediction import ClassScore, Prediction, find_boxes
from fdcnet.methods import find_method
from fdcnet.methods.base import State
from fdcnet.runtime.device import autocast_for, find_device
from fdcnet.store.bundle import load_bundle

if TYPE_CHECKING:
    from fdcnet.teaching.learn import LearnReport

Decoded = tuple[np.ndarray, tuple[int, int]]
OnError = Callable[[str, str], None]
"""on_error(name, reason) is called for each photo that cannot be read; the photo is skipped."""


class Options(TypedDict, total=False):
    """Keyword arguments of `predict` and `predict_many`."""

    class_name: str | None
    """Class whose box and map are returned. Default: the class with the best score."""
    all_regions: bool
    """Return the boxes of all regions above the threshold, not just the largest."""
    top_k: int
    """Number of best classes to list. Default: 5."""
    min_score: float
    """Scores below this give "none of these". Default: 0."""
    threshold: float | None
    """Box threshold of the heat map, 0..1. Default: that of the model."""


@dataclass(frozen=True)
class Request:
    """Checked options, with all defaults filled in."""

    label: int | None  # None: the class with the best score
    all_regions: bool
    top_k: int
    min_score: float
    threshold: float


class Localizer:
    """Classifies and localizes objects in photos. Thread-safe."""

    def __init__(self, state: State, device: str = "auto", engine: str = "torch") -> None:
        self.device = find_device(device)
        check_engine(engine, self.device)
        # On a CPU, channels-last slows MobileNetV1 down and brings the other backbones nothing.
        layout = torch.channels_last if self.device.type == "cuda" else torch.contiguous_format
        state.network.to(self.device, memory_format=layout).eval()  # type: ignore[call-overload]
        self.state = state
        self.method = find_method(state.config.method)()
        self.protocol = predict_protocol(state.config.protocols)
        self.side = state.config.data.crop
        self.lesson: LearnReport | None = None
        if engine == "onnx":
            use_onnx(state)

    @classmethod
    def load(cls, path: str | Path, device: str = "auto", engine: str = "torch") -> "Localizer":
        """Load a model: one that `fdcnet learn` made, runs/NAME/model, or hf://owner/name from the Hugging Face hub.

        The photos in its memory are not read. `engine`: "torch", or "onnx" for ONNX Runtime, which is faster on a CPU.
        """
        folder = hub.download(path) if hub.is_address(path) else Path(path)
        return cls(load_bundle(folder, memory=False), device, engine)

    @classmethod
    def learn(
        cls, path: str | Path, photos: str | Path | Dataset, *, device: str = "auto", **options: Any
    ) -> "Localizer":
        """Run `fdcnet.learn` with these arguments and load the result. Its report is in `lesson`.

        Localizers that were loaded before keep their version of the model.
        """
        from fdcnet.teaching.learn import learn  # a higher layer, imported late

        lesson = learn(path, photos, device=device, **options)
        localizer = cls.load(path, device)
        localizer.lesson = lesson
        return localizer

    def __repr__(self) -> str:
        names = ", ".join(self.classes[:3]) + (", ..." if len(self.classes) > 3 else "")
        config = self.state.config
        return f"<Localizer: {count(len(self.classes), 'class')} ({names}), {config.model.backbone}, {self.device}>"

    @property
    def classes(self) -> list[str]:
        return self.state.classes

    @property
    def tasks(self) -> list[int]:
        """The task in which each class was learned, starting at 1."""
        return self.state.task_numbers

    @overload
    def predict(self, x: list[Any] | tuple[Any, ...], **options: Unpack[Options]) -> list[Prediction]: ...

    @overload
    def predict(self, x: Any, **options: Unpack[Options]) -> Prediction: ...

    def predict(self, x: Any, **options: Unpack[Options]) -> Prediction | list[Prediction]:
        """Predict one photo, or a list or batch of photos.

        A photo is a path, the bytes of a file, a PIL image, an array (height, width, 3) or a tensor (3, height, width)
        of bytes or of floats from 0 to 1. An additional leading axis makes a batch. For the options see `Options`.
        """
        request = self._check_options(**options)
        if is_batch(x):
            return list(self._stream(x, request, None, None))
        photo = as_photo(x)
        try:
            return self._predict_batch([(photo, photo.decode(self.side))], request)[0]
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
        """Yield predictions for any number of photos in constant memory. Threads decode while the network works.

        A photo that cannot be read raises an error unless `on_error` is given.
        """
        request = self._check_options(**options)
        return self._stream(sources, request, batch_size, on_error)

    def _check_options(
        self,
        class_name: str | None = None,
        all_regions: bool = False,
        top_k: int = 5,
        min_score: float = 0.0,
        threshold: float | None = None,
    ) -> Request:
        threshold = self.protocol.threshold if threshold is None else threshold
        for name, value in (("threshold", threshold), ("min_score", min_score)):
            if not 0 <= value <= 1:
                raise UserError(f"{name} must be from 0 to 1, not {value:g}.", "Choose a number in that range.")
        if top_k < 1:
            raise UserError(f"top_k must be at least 1, not {top_k}.", "List one class or more.")
        label = None if class_name is None else self._label(class_name)
        return Request(label, all_regions, min(top_k, len(self.classes)), min_score, threshold)

    def _label(self, class_name: str) -> int:
        if class_name in self.classes:
            return self.classes.index(class_name)
        hint = did_you_mean(class_name, self.classes, otherwise=f"It knows {', '.join(self.classes[:5])}.")
        raise UserError(f"The model does not know the class '{class_name}'.", hint)

    def _stream(
        self, sources: Iterable[Any], request: Request, batch_size: int | None, on_error: OnError | None
    ) -> Iterator[Prediction]:
        batch_size = batch_size or photos_at_a_time(self.device)
        batch: list[tuple[Photo, Decoded]] = []
        for photo, decoded in self.decode_ahead(sources, ahead=batch_size):
            try:
                batch.append((photo, decoded.result()))
            except BadImage as error:
                if on_error is None:
                    raise _unreadable(photo, error) from error
                on_error(_display_name(photo), str(error))
            if len(batch) == batch_size:
                yield from self._predict_batch(batch, request)
                batch = []
        if batch:
            yield from self._predict_batch(batch, request)

    def decode_ahead(
        self, sources: Iterable[Any], ahead: int, side: int | None = None
    ) -> Iterator[tuple[Photo, Future[Decoded]]]:
        """Photos in order, with at most `ahead` of them decoded in advance."""
        pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="decode")
        try:
            pending: deque[tuple[Photo, Future[Decoded]]] = deque()
            for source in prefetch(sources):  # reading a video decodes its frames
                photo = as_photo(source)
                pending.append((photo, pool.submit(photo.decode, side or self.side)))
                if len(pending) > ahead:
                    yield pending.popleft()
            while pending:
                yield pending.popleft()
        finally:
            pool.shutdown(cancel_futures=True)

    def as_input(self, pixels: Sequence[np.ndarray]) -> Tensor:
        """Decoded photos (side, side, 3) as the network's input (B, 3, side, side), on the device."""
        lineage = self.state.network.lineage
        images = normalise(torch.from_numpy(np.stack(pixels)).to(self.device), lineage.mean, lineage.std)
        return images.contiguous() if self.device.type == "cpu" else images

    @torch.inference_mode()
    def _predict_batch(self, batch: Sequence[tuple[Photo, Decoded]], request: Request) -> list[Prediction]:
        """Computes the scores first, and then the map of one class per photo."""
        images = self.as_input([pixels for _, (pixels, _) in batch])
        with autocast_for(self.device, self.state.config.train.precision):
            outputs = self.method.outputs(self.state, images, maps=False, head=self.state.needs_head)
            probabilities = self.state.class_scores(outputs).softmax(dim=1)
            best, order = (part[:, : request.top_k] for part in probabilities.sort(dim=1, descending=True, stable=True))
            labels = order[:, 0] if request.label is None else torch.full_like(order[:, 0], request.label)
            masks = self.method.masks_of(self.state, outputs, labels)
        heats = geometry.normalise_map(masks.float(), self.protocol.normalization).cpu().numpy()  # (B, h, w)
        scores = probabilities.gather(1, labels[:, None])[:, 0].tolist()
        unfamiliar = self.state.is_unfamiliar(outputs).tolist()
        rows = zip(batch, labels.tolist(), scores, heats, best.tolist(), order.tolist(), unfamiliar, strict=True)
        return [self._prediction(request, *row) for row in rows]

    def _prediction(
        self,
        request: Request,
        item: tuple[Photo, Decoded],
        label: int,
        score: float,
        heat: np.ndarray,
        best: list[float],
        order: list[int],
        unfamiliar: bool,
    ) -> Prediction:
        photo, (_, image_size) = item
        known, tasks = score >= request.min_score, self.tasks
        found = find_boxes(heat, request.threshold, self.side, image_size, request.all_regions) if known else ()
        return Prediction(
            name=photo.name,
            image_size=image_size,
            class_name=self.classes[label] if known else None,
            score=score,
            task=tasks[label] if known else None,
            boxes_xyxy=found,
            top=tuple(ClassScore(self.classes[i], value, tasks[i]) for i, value in zip(order, best, strict=True)),
            threshold=request.threshold,
            heat=heat,
            side=self.side,
            photo=photo,
            unfamiliar=unfamiliar,
        )


def photos_at_a_time(device: torch.device) -> int:
    return 32 if device.type == "cuda" else 8


def predict_protocol(protocols: Sequence[Protocol]) -> Protocol:
    """Predictions show the map of one class, so prefer a protocol (and its threshold) for class maps."""
    return min(protocols, key=lambda protocol: (protocol.map != "class", not protocol.compensated))


def _display_name(photo: Photo) -> str:
    return str(photo.source) if isinstance(photo.source, Path) else photo.name


def _unreadable(photo: Photo, error: BadImage) -> UserError:
    too_large = str(error).startswith(TOO_LARGE)
    remedy = "Reduce its size." if too_large else "Use an intact jpg, png, webp, bmp, gif or tif file."
    return UserError(f"{_display_name(photo)} cannot be read: {error}.", remedy)
