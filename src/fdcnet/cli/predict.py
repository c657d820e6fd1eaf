"""`fdcnet predict`"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdcnet.cli import options
from fdcnet.cli.console import console, errors
from fdcnet.errors import UserError

if TYPE_CHECKING:
    from fdcnet.inference.prediction import Prediction
    from fdcnet.inference.writers import Writer

OUTPUTS = "Output files"


def predict(
    model: options.Model,
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Photos, folders, quoted patterns, videos, or - for standard input."),
    ],
    class_name: Annotated[
        str | None, typer.Option("--class", help="Box this class. [default: the one with the best score]")
    ] = None,
    all_regions: Annotated[bool, typer.Option("--all-regions", help="Box all regions, not just the largest.")] = False,
    top_k: Annotated[int, typer.Option(help="Number of best classes to list in --json.")] = 5,
    min_score: Annotated[float, typer.Option(help='Report "none of these" below this score, 0 to 1.')] = 0.0,
    threshold: Annotated[float | None, typer.Option(help="Box threshold, 0 to 1. [default: that of the model]")] = None,
    step: Annotated[int | None, typer.Option(help="Use every Nth video frame. [default: one per second]")] = None,
    save: Annotated[Path | None, typer.Option(metavar="DIR", help="Save photos with heat map, box and label.")] = None,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="All results; one per line for .jsonl and -.", rich_help_panel=OUTPUTS),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A row per box; - is standard output.", rich_help_panel=OUTPUTS)
    ] = None,
    coco: Annotated[
        Path | None, typer.Option(metavar="FILE", help="COCO annotations.", rich_help_panel=OUTPUTS)
    ] = None,
    yolo: Annotated[Path | None, typer.Option(metavar="DIR", help="YOLO labels.", rich_help_panel=OUTPUTS)] = None,
    voc: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Pascal VOC annotations.", rich_help_panel=OUTPUTS)
    ] = None,
    labelstudio: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Label Studio tasks, with the labeling interface beside them as .xml.",
            rich_help_panel=OUTPUTS,
        ),
    ] = None,
    labelstudio_url: Annotated[
        str | None,
        typer.Option(metavar="PREFIX", help="Prefix of photo names in Label Studio tasks.", rich_help_panel=OUTPUTS),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Batch size. [default: 8 on a CPU, 32 on a GPU]")] = None,
    device: options.Device = None,
    engine: options.Engine = "torch",
) -> None:
    """Classify and localize objects in photos.

    Boxes are in pixels of the photo as displayed. Unreadable photos are listed and skipped. The exit code is then 1,
    or 2 if no photo could be read.

    Example: `fdcnet predict birds holiday/ --save drawn/ --json results.json`
    """
    from fdcnet.data.inputs import find_photos
    from fdcnet.inference.localizer import Localizer
    from fdcnet.inference.writers import (
        LOCAL_FILES,
        CocoWriter,
        CsvWriter,
        JsonWriter,
        LabelStudioWriter,
        OverlayWriter,
        VocWriter,
        YoloWriter,
    )

    to_stdout = [path for path in (json, csv, coco, labelstudio) if path is not None and str(path) == "-"]
    if len(to_stdout) > 1:
        raise UserError("Only one output can go to standard output.", "Name a file for the others.")
    photos = find_photos(sources, sys.stdin.buffer, step)
    localizer = Localizer.load(model, device or "auto", engine)
    paths = {
        JsonWriter: json,
        CsvWriter: csv,
        CocoWriter: coco,
        YoloWriter: yolo,
        VocWriter: voc,
        OverlayWriter: save,
    }
    writers: list[Writer] = [kind(path, localizer.classes) for kind, path in paths.items() if path is not None]
    if labelstudio is not None:
        writers.append(LabelStudioWriter(labelstudio, localizer.classes, labelstudio_url or LOCAL_FILES))
    unreadable: list[str] = []

    def skip(name: str, reason: str) -> None:
        unreadable.append(name)
        errors.print(f"Skipped {name}: {reason}", markup=False, highlight=False)

    predictions = localizer.predict_many(
        photos,
        class_name=class_name,
        all_regions=all_regions,
        top_k=top_k,
        min_score=min_score,
        threshold=threshold,
        batch_size=batch,
        on_error=skip,
    )
    num_read = write_predictions(predictions, writers, quiet=bool(to_stdout))
    for writer in writers:
        for reason in writer.skipped:
            errors.print(f"Skipped: {reason}", markup=False, highlight=False)
        if str(writer.path) != "-":
            errors.print(f"Wrote {writer.path}", markup=False, highlight=False)
    if unreadable:
        errors.print(f"{len(unreadable)} of {num_read + len(unreadable)} photos could not be read.", highlight=False)
    if unreadable or any(writer.skipped for writer in writers):
        raise typer.Exit(1)


def write_predictions(predictions: "Iterator[Prediction]", writers: "list[Writer]", quiet: bool) -> int:
    """Return the number of predictions. If anything stops them early, the files hold those that were made."""
    from fdcnet.inference.writers import reader_is_open

    num_read, stopped_by = 0, None
    consumers = [writer.add for writer in writers] + ([] if quiet else [_print])
    with ExitStack() as stack:
        for writer in writers:
            stack.enter_context(writer)
        try:
            for prediction in predictions:
                consumers = [consume for consume in consumers if reader_is_open(partial(consume, prediction))]
                num_read += 1
                if not consumers:
                    break
        except BaseException as error:  # also Ctrl-C
            if not num_read:
                raise
            stopped_by = error
        if not num_read:
            raise UserError("No photo could be read.", "The lines above say why.")
    if stopped_by:
        if writers:
            errors.print("Stopped early. The files hold the photos done so far.")
        raise stopped_by
    return num_read


def _print(prediction: "Prediction") -> None:
    console.print(_line(prediction), markup=False, highlight=False)


def _line(prediction: "Prediction") -> str:
    from fdcnet.inference.prediction import NONE_OF_THESE

    if prediction.class_name is None:
        best = prediction.top[0]
        return f"{prediction.source}: {NONE_OF_THESE} (best: {best.class_name}, {best.score:.0%})"
    boxes = "  ".join(f"[{', '.join(f'{value:.0f}' for value in box)}]" for box in prediction.boxes_xyxy)
    doubt = "  (may be none of the known classes)" if prediction.unfamiliar else ""
    return f"{prediction.source}: {prediction.class_name} {prediction.score:.0%}  {boxes}{doubt}"
