"""All fields of a prediction as JSON."""

from fdcnet.inference.prediction import Prediction
from fdcnet.inference.writers.base import FileWriter, JsonList, as_json


class JsonWriter(FileWriter):
    """A list of predictions; one per line for `.jsonl` files and standard output."""

    def begin(self) -> None:
        self.lines = self.to_stdout or self.path.suffix == ".jsonl"
        self.items = JsonList(self.file)

    def add(self, photo: Prediction) -> None:
        if self.lines:
            self.file.write(as_json(photo.to_dict()) + "\n")
            self.file.flush()
        else:
            self.items.add(photo.to_dict())

    def end(self) -> None:
        if not self.lines:
            self.items.end()
            self.file.write("\n")
