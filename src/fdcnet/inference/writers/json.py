"""All fields of a prediction as JSON."""

from collections.abc import Sequence
from pathlib import Path

from fdcnet.inference.prediction import Prediction
from fdcnet.inference.writers.base import FileWriter, JsonList, as_json


class JsonWriter(FileWriter):
    """A list of predictions. In `.jsonl` files and on standard output they are lines, written as they come."""

    def __init__(self, path: Path, classes: Sequence[str]) -> None:
        super().__init__(path, classes)
        self.streamed = str(path) == "-" or path.suffix == ".jsonl"

    def begin(self) -> None:
        self.items = JsonList(self.file)

    def add(self, photo: Prediction) -> None:
        if self.streamed:
            self.file.write(as_json(photo.to_dict()) + "\n")
            self.file.flush()
        else:
            self.items.add(photo.to_dict())

    def end(self) -> None:
        if not self.streamed:
            self.items.end()
            self.file.write("\n")
