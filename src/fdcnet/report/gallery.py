"""The qualitative figure: the same photos after the last task, one row per method."""

import io
from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from fdcnet.inference.drawing import data_uri
from fdcnet.report.charts import swatch
from fdcnet.report.markup import Markup, join, tag
from fdcnet.report.photos import TILE, caption_of, key, painted
from fdcnet.report.runs import Run
from fdcnet.report.words import readable, spread

MOST = 8  # photos side by side
GAP, HEAD, SIDE = 8, 34, 150  # of the picture: between tiles, above them for the class, beside them at least
INK, WRONG = (29, 31, 36), (179, 38, 30)

Example = dict[str, Any]


def gallery(runs: Sequence[Run]) -> Markup:
    """The figure for the page."""
    images, shown = _shared(runs)
    if not images:
        return Markup("")
    names = [readable(next(found[image] for found in shown.values() if image in found)["label"]) for image in images]
    head = tag("tr", tag("td"), [tag("th", tag("bdi", name), scope="col") for name in names])
    rows = [
        tag(
            "tr",
            tag("th", swatch(run.style), " ", run.label, scope="row"),
            [tag("td", _tile(run, found.get(image))) for image in images],
        )
        for run, found in zip(runs, shown.values(), strict=True)
        if found
    ]
    text = (
        "The same test photos after the last task, with the heat map and the predicted box. Below: the class with "
        "the highest score, and the overlap (IoU) of the box with the true one."
    )
    table = tag("table", tag("thead", head), tag("tbody", rows), class_="gallery")
    return join(tag("p", text), key(), tag("div", table, class_="scroll", tabindex="0"))


def gallery_picture(runs: Sequence[Run]) -> bytes | None:
    """The same as a PNG for a paper or a README: predicted box green, true box red and dashed."""
    images, shown = _shared(runs)
    rows = [(run, found) for run, found in zip(runs, shown.values(), strict=True) if found]
    if not images:
        return None
    font, small = ImageFont.load_default(17), ImageFont.load_default(14)
    side = max(SIDE, *(int(font.getlength(run.label)) + 2 * GAP for run, _ in rows))
    width, height = side + len(images) * (TILE + GAP), HEAD + len(rows) * (TILE + GAP + HEAD)
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    for column, image in enumerate(images):
        x = side + column * (TILE + GAP)
        name = readable(next(found[image] for _, found in rows if image in found)["label"])
        draw.text((x + TILE / 2, HEAD / 2), _fitted(draw, name, font), INK, font, anchor="mm")
        for row, (run, found) in enumerate(rows):
            y = HEAD + row * (TILE + GAP + HEAD)
            if column == 0:
                draw.text((4, y + TILE / 2), run.label, INK, font, anchor="lm")
            example = found.get(image)
            tile = painted(run, example) if example else None
            if example is None or tile is None:
                continue
            sheet.paste(tile, (x, y))
            predicted, right = readable(example.get("predicted", "")), example.get("predicted") == example.get("label")
            said = _fitted(draw, predicted, small)
            draw.text((x + TILE / 2, y + TILE + 15), said, INK if right else WRONG, small, anchor="mm")
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _shared(runs: Sequence[Run]) -> tuple[list[str], dict[int, dict[str, Example]]]:
    """The photos that most runs show after their last task, spread over the tasks; and each run's examples of them."""
    last = {
        i: {str(e.get("image")): e for e in run.examples.get(max(run.examples, default=0), [])}
        for i, run in enumerate(runs)
    }
    counts: dict[str, int] = {}
    for examples in last.values():
        for image in examples:
            counts[image] = counts.get(image, 0) + 1
    common = [image for image, number in counts.items() if number == max(counts.values())]
    chosen = [common[i] for i in spread(range(len(common)), MOST)]
    return chosen, {
        i: {image: examples[image] for image in chosen if image in examples} for i, examples in last.items()
    }


def _tile(run: Run, example: Example | None) -> Markup | None:
    picture = painted(run, example) if example else None
    if example is None or picture is None:
        return None
    alt, caption = caption_of(run, example)
    return tag("figure", tag("img", src=data_uri(picture), alt=alt, width=TILE, height=TILE, loading="lazy"), caption)


def _fitted(draw: ImageDraw.ImageDraw, text: str, font: Any) -> str:
    while draw.textlength(text, font) > TILE and len(text) > 1:
        text = text[:-2] + "…"
    return text
