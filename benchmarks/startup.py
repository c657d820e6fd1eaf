"""How long `fdcnet --help` takes, against a bare typer and rich script with two verbs, in alternation.

The fastest of several runs counts: other programs can only make a run slower.

python benchmarks/startup.py [--repeats N]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BARE = '''
import typer

app = typer.Typer(rich_markup_mode="markdown")


@app.command()
def first(name: str = "x") -> None:
    """Say hello."""


@app.command()
def second(name: str = "x") -> None:
    """Say goodbye."""


app()
'''


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bare.py"
        script.write_text(BARE)
        commands = {
            "help_seconds": [sys.executable, "-m", "fdcnet", "--help"],
            "train_help_seconds": [sys.executable, "-m", "fdcnet", "train", "--help"],
            "version_seconds": [sys.executable, "-m", "fdcnet", "--version"],
            "bare": [sys.executable, str(script), "--help"],
        }
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for command in commands.values():
            seconds(command)  # compiles, and reads the files into memory
        for _ in range(repeats):
            for name, command in commands.items():
                taken[name].append(seconds(command))
    fastest = {name: min(values) for name, values in taken.items()}
    bare = fastest.pop("bare")
    for name, value in fastest.items():
        row = {"name": name, "value": round(value, 3), "unit": "s", "peer": "bare typer and rich script"}
        print(json.dumps({**row, "peer_value": round(bare, 3), "ratio": round(value / bare, 2)}))


if __name__ == "__main__":
    main()
