"""Write a module as an ONNX graph, run the graph in ONNX Runtime, and compare both."""

import contextlib
import importlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fdcnet.errors import UserError

OPSET = 18


class ExportDiffers(RuntimeError):
    """The outputs of the exported model differ from those of PyTorch."""


def require_packages() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            remedy = "Install it: pip install 'fdcnet[onnx]'"
            raise UserError(f"ONNX needs the package {name}, which is not installed.", remedy)


def write_graph(
    module: nn.Module,
    x: Tensor,
    file: Path,
    input_name: str,
    output_names: Sequence[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Trace a module that takes batches like `x` (B, ..., ..., ...), of any size B."""
    with _silenced():
        program = torch.onnx.export(
            module,
            (x[:2].repeat(2, 1, 1, 1)[:2],),  # the exporter would treat a batch size of one as a constant
            input_names=[input_name],
            output_names=output_names,
            dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=4096)},),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        _remove_source_locations(program.model)
        program.model.metadata_props.update(metadata or {})
        program.model.producer_name = "fdcnet"
        program.save(str(file), external_data=False)


def open_session(graph: Path | bytes) -> Any:
    """The graph in ONNX Runtime, with as many threads as PyTorch uses."""
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Threads that spin while they wait would take the cores from PyTorch and from photos that are being decoded.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    content = str(graph) if isinstance(graph, Path) else graph
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@torch.inference_mode()
def largest_differences(module: nn.Module, session: Any, x: Tensor) -> list[float]:
    """The largest difference of each output, for all samples at once and one alone: batch size must not matter."""
    worst = np.zeros(len(session.get_outputs()))
    for batch in (x, x[:1]):
        expected = module(batch)
        expected = (expected,) if isinstance(expected, Tensor) else expected
        found = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
        differences = [np.abs(own - one.numpy()).max() for own, one in zip(found, expected, strict=True)]
        worst = np.maximum(worst, differences)  # NaN propagates
    return worst.tolist()


def _remove_source_locations(model: Any) -> None:
    """The exporter stores source lines, with paths of this machine, in each node and value."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Hide what the exporter prints, logs and warns about."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
