"""One worker process of `fdcnet serve --workers N`: predictions, asked for on its input and answered on its output.

A question is a line of JSON followed by the bytes of the photo. An answer is a line of JSON.
"""

import json
import logging
import sys
from pathlib import Path
from typing import IO, Any

import torch

from fdcnet.errors import UserError
from fdcnet.runtime.machine import reuse_memory
from fdcnet.web.model import ServedModel


def main() -> None:
    reuse_memory()
    device, engine, num_threads = sys.argv[1:]
    torch.set_num_threads(int(num_threads))
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # nothing else may be written among the answers
    try:
        _serve(sys.stdin.buffer, answers, device, engine)
    except BrokenPipeError:
        return  # the server has stopped


def _serve(questions: IO[bytes], answers: IO[bytes], device: str, engine: str) -> None:
    models: dict[str, ServedModel] = {}  # the user's and the example
    while line := questions.readline():
        question = json.loads(line)
        photo = questions.read(question.pop("num_bytes"))
        path = question.pop("model")
        model = models.setdefault(path, ServedModel(Path(path), device, engine))
        answers.write(json.dumps(_answer(model, photo, question)).encode() + b"\n")
        answers.flush()


def _answer(model: ServedModel, photo: bytes, question: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"prediction": model.predict(photo, **question)}
    except UserError as error:
        return {"refused": [getattr(error, "status", 400), error.problem, error.remedy]}
    except Exception:
        logging.exception("A prediction failed")
        return {"refused": [500, "Internal server error.", "See the server's terminal."]}


if __name__ == "__main__":
    main()
