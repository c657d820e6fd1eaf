"""Joint training: all tasks at once. What an incremental method can hope for at best."""

from fdcnet.methods.base import Method


class Joint(Method):
    name = "joint"
    summary = "Trains on the photos of all tasks at once: the upper bound."
    light = True
    reference = "Wu et al., Background Activation Suppression, CVPR 2022"
    one_task = True
