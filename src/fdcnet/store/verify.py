"""Compare all files of a model with their checksums."""

from dataclasses import dataclass
from pathlib import Path

from fdcnet.store.description import describe_bundle, own_files, problems, read_description
from fdcnet.store.layout import VERSIONS, current_dir, current_number, has_bundle, kept_numbers


@dataclass(frozen=True)
class VerifiedVersion:
    number: int
    current: bool
    problems: tuple[str, ...]
    num_files: int = 0
    has_checksums: bool = False

    @property
    def mark(self) -> str:
        return " (current)" if self.current else ""


def verify(path: Path) -> list[VerifiedVersion]:
    """All versions of a model, oldest first. Raises `UserError` if there is no model."""
    path = Path(path)
    current = current_number(path)
    if not has_bundle(path):
        read_description(path)  # raises the right error
    if current is None:
        return [_verify(current_dir(path), 1, True)]
    return [_verify(path / VERSIONS / str(number), number, number == current) for number in kept_numbers(path)]


def _verify(bundle: Path, number: int, current: bool) -> VerifiedVersion:
    if found := problems(bundle):
        return VerifiedVersion(number, current, tuple(found))
    description = describe_bundle(bundle)
    num_files = 1 + len(list(own_files(bundle, description)))
    return VerifiedVersion(number, current, (), num_files, "files" in description)
