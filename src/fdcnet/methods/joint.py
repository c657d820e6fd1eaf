"""Joint training on all tasks at once: the upper bound."""

from fdcnet.methods.base import Method


class Joint(Method):
    name = "joint"
    summary = "Trains on the photos of all tasks at once: the upper bound."
    light = True
    reference = "Wu et al., Background Activation Suppression, CVPR 2022"
    one_task = True
