"""Knowledge distillation from the previous network: equations 7 to 9 of the paper, one function each."""

import torch.nn.functional as F
from torch import Tensor

from fdcnet.losses.subset import mean_over


def kd_classes(scores: Tensor, old_scores: Tensor, temperature: float = 1.0, over: str = "old") -> Tensor:
    """L_kd-cls (equation 7): KL divergence from the old class probabilities, over the old classes. (B, K), (B, K_old)

    The new probabilities are among the old classes (`over` "old"), or among all of them ("all"). Mean over the batch;
    times the squared temperature, so that its gradient does not depend on it.
    """
    num_old = old_scores.shape[1]
    compared = scores[:, :num_old] if over == "old" else scores
    new = F.log_softmax(compared.float() / temperature, dim=1)[:, :num_old]
    old = F.log_softmax(old_scores.float() / temperature, dim=1)
    return F.kl_div(new, old, reduction="batchmean", log_target=True) * temperature**2


def kd_masks(masks: Tensor, old_masks: Tensor, known: Tensor, distance: str = "mean_square") -> Tensor:
    """L_kd-loc (equation 8): difference of the masks of the true class, over the samples whose class the previous
    network knows. (B, 1, H, W), (B, 1, H, W), (B,) bool -> scalar

    `distance`: "mean_square" of the cells, or the L2 "norm" of the whole mask.
    """
    square = (masks.float() - old_masks.float()).square()
    difference = square.mean((1, 2, 3)) if distance == "mean_square" else (square.sum((1, 2, 3)) + 1e-12).sqrt()
    return mean_over(difference, known)


def kd_features(features: Tensor, old_features: Tensor) -> Tensor:
    """L_kd-feat (equation 9): one minus the mean cosine between the vectors at the same place. (B, C, H, W) each"""
    return 1 - F.cosine_similarity(features.float(), old_features.float(), dim=1).mean()
