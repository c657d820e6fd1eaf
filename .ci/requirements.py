"""Print the lowest or newest allowed requirements of fdcnet[all] and its tests, torch left out.

python .ci/requirements.py oldest|newest
"""

import re
import sys
import tomllib
from pathlib import Path

TESTS = ("pytest", "pytest-xdist", "hypothesis", "httpx", "scikit-image", "pycocotools")


def main(which: str) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = re.findall(r"\w+", extras["all"][0].partition("[")[2])
    wanted = [*project["dependencies"], *(line for name in names for line in extras[name])]
    wanted += [line for line in extras["dev"] if re.match(r"[\w-]+", line)[0] in TESTS]
    for line in wanted:
        if not line.startswith("torch>"):
            print(line.split(",")[0].replace(">=", "==") if which == "oldest" else line)


main(sys.argv[1])
