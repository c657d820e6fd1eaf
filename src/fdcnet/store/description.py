"""fdcnet.json: what a bundle is, the SHA-256 of each of its files, and a digest of its own content."""

import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fdcnet.errors import UserError
from fdcnet.files import did_you_mean, open_regular, sha256, write_bytes
from fdcnet.store.layout import (
    DESCRIPTION,
    DamagedModel,
    current_number,
    has_bundle,
    kept_numbers,
    read_current,
    read_limited,
    reading,
    refuse_links,
)

FORMAT = 2
WITHOUT_CHECKSUMS = 1
MAX_CLASSES = 100_000
NEEDED = {"format", "method", "lineage", "classes", "task_sizes", "num_compensated", "config"}
OWN_FILES = re.compile(
    r"weights\.safetensors|discriminant\.safetensors|learned\.json"
    r"|(memory|held_out)/(manifest\.jsonl|given\.json|images/[^/\\]+)"
)
"""All that a bundle may consist of, beside fdcnet.json."""


def seal(bundle: Path, description: dict[str, Any]) -> None:
    """Write fdcnet.json, with the checksums of all other files of the bundle."""
    found = {file.relative_to(bundle).as_posix(): file for file in sorted(bundle.rglob("*")) if file.is_file()}
    own = [name for name in found if OWN_FILES.fullmatch(name)]
    with ThreadPoolExecutor() as pool:
        files = dict(zip(own, pool.map(lambda name: sha256(found[name]), own), strict=True))
    content = {key: value for key, value in description.items() if key != "digest"}
    content |= {"format": FORMAT, "files": files}
    text = json.dumps(content | {"digest": _digest(content)}, indent=1, ensure_ascii=False)
    write_bytes(bundle / DESCRIPTION, text.encode("utf-8", "backslashreplace"))


def read_description(path: Path) -> dict[str, Any]:
    return read_current(path, lambda bundle: _describe(path, bundle))


def describe_bundle(bundle: Path) -> dict[str, Any]:
    """As `read_description`, but of exactly this folder."""
    return _describe(bundle, bundle)


def check_file(bundle: Path, name: str, description: dict[str, Any]) -> Path:
    """Compare a file with its checksum; returns its path."""
    file = bundle / name
    if not (expected := _expected(description, name)):
        open_regular(file, follow_links=False).close()
    elif sha256(file, follow_links=False) != expected:
        raise ValueError(f"{name} does not match its checksum")
    return file


def read_file(bundle: Path, name: str, description: dict[str, Any]) -> bytes:
    """The content of a small file, compared with its checksum."""
    content = read_limited(bundle / name)
    expected = _expected(description, name)
    if expected and hashlib.sha256(content).hexdigest() != expected:
        raise ValueError(f"{name} does not match its checksum")
    return content


def has_file(bundle: Path, name: str, description: dict[str, Any]) -> bool:
    """Whether a bundle has an optional file: as listed, or as found if it was written before there were checksums."""
    return name in description["files"] if "files" in description else (bundle / name).is_file()


def problems(bundle: Path) -> list[str]:
    """What is wrong with one bundle: every file is compared with its checksum."""
    try:
        description = describe_bundle(bundle)
        names = list(own_files(bundle, description))
    except UserError as error:
        return [error.problem]

    def problem(name: str) -> str | None:
        try:
            with reading(bundle / name):
                check_file(bundle, name, description)
        except UserError as error:
            return error.problem
        return None

    with ThreadPoolExecutor() as pool:
        return [text for text in pool.map(problem, names) if text]


def own_files(bundle: Path, description: dict[str, Any]) -> Iterator[str]:
    """The names of all files that belong to a bundle, beside fdcnet.json. Other files are never read or copied."""
    if "files" in description:
        yield from description["files"]
        return
    for name in ("weights.safetensors", "discriminant.safetensors", "learned.json"):
        if (bundle / name).is_file():
            yield name
    for folder in ("memory", "held_out"):
        refuse_links(bundle / folder, bundle / folder / "images")
        if (bundle / folder / "manifest.jsonl").is_file():
            with reading(bundle / folder):
                lines = read_limited(bundle / folder / "manifest.jsonl").decode("utf-8").split("\n")
                images = [str(json.loads(line)["file"]) for line in lines if line]
            yield from (f"{folder}/images/{name}" for name in images if "/" not in name)
            yield from (f"{folder}/{n}" for n in ("manifest.jsonl", "given.json") if (bundle / folder / n).is_file())


def _describe(path: Path, bundle: Path) -> dict[str, Any]:
    file = bundle / DESCRIPTION
    if not file.is_file():
        raise _no_model(path)
    refuse_links(file, *(bundle / name for name in ("memory", "memory/images", "held_out", "held_out/images")))
    with reading(file):
        description: dict[str, Any] = json.loads(read_limited(file))
        number = description["format"]
        if type(number) is not int or number < WITHOUT_CHECKSUMS:
            raise ValueError("it has no format number")
        if number <= FORMAT:
            _check(description)
    if number > FORMAT:
        problem = f"{path} was written by a newer fdcnet (format {number}, this one reads {FORMAT})."
        raise UserError(problem, "Update fdcnet.")
    return description


def _check(description: dict[str, Any]) -> None:
    if missing := NEEDED - description.keys():
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    if description["format"] == FORMAT:
        content = {key: value for key, value in description.items() if key != "digest"}
        if description["digest"] != _digest(content):
            raise ValueError("it does not match its own digest")
        if not all(OWN_FILES.fullmatch(name) and type(digest) is str for name, digest in description["files"].items()):
            raise ValueError("it names a file that is not part of a model")
    elif description.keys() & {"files", "digest"}:
        raise ValueError("its format number does not match its content")
    names, sizes = [entry["name"] for entry in description["classes"]], description["task_sizes"]
    if not all(isinstance(name, str) for name in names) or len(names) > MAX_CLASSES:
        raise ValueError("a class has no name" if len(names) <= MAX_CLASSES else f"it has {len(names):,} classes")
    if not all(type(size) is int and size > 0 for size in sizes) or sum(sizes) != len(names):
        raise ValueError(f"it has {len(names)} classes, which is not the sum of its tasks")
    if type(description["num_compensated"]) is not int or not 0 <= description["num_compensated"] <= len(names):
        raise ValueError("its number of compensated classes is impossible")


def _expected(description: dict[str, Any], name: str) -> str:
    """The checksum of a file; empty for a bundle without checksums."""
    if "files" not in description:
        return ""
    if name not in description["files"]:
        raise ValueError(f"{name} is not listed in {DESCRIPTION}")
    return str(description["files"][name])


def _digest(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _no_model(path: Path) -> UserError:
    if kept := kept_numbers(path):
        problem = f"The current version of {path}, {current_number(path)}, is missing."
        return DamagedModel(problem, f"Use another version: fdcnet rollback {path} --to {kept[-1]}")
    remedy = "A model is what 'fdcnet learn' writes, or runs/NAME/model of 'fdcnet train'."
    if path.exists():
        return UserError(f"{path} is not a model: it has no {DESCRIPTION}.", remedy)
    neighbours = [other.name for other in path.parent.glob("*") if other.is_dir() and _looks_like_a_model(other)]
    hint = did_you_mean(path.name, neighbours, otherwise=remedy, prefix=f"{path.parent / 'x'}"[:-1])
    return UserError(f"There is no model {path}.", hint)


def _looks_like_a_model(path: Path) -> bool:
    try:
        return has_bundle(path)
    except UserError:
        return False
