"""All methods by name: ours, and those that other packages register in the entry-point group `fdcnet.methods`."""

import difflib
from importlib.metadata import entry_points

from fdcnet.errors import UserError
from fdcnet.methods.aanets import AANets
from fdcnet.methods.base import Method
from fdcnet.methods.baseline import Baseline
from fdcnet.methods.ccil import CCIL
from fdcnet.methods.fdcnet import FDCNet
from fdcnet.methods.finetune import Finetune
from fdcnet.methods.foster import FOSTER
from fdcnet.methods.joint import Joint
from fdcnet.methods.rebalancing import Rebalancing

METHODS: dict[str, type[Method]] = {
    kind.name: kind for kind in (Finetune, Rebalancing, CCIL, AANets, FOSTER, Baseline, FDCNet, Joint)
}


def all_methods() -> dict[str, type[Method]]:
    """Ours first; a package of somebody else adds to them but replaces none."""
    return {entry.name: entry.load() for entry in entry_points(group="fdcnet.methods")} | METHODS


def find_method(name: str) -> type[Method]:
    methods = all_methods()
    if name not in methods:
        near = difflib.get_close_matches(name, methods, n=1, cutoff=0.4)
        hint = f"Did you mean '{near[0]}'?" if near else f"There are: {', '.join(methods)}."
        raise UserError(f"There is no method '{name}'.", hint + " 'fdcnet methods' explains them.")
    return methods[name]
