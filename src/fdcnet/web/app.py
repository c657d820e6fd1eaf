"""The local page and its API."""

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from fdcnet.errors import UserError
from fdcnet.report.page import POLICY, render
from fdcnet.report.runs import load
from fdcnet.store.versions import rollback
from fdcnet.teaching.holdout import FEWEST_PHOTOS
from fdcnet.teaching.learn import KEEP
from fdcnet.web import answers
from fdcnet.web.guard import Guard, Refused, refusal
from fdcnet.web.lesson import School
from fdcnet.web.model import Model
from fdcnet.web.uploads import MAX_CLASSES, MAX_LESSON, MAX_PHOTO, MAX_PHOTOS, keep_uploads

STATIC = Path(__file__).with_name("static")
AT_ONCE = 2  # photos: each may be large when decoded
LIMITS = answers.Limits(
    photo_bytes=MAX_PHOTO, lesson_bytes=MAX_LESSON, photos=MAX_PHOTOS, classes=MAX_CLASSES, fewest=FEWEST_PHOTOS
)
PHOTO_BODY = {"requestBody": {"required": True, "content": {"image/*": {"schema": {"type": "string"}}}}}
LESSON_FIELDS = {
    "class": {"type": "array", "items": {"type": "string"}, "description": "A name; the photos after it are of it."},
    "photo": {"type": "array", "items": {"type": "string", "format": "binary"}},
}
LESSON_BODY = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": {"type": "object", "properties": LESSON_FIELDS}}},
    }
}
log = logging.getLogger(__name__)


def make_app(
    path: Path, *, host: str = "127.0.0.1", token: str | None = None, device: str = "auto", keep: int = KEEP
) -> ASGIApp:
    """Serves the model at `path`, which need not be there yet: then the first lesson makes it."""
    model = Model(path, device)
    model.refuse_what_is_no_model()
    school = School(model, keep)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        await to_thread.run_sync(school.close)

    app = FastAPI(
        title="fdcnet",
        summary="Class, box and heat map of photos; new classes from photos alone.",
        lifespan=life,
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        responses={400: {"model": answers.Problem}},
    )
    _errors(app)
    _looking(app, model, school)
    _teaching(app, model, school)
    _pages(app, model)
    return Guard(app, host, token, {"/api/lesson": MAX_LESSON, None: MAX_PHOTO})


def _looking(app: FastAPI, model: Model, school: School) -> None:
    limiter = CapacityLimiter(AT_ONCE)

    @app.get("/api/model")
    def facts() -> answers.ModelFacts:
        """What the model knows, task by task, and the limits of this server."""
        return answers.ModelFacts(**model.facts(), learning=school.busy, limits=LIMITS)

    @app.post("/api/look", openapi_extra=PHOTO_BODY, responses={404: {"model": answers.Problem}})
    async def look(
        request: Request,
        after: Annotated[int | None, Query(ge=1, description="As the model was after this task.")] = None,
        class_name: Annotated[str | None, Query(alias="class", description="Whose box; else of the best.")] = None,
        all_regions: bool = False,
        top_k: int = 5,
        min_score: float = 0.0,
        threshold: float | None = None,
        heat: bool = False,
        preview: bool = False,
    ) -> answers.Look:
        """Class, box and heat map of the photo in the body: its file, byte for byte."""
        photo = await request.body()
        if not photo:
            raise Refused(400, "No photo was sent.", "Send the file of a photo as the body of the request.")

        def answer() -> answers.Look:
            options: dict[str, Any] = {"class_name": class_name, "all_regions": all_regions, "top_k": top_k}
            options |= {"min_score": min_score, "threshold": threshold}
            return answers.Look(**model.look(photo, after, heat, preview, **options))

        return await to_thread.run_sync(answer, limiter=limiter)

    @app.get("/api/history")
    def history() -> list[answers.VersionFacts]:
        """The versions that are kept, the oldest first."""
        return [answers.VersionFacts(**version) for version in model.history()]


def _teaching(app: FastAPI, model: Model, school: School) -> None:
    one_at_a_time = threading.Lock()

    def now() -> answers.Lesson:
        return answers.Lesson(**school.lesson.facts()) if school.lesson else answers.Lesson(state="none")

    @app.post("/api/lesson", status_code=202, openapi_extra=LESSON_BODY, responses={409: {"model": answers.Problem}})
    async def teach(
        request: Request,
        more: Annotated[bool, Query(description="Photos may also be of known classes.")] = False,
        epochs: Annotated[int | None, Query(ge=1, le=1000, description="Unless given, by the photos.")] = None,
    ) -> answers.Lesson:
        """Start to learn classes. One lesson at a time; the old version answers until the new one is complete."""
        school.refuse_if_busy()
        try:
            async with request.form(max_files=MAX_PHOTOS, max_fields=MAX_CLASSES) as form:
                upload = await to_thread.run_sync(keep_uploads, form)
        except OSError as error:
            remedy = "Free some space where the server keeps temporary files."
            raise Refused(507, f"The photos cannot be stored: {error.strerror or error}.", remedy) from error
        try:
            school.start(upload, more, epochs)
        except BaseException:
            upload.delete()
            raise
        return now()

    @app.get("/api/lesson")
    def lesson() -> answers.Lesson:
        """The lesson that is going on, or the last one since the server started."""
        return now()

    @app.delete("/api/lesson")
    def cancel() -> answers.Lesson:
        """Stop it. The model stays as it was."""
        if school.busy and school.lesson:
            school.lesson.cancel.set()
        return now()

    @app.get("/api/lesson/photos/{number}", response_class=Response)
    def photo(number: int) -> Response:
        compared = school.lesson.compared if school.lesson else []
        if not 0 <= number < len(compared):
            raise Refused(404, "There is no such photo.", "They are those of the last lesson.")
        return Response(compared[number].jpeg, media_type="image/jpeg")

    @app.post("/api/rollback", responses={409: {"model": answers.Problem}})
    def back(
        to: Annotated[int | None, Query(description="Number of a kept version; else the one before.")] = None,
        of: Annotated[int | None, Query(description="Refuse unless this version is the one in use.")] = None,
    ) -> answers.ModelFacts:
        """Make an earlier version the one in use; later ones are kept, too."""
        school.refuse_if_busy()
        with one_at_a_time:
            if of is not None and of != model.version:
                problem = f"Version {model.version} is in use, not version {of}."
                raise Refused(409, problem, "Nothing was changed: see which version you want.")
            rollback(model.path, to)
        return answers.ModelFacts(**model.facts(), learning=school.busy, limits=LIMITS)


def _pages(app: FastAPI, model: Model) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(STATIC / "page.html", headers={"cache-control": "no-cache"})

    @app.get("/run", include_in_schema=False)
    def run() -> HTMLResponse:
        if model.run_folder is None:
            raise Refused(404, "This model does not lie in a run folder.", "Its history is on the page.")
        policy = f"{POLICY}; frame-ancestors 'none'"
        return HTMLResponse(render(load([model.run_folder])), headers={"content-security-policy": policy})

    app.mount("/static", StaticFiles(directory=STATIC))


def _errors(app: FastAPI) -> None:
    @app.exception_handler(UserError)
    def user_error(request: Request, error: UserError) -> JSONResponse:
        return refusal(error)

    @app.exception_handler(HTTPException)
    def http_error(request: Request, error: HTTPException) -> JSONResponse:
        remedy = "See /openapi.json for what this server answers."
        return refusal(Refused(error.status_code, str(error.detail).rstrip(".") + ".", remedy))

    @app.exception_handler(RequestValidationError)
    def wrong_parameter(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return refusal(Refused(400, f"'{first['loc'][-1]}' is wrong: {first['msg']}.", "See /openapi.json."))

    @app.exception_handler(ClientDisconnect)
    def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it: the page was closed while it sent

    @app.exception_handler(Exception)
    def anything(request: Request, error: Exception) -> JSONResponse:
        return refusal(Refused(500, "Something went wrong in the server.", "Its terminal says what."))
