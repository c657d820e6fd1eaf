"""Run commands of fdcnet on a simulated GPU with rules of Apple's: no float64, no tensors of the CPU beside its own.

python tests/apple.py '[["learn", "model", "photos", "--device", "mps"], ...]'

`--device mps` selects a backend of PyTorch written in Python: its tensors wrap tensors of the CPU. The real device has
more rules, such as operators that it lacks.
"""

import json
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "apple"
FLOAT64 = (torch.float64, torch.complex128)
aten = torch.ops.aten
MIXED = (aten._to_copy.default, aten.copy_.default, aten.index.Tensor)  # which take tensors of both devices


class Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, Backend())
DEVICE = torch.device(NAME, 0)


class AppleTensor(Tensor):
    wrapped: Tensor

    @staticmethod
    def __new__(cls, wrapped: Tensor) -> "AppleTensor":
        _refuse_float64(wrapped.dtype)
        layout = {"strides": wrapped.stride(), "storage_offset": wrapped.storage_offset(), "dtype": wrapped.dtype}
        tensor = Tensor._make_wrapper_subclass(cls, wrapped.size(), device=DEVICE, **layout)
        tensor.wrapped = wrapped
        return tensor

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        return compute(function, *arguments, **(options or {}))

    def tolist(self) -> Any:
        return self.wrapped.tolist()

    def numpy(self, **options: Any) -> NoReturn:
        raise TypeError("numpy reads tensors of the CPU only")

    __array__ = numpy


def compute(function: Any, *arguments: Any, **options: Any) -> Any:
    """On the CPU, for the device."""
    tensors = [value for value in tree_flatten((arguments, options))[0] if isinstance(value, Tensor)]
    own = [tensor for tensor in tensors if isinstance(tensor, AppleTensor)]
    device = options.get("device") or (DEVICE if own else torch.device("cpu"))
    if own:
        _refuse_float64(options.get("dtype"))
    if own and function not in MIXED and any(t.dim() and not isinstance(t, AppleTensor) for t in tensors):
        raise RuntimeError(f"{function}: tensors on two devices")
    if options.get("device"):
        options["device"] = "cpu"
    arguments, options = tree_map(lambda value: getattr(value, "wrapped", value), (arguments, options))
    if function is aten.copy_.default:
        arguments[0].copy_(arguments[1])
        return tensors[0]

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor) or torch.device(device).type != NAME:
            return value
        same = [tensor for tensor in own if tensor.wrapped is value]  # of an operator that changes its argument
        return same[0] if same else AppleTensor(value)

    return tree_map(wrap, function(*arguments, **options))


def _refuse_float64(dtype: torch.dtype | None) -> None:
    if dtype in FLOAT64:
        raise TypeError("The device has no float64")


def _moved(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """PyTorch cannot make tensors of such a backend from numbers."""

    def made(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
        made_here = data if isinstance(data, AppleTensor) else make(data, dtype=dtype)
        return made_here.to(device=device or made_here.device, dtype=dtype or made_here.dtype)

    return made


def _empty(size: Any, *strides: Any, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    make = torch.empty_strided if strides else torch.empty
    return AppleTensor(make(size, *strides, dtype=dtype, device="cpu"))


EVERY, ATEN = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
EVERY.fallback(compute, dispatch_key="PrivateUse1")
ATEN.impl("empty.memory_format", _empty, "PrivateUse1")
ATEN.impl("empty_strided", _empty, "PrivateUse1")
torch.tensor, torch.as_tensor = _moved(torch.tensor), _moved(torch.as_tensor)
torch.inference_mode = lambda mode=True: torch.no_grad()  # type: ignore[assignment, misc]  # hides the parts of operators


def main(commands: list[list[str]]) -> None:
    from fdcnet.runtime import device

    find_device = device.find_device
    device.find_device = lambda name: DEVICE if name == "mps" else find_device(name)  # before others import it
    from fdcnet.cli import main as run

    for words in commands:
        sys.argv = ["fdcnet", *words]
        try:
            run()
        except SystemExit as end:
            if end.code:
                raise


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
