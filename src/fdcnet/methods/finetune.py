"""Plain fine-tuning without memory or distillation: the lower bound."""

from fdcnet.methods.base import Method


class Finetune(Method):
    name = "finetune"
    summary = "Keeps training on the new photos only: no memory, no distillation. Shows how much is forgotten."
    light = True
    reference = "Wu et al., Background Activation Suppression, CVPR 2022 (the network and its losses)"
