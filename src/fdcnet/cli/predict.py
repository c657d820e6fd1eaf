"""`fdcnet predict`"""

import io
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

OUTPUTS = "Files for other programs"


def predict(
    model: options.Model,
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Photos, folders, quoted patterns, videos, or - for standard input."),
    ],
    class_name: Annotated[
        str | None, typer.Option("--class", help="Box this class. [default: the one with the best score]")
    ] = None,
    all_regions: Annotated[bool, typer.Option("--all-regions", help="Box all regions, not the largest alone.")] = False,
    top_k: Annotated[int, typer.Option(help="How many of the best classes --json lists.")] = 5,
    min_score: Annotated[float, typer.Option(help='Below this score, 0 to 1, the answer is "none of these".')] = 0.0,
    threshold: Annotated[float | None, typer.Option(help="Of the map, 0 to 1. [default: the model's own]")] = None,
    step: Annotated[int | None, typer.Option(help="Of videos, each so many-th frame. [default: one a second]")] = None,
    save: Annotated[Path | None, typer.Option(metavar="DIR", help="Photos with heat map, box and label.")] = None,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="All answers; .jsonl or - : a line each.", rich_help_panel=OUTPUTS),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A row per box; - : standard output.", rich_help_panel=OUTPUTS)
    ] = None,
    coco: Annotated[
        Path | None, typer.Option(metavar="FILE", help="COCO annotations.", rich_help_panel=OUTPUTS)
    ] = None,
    yolo: Annotated[Path | None, typer.Option(metavar="DIR", help="YOLO labels.", rich_help_panel=OUTPUTS)] = None,
    labelstudio: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Label Studio pre-annotations; its labelling setup beside, as .xml.",
            rich_help_panel=OUTPUTS,
        ),
    ] = None,
    labelstudio_url: Annotated[
        str | None,
        typer.Option(metavar="PREFIX", help="What stands before a photo's name there.", rich_help_panel=OUTPUTS),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Photos at once. [default: 8 on a CPU, 32 on a GPU]")] = None,
    device: options.Device = None,
) -> None:
    """Say what is on photos and where: class, box, heat map.

    Boxes are pixels of the photo as displayed. Photos that cannot be read are named and left out; the exit code is
    then 1, or 2 if none could be read.

    Example: `fdcnet predict birds holiday/ --save seen/ --json answers.json`
    """
    from fdcnet.data.inputs import find_photos
    from fdcnet.inference.localizer import Localizer
    from fdcnet.inference.writers import (
        ESCAPED,
        LOCAL_FILES,
        CocoWriter,
        CsvWriter,
        JsonWriter,
        LabelStudioWriter,
        OverlayWriter,
        YoloWriter,
    )

    for stream in (sys.stdout, sys.stderr):  # a file name may be no UTF-8
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ESCAPED)
    to_stdout = [path for path in (json, csv, coco, labelstudio) if path is not None and str(path) == "-"]
    if len(to_stdout) > 1:
        raise UserError("Standard output can take one kind of answers only.", "Name a file for the others.")
    photos = find_photos(sources, sys.stdin.buffer, step)
    localizer = Localizer.load(model, device or "auto")
    wanted = {JsonWriter: json, CsvWriter: csv, CocoWriter: coco, YoloWriter: yolo, OverlayWriter: save}
    writers = [kind(path, localizer.classes) for kind, path in wanted.items() if path is not None]
    if labelstudio is not None:
        writers.append(LabelStudioWriter(labelstudio, localizer.classes, labelstudio_url or LOCAL_FILES))
    unread: list[str] = []

    def tell(name: str, reason: str) -> None:
        unread.append(name)
        errors.print(f"Left out: {name}: {reason}", markup=False, highlight=False)

    answers = localizer.predict_many(
        photos,
        class_name=class_name,
        all_regions=all_regions,
        top_k=top_k,
        min_score=min_score,
        threshold=threshold,
        batch_size=batch,
        on_error=tell,
    )
    num_read = _write(answers, writers, quiet=bool(to_stdout))
    for writer in writers:
        for what in writer.left_out:
            errors.print(f"Left out: {what}", markup=False, highlight=False)
        if str(writer.path) != "-":
            errors.print(f"Written: {writer.path}", markup=False, highlight=False)
    if unread:
        errors.print(f"{len(unread)} of {num_read + len(unread)} could not be read.", highlight=False)
    if unread or any(writer.left_out for writer in writers):
        raise typer.Exit(1)


def _write(answers: "Iterator[Prediction]", writers: "list[Writer]", quiet: bool) -> int:
    """Files are completed also when nobody reads standard output any more; without any, that ends it."""
    from fdcnet.inference.writers import is_read

    num_read = 0
    takers = [writer.add for writer in writers] + ([] if quiet else [_show])
    with ExitStack() as stack:
        for writer in writers:
            stack.enter_context(writer)
        for prediction in answers:
            num_read += 1
            takers = [take for take in takers if is_read(partial(take, prediction))]
            if not takers:
                break
        if not num_read:
            raise UserError("No photo could be read.", "The lines above say why.")
    return num_read


def _show(prediction: "Prediction") -> None:
    console.print(_line(prediction), markup=False, highlight=False)


def _line(prediction: "Prediction") -> str:
    """One photo in one line."""
    from fdcnet.inference.prediction import NONE_OF_THESE

    if prediction.class_name is None:
        best = prediction.top[0]
        return f"{prediction.source}: {NONE_OF_THESE} (at best {best.class_name}, {best.score:.0%})"
    boxes = "  ".join(f"[{', '.join(f'{value:.0f}' for value in box)}]" for box in prediction.boxes_xyxy)
    return f"{prediction.source}: {prediction.class_name} {prediction.score:.0%}  {boxes}"
