"""Plain fine-tuning: no memory, no distillation. What everything else must beat."""

from fdcnet.methods.base import Method


class Finetune(Method):
    name = "finetune"
    summary = "Goes on training on the new photos alone: no memory, no distillation. Shows how much is forgotten."
    reference = "Wu et al., Background Activation Suppression, CVPR 2022 (the network and its losses)"
