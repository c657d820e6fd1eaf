"""Loss terms of the compared methods, one function each."""

import torch.nn.functional as F
from torch import Tensor

from fdcnet.losses.subset import mean_over


def less_forget(class_features: Tensor, old_class_features: Tensor) -> Tensor:
    """Rebalancing: one minus the cosine between a photo's pooled features now and before. (B, D, H, W) each"""
    now, before = class_features.float().mean((2, 3)), old_class_features.float().mean((2, 3))
    return 1 - F.cosine_similarity(now, before, dim=1).mean()


def margin_ranking(cosines: Tensor, labels: Tensor, num_old: int, rivals: int = 2, margin: float = 0.5) -> Tensor:
    """Rebalancing: a photo of an old class should be closer to it, by a margin, than to the nearest new classes.

    (B, K), (B,) -> scalar, the mean over the photos of old classes
    """
    known = labels < num_old
    nearest = cosines[:, num_old:].topk(min(rivals, cosines.shape[1] - num_old), dim=1).values  # (B, rivals)
    lacking = F.relu(margin - cosines.gather(1, labels[:, None]) + nearest).mean(1)
    return mean_over(lacking, known)


def rarity(counts: Tensor, beta: float) -> Tensor:
    """FOSTER: how rare each class is, by its effective number of photos; 1 on average. (K,) -> (K,)"""
    weights = (1 - beta) / (1 - beta**counts)
    return weights / weights.mean()


def balanced_distillation(scores: Tensor, teacher_scores: Tensor, weights: Tensor, temperature: float) -> Tensor:
    """FOSTER: cross-entropy with the teacher's class probabilities, after each is multiplied by its class's weight.

    (B, K), (B, K), (K,) -> scalar
    """
    wanted = (teacher_scores.float() / temperature).softmax(1) * weights
    wanted = wanted / wanted.sum(1, keepdim=True)
    return -(wanted * (scores.float() / temperature).log_softmax(1)).sum(1).mean()
