"""All methods by name: ours, and those that other packages register in the entry-point group `fdcnet.methods`."""

from typing import TYPE_CHECKING

from fdcnet.registry import Entry, Registry

if TYPE_CHECKING:
    from fdcnet.methods.base import Method

METHODS: "Registry[type[Method]]" = Registry(
    "There is no method",
    {
        "finetune": Entry("fdcnet.methods.finetune:Finetune", "plain fine-tuning, which forgets"),
        "rebalancing": Entry("fdcnet.methods.rebalancing:Rebalancing", "LUCIR, CVPR 2019"),
        "ccil": Entry("fdcnet.methods.ccil:CCIL", "CCIL, CVPR Workshops 2021"),
        "aanets": Entry("fdcnet.methods.aanets:AANets", "AANets, CVPR 2021"),
        "foster": Entry("fdcnet.methods.foster:FOSTER", "FOSTER, ECCV 2022"),
        "baseline": Entry("fdcnet.methods.baseline:Baseline", "memory and distillation, ACM MM 2023"),
        "fdcnet": Entry("fdcnet.methods.fdcnet:FDCNet", "the baseline with drift compensation, ACM MM 2023"),
        "slda": Entry("fdcnet.methods.slda:StreamingLDA", "frozen features, for few photos; CVPR Workshops 2020"),
        "joint": Entry("fdcnet.methods.joint:Joint", "all classes at once, the upper bound"),
    },
    group="fdcnet.methods",
    hint="'fdcnet methods' explains them.",
)


def find_method(name: str) -> "type[Method]":
    return METHODS.find(name)
