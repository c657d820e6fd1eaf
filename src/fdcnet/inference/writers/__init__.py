"""Write predictions and labels as files that other tools read. One module per format."""

from fdcnet.inference.writers.base import Writer, reader_is_open
from fdcnet.inference.writers.coco import CocoWriter
from fdcnet.inference.writers.json import JsonWriter
from fdcnet.inference.writers.labelstudio import LOCAL_FILES, LabelStudioWriter
from fdcnet.inference.writers.overlay import OverlayWriter
from fdcnet.inference.writers.table import CsvWriter
from fdcnet.inference.writers.voc import VocWriter
from fdcnet.inference.writers.yolo import YoloWriter

__all__ = [
    "LOCAL_FILES",
    "CocoWriter",
    "CsvWriter",
    "JsonWriter",
    "LabelStudioWriter",
    "OverlayWriter",
    "VocWriter",
    "Writer",
    "YoloWriter",
    "reader_is_open",
]
