"""Hooks for mkdocs: add the pages outside of docs/ to the site, and adjust the links between both."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "LICENSE",
    "results/*.*",
    "results/**/figures/*",
)
ELSEWHERE = r"src|examples|benchmarks|suites|results/(?!(?:[\w-]+/)?figures)[\w-]+"  # not part of the site
SOURCE_LINK = re.compile(rf"\[([^\]]*)\]\((?:\.\./)?(?:{ELSEWHERE})/[^)]*\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(path for pattern in OUTSIDE for path in ROOT.glob(pattern)):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links are written for readers of the repository, where docs/ is a folder. In the site it is the root."""
    markdown = SOURCE_LINK.sub(r"\1", markdown)
    if Path(page.file.abs_src_path or "").is_relative_to(ROOT / "docs"):
        return markdown.replace("](../", "](")
    return re.sub(r"\]\(((?:\.\./)?)docs/", r"](\1", markdown)
