"""Predictions as CSV."""

import csv

from fdcnet.inference.prediction import Prediction
from fdcnet.inference.writers.base import FileWriter


class CsvWriter(FileWriter):
    """A row per box. A photo with no known class has one row without a box."""

    def begin(self) -> None:
        self.rows = csv.writer(self.file, lineterminator="\n")
        self.rows.writerow(["path", "width", "height", "class", "score", "task", "x0", "y0", "x1", "y1"])

    def add(self, photo: Prediction) -> None:
        facts = photo.to_dict()
        keys = ("source", "width", "height", "class", "score", "task")
        for box in facts["boxes"] or [[None] * 4]:
            self.rows.writerow([*(facts[key] for key in keys), *box])
