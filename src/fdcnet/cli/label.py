"""`fdcnet label`"""

from pathlib import Path
from typing import Annotated

import typer

from fdcnet.cli import options
from fdcnet.cli.console import console, errors, watcher
from fdcnet.errors import count

OUTPUTS = "Formats (default: COCO)"


def label(
    photos: Annotated[str, typer.Argument(help="Photos with known classes: a folder per class, CSV, COCO JSON ...")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Output folder.")],
    model: Annotated[
        Path | None, typer.Option(help="Model that knows the classes. [default: learn one from the photos]")
    ] = None,
    corrections: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Corrected boxes: COCO, Label Studio or YOLO.")
    ] = None,
    learn_boxes: Annotated[
        bool, typer.Option("--learn-boxes", help="Also train the localizer on the boxes that you checked.")
    ] = False,
    others: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Photos of other things, to learn a single class.")
    ] = None,
    coco: Annotated[
        bool, typer.Option("--coco", help="COCO with masks, in FiftyOne's layout.", rich_help_panel=OUTPUTS)
    ] = False,
    yolo: Annotated[bool, typer.Option("--yolo", help="YOLO boxes.", rich_help_panel=OUTPUTS)] = False,
    yolo_seg: Annotated[bool, typer.Option("--yolo-seg", help="YOLO masks.", rich_help_panel=OUTPUTS)] = False,
    voc: Annotated[bool, typer.Option("--voc", help="Pascal VOC.", rich_help_panel=OUTPUTS)] = False,
    labelstudio: Annotated[
        bool, typer.Option("--labelstudio", help="Label Studio tasks.", rich_help_panel=OUTPUTS)
    ] = False,
    csv: Annotated[bool, typer.Option("--csv", help="A row per box.", rich_help_panel=OUTPUTS)] = False,
    labelstudio_url: Annotated[
        str | None,
        typer.Option(metavar="PREFIX", help="Prefix of photo names in Label Studio tasks.", rich_help_panel=OUTPUTS),
    ] = None,
    copy_photos: Annotated[
        bool, typer.Option("--copy-photos", help="Copy photos instead of linking to them.", rich_help_panel=OUTPUTS)
    ] = False,
    device: options.Device = None,
    cache: options.Cache = None,
) -> None:
    """Draw boxes on photos whose classes are known.

    Each photo is boxed as its own label. DIR/index.html shows the boxes, least certain first. Correct those and pass
    them back with --corrections: corrected photos stay as they are when you run the command again.

    Example: `fdcnet label birds/ --out boxes --yolo --coco`
    """
    from fdcnet.data.cache import default_cache_dir
    from fdcnet.teaching.label import label as run_label

    flags = {"coco": coco, "yolo": yolo, "yolo-seg": yolo_seg, "voc": voc, "labelstudio": labelstudio, "csv": csv}
    report = run_label(
        photos,
        out,
        model=model,
        formats=[name for name, wanted in flags.items() if wanted] or ["coco"],
        corrections=corrections,
        learn_boxes=learn_boxes,
        others=others,
        copy_photos=copy_photos,
        labelstudio_url=labelstudio_url,
        device=device or "auto",
        cache_dir=cache or default_cache_dir(),
        listener=watcher(),
    )
    for reason in report.skipped:
        errors.print(f"Skipped {reason}", markup=False, highlight=False)
    num_boxes = sum(len(photo.annotations) for photo in report.photos)
    console.print(
        f"{num_boxes:,} boxes on {count(len(report.photos), 'photo')}, {report.num_reviewed} reviewed. "
        f"Took {report.seconds:.0f} seconds.",
        markup=False,
        highlight=False,
    )
    for path in report.written:
        console.print(f"Wrote {path}", markup=False, highlight=False)
    if report.skipped:
        raise typer.Exit(1)
