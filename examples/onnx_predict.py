"""Classify and localize without PyTorch: python onnx_predict.py model.onnx photo.jpg"""

import importlib.util
import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps
from scipy import ndimage

if len(sys.argv) != 3:
    sys.exit("Usage: python onnx_predict.py MODEL.onnx PHOTO")
model_path, photo_path = sys.argv[1:]

try:
    session = onnxruntime.InferenceSession(model_path)
    metadata = session.get_modelmeta().custom_metadata_map
    classes, threshold = json.loads(metadata["classes"]), json.loads(metadata["postprocessing"])["threshold"]
except Exception:  # onnxruntime has one class for each kind of damage
    sys.exit(f"{model_path} cannot be read, or 'fdcnet export MODEL --onnx FILE' did not write it.")

if importlib.util.find_spec("pillow_heif"):  # optional, for HEIC
    importlib.import_module("pillow_heif").register_heif_opener()
try:
    photo = ImageOps.exif_transpose(Image.open(photo_path))
    if photo.mode.startswith("I"):  # 16-bit grey
        photo = Image.fromarray(np.rint(np.asarray(photo) / 257).astype(np.uint8))
    photo = photo.convert("RGBA")  # transparent parts become white
except Exception as error:  # Pillow has no common class for missing, damaged and huge files
    sys.exit(f"{photo_path} cannot be read as a photo: {error}")
photo = Image.alpha_composite(Image.new("RGBA", photo.size, "white"), photo).convert("RGB")
square = photo.resize(json.loads(metadata["preprocessing"])["size"], Image.Resampling.BILINEAR)

[scores], [maps] = session.run(["scores", "maps"], {"photos": np.asarray(square)[None]})
heat = maps[scores.argmax()]
heat = (heat - heat.min()) / max(np.ptp(heat), 1e-9)
heat = np.asarray(Image.fromarray(heat).resize(square.size, Image.Resampling.BILINEAR))
regions, _ = ndimage.label(heat > threshold, np.ones((3, 3)))
y, x = ndimage.find_objects(regions)[np.bincount(regions.flat)[1:].argmax()]
box = np.array([x.start, y.start, x.stop, y.stop]) * np.tile(photo.size, 2) / np.tile(square.size, 2)
print(f"{classes[scores.argmax()]} {scores.max():.0%} {box.round().astype(int).tolist()}")
