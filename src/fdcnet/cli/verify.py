"""`fdcnet verify`"""

import typer

from fdcnet.cli import options
from fdcnet.cli.console import console, errors


def verify(model: options.Model) -> None:
    """Compare every file of a model with its checksum. Exits with code 1 if a file is damaged.

    Example: `fdcnet verify birds`
    """
    from fdcnet.store.verify import verify as run_verify

    checked = run_verify(model)
    for version in checked:
        if version.problems:
            errors.print(f"version {version.number}{version.mark}: damaged", markup=False)
            for problem in version.problems:
                errors.print(f"  {problem}", markup=False)
        else:
            state = f"intact, {version.num_files} files" if version.has_checksums else "readable, without checksums"
            console.print(f"version {version.number}{version.mark}: {state}", markup=False)
    intact = [version.number for version in checked if not version.problems]
    if any(version.current and version.problems for version in checked) and intact:
        errors.print(f"Go back to an intact version: fdcnet rollback {model} --to {intact[-1]}", markup=False)
    if len(intact) < len(checked):
        raise typer.Exit(1)
