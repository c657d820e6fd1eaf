import pytest
import torch

from fdcnet.errors import UserError
from fdcnet.runtime.device import autocast_for, device_name, find_device

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu() -> None:
    assert find_device("auto") == CPU
    assert find_device("cpu") == CPU
    for name in ("cuda", "cuda:0"):
        with pytest.raises(UserError, match="No GPU is available to PyTorch") as error:
            find_device(name)
        assert "--device cpu" in error.value.remedy


@pytest.mark.usefixtures("two_gpus")
def test_with_two_gpus() -> None:
    assert find_device("auto") == CUDA
    assert find_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UserError, match="no GPU 'cuda:2'") as error:
        find_device("cuda:2")
    assert "sees 2, counted from cuda:0" in error.value.remedy


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is an Apple GPU")
def test_an_apple_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="no Apple GPU"):
        find_device("mps")


def test_an_apple_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert find_device("mps") == torch.device("mps")
    assert device_name(torch.device("mps")) == "Apple GPU"


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "meta", "xla"])
def test_what_is_no_device_here(name: str) -> None:
    with pytest.raises(UserError, match=f"There is no device '{name}'") as error:
        find_device(name)
    assert error.value.remedy == "Choose auto, cpu, cuda, cuda:N or mps."


@pytest.mark.parametrize(
    ("device", "precision", "bf16"),
    [
        (CPU, "auto", False),
        (CPU, "fp32", False),
        (CPU, "bf16", True),
        (CUDA, "auto", True),
        (CUDA, "fp32", False),
        (CUDA, "bf16", True),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # a CPU build of torch doubts autocast for a GPU
@pytest.mark.usefixtures("two_gpus")
def test_precision(device: torch.device, precision: str, bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *arguments: True)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    autocast = autocast_for(device, precision)
    assert autocast._enabled is bf16
    assert autocast.device == device.type
    assert autocast.fast_dtype == torch.bfloat16


def test_bf16_really_computes_in_it() -> None:
    a = torch.ones(2, 2)
    with autocast_for(CPU, "bf16"):
        assert (a @ a).dtype == torch.bfloat16
    with autocast_for(CPU, "auto"):
        assert (a @ a).dtype == torch.float32


def test_a_cpu_is_described_by_its_threads() -> None:
    assert device_name(CPU).startswith(f"CPU ({torch.get_num_threads()} of ")
