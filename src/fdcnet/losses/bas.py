"""Background activation suppression: equations 1 to 6 of the paper, one function each."""

import torch
import torch.nn.functional as F
from torch import Tensor

GOLDEN_RATIO = 0.6180339887498949
NEVER = -1e4  # score of a class that a photo does not compete with
COMPACTNESS = 0.3  # ours: results/tuning.md, evidence for every backbone


def classification(scores: Tensor, labels: Tensor, smoothing: float = 0.0, excluded: Tensor | None = None) -> Tensor:
    """L_cls (equation 1): cross-entropy of the pooled scores. (B, K), (B,) -> scalar

    `excluded` (B, K): classes that a sample does not compete with. Label smoothing gives them nothing either.
    """
    if excluded is None:
        return F.cross_entropy(scores.float(), labels, label_smoothing=smoothing)
    logs = _excluding(scores, excluded).log_softmax(1)
    among = logs.masked_fill(excluded, 0.0).sum(1) / (~excluded).sum(1)
    return -((1 - smoothing) * logs.gather(1, labels[:, None])[:, 0] + smoothing * among).mean()


def shifted_masks(loc_map: Tensor, first: int = 0, every: int = 1) -> Tensor:
    """The masks of training: each photo's logits are shifted by a different amount. (B, 1, H, W) -> (B, 1, H, W)

    The shifts are quantiles of the logistic distribution, spread evenly over the batch by the golden ratio. A mask has
    to separate the object at every shift, so it becomes nearly binary, and the box depends little on the threshold.
    Where processes share a batch, these are its photos `first`, `first + every` and so on.
    """
    numbers = first + every * torch.arange(len(loc_map), device=loc_map.device, dtype=torch.float32)
    shifts = (0.5 + numbers * GOLDEN_RATIO).frac().clamp(1e-3, 1 - 1e-3).logit()
    return (loc_map.float() + shifts[:, None, None, None]).sigmoid()


def foreground_scores(activation_map: Tensor, masks: Tensor) -> Tensor:
    """Scores inside the mask of the true class. L_cls-fg (equation 2) is their cross-entropy.

    (B, K, H2, W2), (B, 1, H1, W1) -> (B, K)
    """
    height, width = activation_map.shape[2:]
    small = F.adaptive_avg_pool2d(masks, (height, width))
    return (activation_map.float() * small).mean((2, 3))


def recognized_foreground(foreground: Tensor, scores: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
    """L_cls-fg (equation 2), each photo weighted by the probability of its class. (B, K), (B, K), (B,) -> scalar

    While the classifier knows nothing, the foreground is wrong whatever the mask covers. Its loss would then drive
    masks to nothing or to the whole photo, and the features with them.
    """
    probability = _excluding(scores, excluded).softmax(1).gather(1, labels[:, None])[:, 0].detach()
    losses = F.cross_entropy(_excluding(foreground, excluded), labels, reduction="none")
    return (losses * probability).mean()


def _excluding(scores: Tensor, excluded: Tensor | None) -> Tensor:
    return scores.float() if excluded is None else scores.float().masked_fill(excluded, NEVER)


def background_share(background_score: Tensor, image_score: Tensor) -> Tensor:
    """Share of the class score that remains when the mask is erased, at most 1. (B,), (B,) -> (B,)

    Scores below zero count as zero. If the image itself has no score, the share is 1. The image score is a constant.
    """
    background, image = F.relu(background_score), F.relu(image_score).detach()
    share = background / image.clamp(min=1e-8)
    return torch.where(background < image, share, torch.ones_like(share))


def background_suppression(share: Tensor) -> Tensor:
    """L_bas (equation 3): the mean of `background_share`. (B,) -> scalar

    Shares of 1 count as 0 and have no gradient (BAS: otherwise training collapses).
    """
    return torch.where(share < 1, share, torch.zeros_like(share)).mean()


def class_score(score_map: Tensor, labels: Tensor) -> Tensor:
    """s_all (equation 4): the pooled score of each sample's class. (B, K, H, W), (B,) -> (B,)"""
    return score_map.float().mean((2, 3)).gather(1, labels[:, None]).squeeze(1)


def area(masks: Tensor, pressure: Tensor | float = 1.0) -> Tensor:
    """L_ac (equation 5): mean share of the image covered by the mask, weighted by `pressure`.

    (B, 1, H, W), (B,) -> scalar
    """
    return (masks.mean((1, 2, 3)) * pressure).mean()


def separation(evidence: Tensor, masks: Tensor) -> Tensor:
    """Loss of masks that do not separate the evidence for a class from the rest of the photo. (B, h, w), (B, 1, H, W)

    With s the share of the positive evidence that the mask covers and a its area, it is -(s - a) / (a (1 - a))^p. With
    p = 1/2 it would be Otsu's criterion, which in long training keeps only the most telling parts of an object. With
    p = 0 masks are too large. Large and small objects count alike, so there is no weight of the area to tune. A photo
    without evidence for its class does not count.
    """
    height, width = evidence.shape[1:]
    positive, small = F.relu(evidence), F.adaptive_avg_pool2d(masks, (height, width))[:, 0]
    total = positive.sum((1, 2))
    covered = (small * positive).sum((1, 2)) / total.clamp(min=1e-6)
    share = masks.mean((1, 2, 3))
    return -torch.where(total > 0, (covered - share) / (share * (1 - share) + 1e-3) ** COMPACTNESS, 0.0).mean()


def area_pressure(share: Tensor, allowed: float) -> Tensor:
    """Weight of each photo's area. (B,) -> (B,) in 0..1

    It is 1 while at most the `allowed` share of the class score remains outside of the mask, and falls to 0 when all of
    it does. So a mask cannot shrink to nothing, and photos whose class has no score yet do not shrink their masks.
    """
    return ((1 - share.detach()) / (1 - allowed)).clamp(max=1)
