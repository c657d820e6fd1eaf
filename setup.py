"""The package's description: the README without relative links, which would be dead outside of a checkout."""

import re
from pathlib import Path

from setuptools import setup

README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
IMAGE = re.compile(r"^!\[.*\]\((?!https?:).*\)\n(?:\n\*[^*]*\*\n)?", re.M)  # with its caption
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")

setup(
    long_description=LINK.sub(r"\1", IMAGE.sub("", README)),
    long_description_content_type="text/markdown",
)
