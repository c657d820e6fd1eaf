"""Teach the localizer from boxes that a person checked (mixed supervision). Everything else stays as it is."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fdcnet import geometry
from fdcnet.data.batches import rng
from fdcnet.data.decode import BadImage, decode
from fdcnet.errors import UserError, count
from fdcnet.inference.annotation import Annotation
from fdcnet.inference.localizer import predict_protocol
from fdcnet.methods.base import State
from fdcnet.runtime.listener import Listener
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.bundle import load_bundle
from fdcnet.store.versions import add_version, versions, writing
from fdcnet.teaching import KEEP
from fdcnet.teaching.label_boxes import LabelledPhoto
from fdcnet.training.light import shared_views
from fdcnet.training.seeding import seed_of

STEPS, BATCH_SIZE, RATE = 60, 16, 1e-3  # ours: results/tuning.md
KEPT = 5.0  # weight of what masks lose inside of the boxes; ours: results/tuning.md, learning from checked boxes
STEEPNESS = 10.0  # of the soft threshold. A step function would have no gradient

Example = tuple[LabelledPhoto, Annotation]


def checked_boxes(photos: Iterable[LabelledPhoto]) -> list[Example]:
    found = [(photo, annotation) for photo in photos if photo.reviewed for annotation in photo.annotations]
    if not found:
        problem = "There are no checked boxes to learn from."
        raise UserError(problem, "Correct some boxes and pass them with --corrections FILE.")
    return found


def learn_from_boxes(
    model: Path,
    target: Path,
    examples: Sequence[Example],
    device: str,
    cache_dir: Path | None,
    listener: Listener,
    keep: int = KEEP,
) -> None:
    """Train the localizer of `model` on checked boxes and save the result as a new version of `target`."""
    with writing(target):
        state = load_bundle(model)
        if state.network.drift is not None:
            problem = f"{model} adds drift modules to its localizer, which cannot learn from boxes."
            raise UserError(problem, "Use a model that 'fdcnet learn' made.")
        light = next((version.learned.get("light") for version in versions(model) if version.current), None)
        listener.note(f"Teaching the localizer from {count(len(examples), 'checked box')}.")
        runtime = Runtime.of(replace(state.config, device=device), cache_dir, listener)
        runtime.place(state.network)
        train_localizer(state, runtime, examples)
        add_version(state, target, {"light": light, "boxes": len(examples)}, keep)


def train_localizer(state: State, runtime: Runtime, examples: Sequence[Example]) -> None:
    """The shared features of each photo and its mirror image are computed once; then only the localizer is trained."""
    config, network = state.config, state.network
    labels = torch.tensor([state.classes.index(annotation.class_name) for _, annotation in examples])
    pixels = torch.stack([decoded(photo, config.data.size) for photo, _ in examples])
    seed_key = (seed_of(config.seed, "boxes"),)
    two_views = replace(state, config=replace(config, train=replace(config.train, views=2)))
    no_exemplars = torch.zeros(len(labels), dtype=torch.bool)
    shown = shared_views(two_views, runtime, network.backbone, pixels, labels, no_exemplars, seed_key)
    side = shown.features.shape[2]
    targets = torch.stack([box_mask(a.box_xyxy, photo.image_size, side) for photo, a in examples]).to(runtime.device)
    protocol, earlier = predict_protocol(config.protocols), copy.deepcopy(network.localizer).requires_grad_(False)
    parameters = [network.localizer.weight, network.localizer.bias]
    optimizer = torch.optim.Adam(parameters, lr=RATE)
    draws = rng(*seed_key)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - step / STEPS)
        rows = torch.from_numpy(draws.permutation(len(labels))[:BATCH_SIZE])
        mirrored = step % 2
        features = shown.features[mirrored, rows].to(runtime.device).float().permute(0, 3, 1, 2)
        own = labels[rows].to(runtime.device)
        now, before = (
            geometry.normalise_map(localizer.of_class(features, own).sigmoid()[:, 0], protocol.normalization)
            for localizer in (network.localizer, earlier)
        )
        above = torch.sigmoid(STEEPNESS * (now - protocol.threshold))
        boxes = targets[rows.to(runtime.device)]
        boxes = boxes.flip(-1) if mirrored else boxes
        loss = projection_loss(above, boxes) + KEPT * lost_inside(now, before, boxes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        runtime.listener.progress("learning from boxes", step + 1, STEPS)


def decoded(photo: LabelledPhoto, size: int) -> Tensor:
    """(S, S, 3) uint8"""
    try:
        return torch.from_numpy(decode(photo.path, size))
    except BadImage as error:
        problem = f"{photo.name} has a checked box, but cannot be read: {error}."
        raise UserError(problem, "Replace the photo, or remove it.") from error


def projection_loss(masks: Tensor, boxes: Tensor) -> Tensor:
    """How much masks and boxes differ along each axis: (B, H, W), (B, H, W) -> scalar

    A box says how far the object reaches, not which of its pixels belong to it. So the largest value of each row and
    each column is compared (1 - Dice), as BoxInst does.
    """
    along_x, along_y = (_dice_loss(masks.amax(axis), boxes.amax(axis)) for axis in (1, 2))
    return (along_x + along_y).mean()


def lost_inside(now: Tensor, before: Tensor, boxes: Tensor) -> Tensor:
    """How much of each map is gone inside of its box: (B, H, W) each -> scalar

    Otherwise an object could fall apart: a few spots that reach as far as the box have the right projections, but the
    largest of them is too small.
    """
    lost = (before - now).clamp(min=0).square() * boxes
    return (lost.sum((1, 2)) / boxes.sum((1, 2)).clamp(min=1)).mean()


def _dice_loss(first: Tensor, second: Tensor) -> Tensor:
    """(B, N), (B, N) -> (B,)"""
    return 1 - 2 * (first * second).sum(1) / (first.square() + second.square()).sum(1).clamp(min=1e-6)


def box_mask(box: Sequence[float], image_size: tuple[int, int], side: int) -> Tensor:
    """1 where the centre of a cell is inside the box: (side, side)"""
    centres = (np.arange(side) + 0.5) / side
    across, down = (
        (centres > low / length) & (centres < high / length)
        for low, high, length in zip(box[:2], box[2:], image_size, strict=True)
    )
    return torch.from_numpy(down[:, None] & across).float()
