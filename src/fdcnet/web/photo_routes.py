"""The API that answers for photos: one, or several in a form."""

from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import Response
from starlette.datastructures import UploadFile

from fdcnet.errors import UserError
from fdcnet.web import schemas
from fdcnet.web.guard import Refused, too_large
from fdcnet.web.model import ServedModels
from fdcnet.web.preview import as_jpeg
from fdcnet.web.uploads import MAX_PHOTO

BATCH_PATH = "/api/predict/batch"
MAX_BATCH = 100  # photos
MAX_BATCH_BYTES = 200 * 10**6
MAX_DECODING = 2  # photos at the same time; a decoded photo may be large
FORM = "multipart/form-data"
USAGE = "Send the bytes of a photo file as the request body, or a form with the field photo."
BINARY = {"type": "string", "format": "binary"}
PHOTO_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "image/*": {"schema": {"type": "string"}},
            FORM: {"schema": {"type": "object", "properties": {"photo": BINARY}}},
        },
    }
}
BATCH_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            FORM: {"schema": {"type": "object", "properties": {"photo": {"type": "array", "items": BINARY}}}},
        },
    }
}


def _options(
    class_name: Annotated[str | None, Query(alias="class", description="Box of this class, not the best.")] = None,
    all_regions: Annotated[bool, Query(description="Also return a box for each other region of the map.")] = False,
    top_k: Annotated[int, Query(description="Number of best classes.")] = 5,
    min_score: Annotated[float, Query(description="Below this score, the class is null.")] = 0.0,
    threshold: Annotated[float | None, Query(description="Box threshold. Default: that of the model.")] = None,
) -> dict[str, Any]:
    return {
        "class_name": class_name,
        "all_regions": all_regions,
        "top_k": top_k,
        "min_score": min_score,
        "threshold": threshold,
    }


Options = Annotated[dict[str, Any], Depends(_options)]
After = Annotated[int | None, Query(ge=1, description="Use the model as it was after this task.")]
Heat = Annotated[bool, Query(description="Also return the heat map.")]


def add_photo_routes(app: FastAPI, models: ServedModels, num_workers: int = 1) -> None:
    limiter = CapacityLimiter(max(MAX_DECODING, num_workers))

    async def answer(photo: bytes, after: int | None, heat: bool, options: dict[str, Any]) -> schemas.Prediction:
        found = await to_thread.run_sync(lambda: models.predict(photo, after, heat, **options), limiter=limiter)
        return schemas.Prediction(**found)

    @app.post("/api/predict", openapi_extra=PHOTO_BODY, responses={404: {"model": schemas.Problem}})
    async def predict(
        request: Request, options: Options, after: After = None, heat: Heat = False
    ) -> schemas.Prediction:
        """Class, box and heat map for the photo in the request body (the bytes of its file, or a form)."""
        return await answer(await _photo_of(request), after, heat, options)

    @app.post(BATCH_PATH, openapi_extra=BATCH_BODY)
    async def predict_batch(
        request: Request, options: Options, after: After = None, heat: Heat = False
    ) -> list[schemas.BatchEntry]:
        """The same for several photos in a form. A photo that cannot be read has a problem instead of a prediction."""
        entries = []
        async with request.form(max_files=MAX_BATCH, max_fields=0) as form:
            for file in _files(form.getlist("photo")):
                entry = schemas.BatchEntry(name=file.filename or "photo")
                try:
                    entry.prediction = await answer(await _read(file), after, heat, options)
                except UserError as error:
                    entry.problem = error.problem
                entries.append(entry)
        return entries

    @app.post("/api/preview", openapi_extra=PHOTO_BODY, response_class=Response)
    async def preview(request: Request) -> Response:
        """The photo as JPEG, for formats that browsers cannot show."""
        photo = await _photo_of(request)
        jpeg = await to_thread.run_sync(as_jpeg, photo, limiter=limiter)
        return Response(jpeg, media_type="image/jpeg")


async def _photo_of(request: Request) -> bytes:
    if request.headers.get("content-type", "").startswith(FORM):
        async with request.form(max_files=1, max_fields=0) as form:
            return await _read(_files(form.getlist("photo"))[0])
    if photo := await request.body():
        return photo
    raise Refused(400, "No photo was sent.", USAGE)


def _files(fields: list[UploadFile | str]) -> list[UploadFile]:
    files = [field for field in fields if isinstance(field, UploadFile)]
    if not files:
        raise Refused(400, "No photo was sent.", USAGE)
    return files


async def _read(file: UploadFile) -> bytes:
    if (file.size or 0) > MAX_PHOTO:
        raise too_large(MAX_PHOTO)
    return await file.read()
