"""The README and the guides, and what they tell their reader to type."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


def shell_lines(page: Path) -> list[list[str]]:
    """The words of each shell command."""
    joined = (block.replace("\\\n", " ") for block in blocks(page, "bash"))
    return [words for block in joined for line in block.splitlines() if (words := shlex.split(line, comments=True))]
