"""`fdcnet suite`"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdcnet.cli import options
from fdcnet.cli.console import console, errors

if TYPE_CHECKING:
    from fdcnet.suite.plan import Suite


def suite(
    file: Annotated[Path, typer.Argument(metavar="SUITE.yaml", help="The suite, such as suites/cub200.yaml.")],
    data: Annotated[str | None, typer.Option(help="Photos for all runs. [default: those of the recipes]")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at the same time. [default: that of the suite]")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the run folders.")] = Path("runs"),
    results: Annotated[Path, typer.Option(help="Folder for the results that are kept.")] = Path("results"),
    minutes: Annotated[float | None, typer.Option(min=0, help="Stop after N minutes. [default: no limit]")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only list the runs and whether they are done.")] = False,
    tables: Annotated[bool, typer.Option("--tables", help="Only write the tables of what is done.")] = False,
    device: options.Device = None,
    set_: options.Set = [],  # noqa: B006 typer copies it
) -> None:
    """Run a suite of experiments: recipes x settings x class orders x seeds.

    First tasks that several runs share are learned once. What is done is skipped, and what was cut is resumed, so the
    same command continues a suite. Results go to RESULTS/SUITE/RUN: a JSON file per protocol, and what the model said
    about every test photo. RESULTS/SUITE/README.md has the tables, with paired tests.

    Example: `fdcnet suite suites/cub200.yaml --data data/CUB_200_2011`
    """
    from fdcnet.suite.plan import read_suite
    from fdcnet.suite.progress import Lines, LiveTable
    from fdcnet.suite.runner import Runner

    planned = read_suite(file, set_, data)
    at_once = jobs or planned.jobs
    watcher = LiveTable(console, at_once) if console.is_terminal else Lines(console)
    runner = Runner(planned, out / planned.name, results, at_once, device, minutes, watcher)
    if plan:
        for job in runner.plan():
            console.print(f"{job.state:8} {job.run.name}", markup=False, highlight=False)
        return
    if tables:
        _write_tables(planned, results, runner.out)
        return
    try:
        done = runner.run()
    except KeyboardInterrupt:
        errors.print("To continue, run the same command again.")
        raise
    finally:
        if isinstance(watcher, LiveTable):
            watcher.close()
    states = [job.state for job in done]
    console.print(f"{states.count('done')} of {len(states)} runs are done.")
    _write_tables(planned, results, runner.out)
    if states.count("done") + states.count("failed") < len(states):
        console.print(f"Stopped after {minutes:g} minutes. To continue, run the same command again.")
    if "failed" in states:
        errors.print(f"{states.count('failed')} failed. Their logs are in {runner.out}", markup=False)
        raise typer.Exit(1)


def _write_tables(suite: "Suite", results: Path, run_dirs: Path) -> None:
    try:
        from fdcnet.suite.page import write_page
    except ImportError as error:
        errors.print(f"No tables: {error}. Install that package, then run this with --tables.", markup=False)
    else:
        console.print(f"Results: {write_page(suite, results, run_dirs)}", markup=False)
