import importlib.util
from collections.abc import Callable
from types import ModuleType

import pytest

from fdcnet.models.kernels import TESTED


@pytest.fixture(scope="session")
def interpret() -> Callable[[ModuleType], ModuleType]:
    """A file once more, its kernels for the interpreter: what they are for is settled when they are defined."""

    def load(module: ModuleType) -> ModuleType:
        if importlib.util.find_spec("triton") is None:
            pytest.skip("triton is not installed")
        if not TESTED:
            pytest.skip("the kernels are not used with this version of torch")
        assert module.__file__ is not None
        spec = importlib.util.spec_from_file_location(f"{module.__name__}_interpreted", module.__file__)
        assert spec is not None
        assert spec.loader is not None
        copy = importlib.util.module_from_spec(spec)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            spec.loader.exec_module(copy)
        return copy

    return load
