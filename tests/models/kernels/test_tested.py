import pytest

from fdcnet.models.kernels import TESTED, in_use, own_kernels, was_tested_with


@pytest.mark.parametrize(
    ("version", "used"),
    [
        ("2.11.0", True),
        ("2.13.0+cpu", True),
        ("2.13.1a0+git1234", True),
        ("2.14.0", False),
        ("2.9.1", False),
        ("3.0.0", False),
    ],
)
def test_kernels_run_only_on_versions_they_were_tested_with(version: str, used: bool) -> None:
    assert was_tested_with(version) is used


def test_kernels_run_only_where_they_are_wanted() -> None:
    assert not in_use()
    with own_kernels():
        assert in_use() is TESTED
        with own_kernels(False):
            assert not in_use()
        assert in_use() is TESTED
    assert not in_use()
