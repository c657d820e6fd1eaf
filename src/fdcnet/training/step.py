"""One training step: losses, gradients, update. On a GPU, steps are recorded as CUDA graphs and replayed."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fdcnet.data.records import Batch
from fdcnet.methods.base import Phase
from fdcnet.models.kernels import own_kernels
from fdcnet.runtime.distributed import num_processes, sum_over_processes, summed_gradients
from fdcnet.training.micro_batch import photos_at_a_time, split

WARMUP_STEPS = 3  # ordinary steps before a recording: kernels are chosen and compiled in them
WORTHWHILE = 20  # steps of a phase below which recording costs more than it saves
NOT_RECORDED = "With several processes, steps are not recorded as CUDA graphs, so each GPU is slower than one alone."


class Values(NamedTuple):
    """The losses of one step, without their history."""

    names: tuple[str, ...]
    unweighted: Tensor  # (L,)
    weights: Tensor  # (L,)


class Step:
    """Steps of a phase (and of its outer phase), one kernel after the other.

    `micro_batch`: photos computed at a time (0: as many as fit into memory). Gradients of the parts of a batch add up
    to its gradient, except that batch norm, and terms over a subset of the photos, see each part alone.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        autocast: torch.autocast,
        micro_batch: int = 0,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.optimizer, self.autocast, self.micro_batch, self.note = optimizer, autocast, micro_batch, note
        self._part_sizes: dict[str, int] = {}  # by phase
        self._weights: dict[tuple[str, ...], tuple[list[float], Tensor]] = {}

    def __call__(self, phase: Phase, batch: Batch, progress: float) -> Values:
        """Take one step. `progress` is the fraction of the phase that is done."""
        return self._run(phase, batch, lambda names: self._weights_at(phase, names, progress, batch.labels.device))

    def _run(self, phase: Phase, batch: Batch, weights_of: Callable[[tuple[str, ...]], Tensor]) -> Values:
        self.optimizer.zero_grad(set_to_none=True)
        done = []
        *others, last = split(batch, self._part_size(phase, batch))
        for part in (*others, last):
            with self.autocast:
                losses = phase.losses(part)
            names, values = tuple(losses), torch.stack([value.float() for value in losses.values()])
            weights = weights_of(names)
            values = values * (batch.share * len(part.labels) / len(batch.labels))
            with self._summed_gradients() if part is last and batch.share < 1 else nullcontext():
                (values * weights).sum().backward()
            done.append(values.detach())
        total = torch.stack(done).sum(0)
        if batch.share < 1:
            total = sum_over_processes(total)
        if phase.optim.clip_norm:
            torch.nn.utils.clip_grad_norm_(phase.parameters.values(), phase.optim.clip_norm)
        self.optimizer.step()
        return Values(names, total, weights)

    def _summed_gradients(self) -> AbstractContextManager[None]:
        return summed_gradients(parameter for group in self.optimizer.param_groups for parameter in group["params"])

    def _part_size(self, phase: Phase, batch: Batch) -> int:
        """How many photos of the batch are computed at a time."""
        if self.micro_batch:
            return self.micro_batch
        if phase.name not in self._part_sizes:
            self._part_sizes[phase.name] = photos_at_a_time(phase, batch, self.autocast, self.note)
        return self._part_sizes[phase.name]

    def _weights_at(self, phase: Phase, names: tuple[str, ...], progress: float, device: torch.device) -> Tensor:
        """The weights of the losses now, always in the same tensor: (L,)"""
        wanted = [phase.weights.get(name, 1.0) * warmed_up(phase, name, progress) for name in names]
        if names not in self._weights:
            self._weights[names] = wanted, torch.tensor(wanted, device=device)
        present, weights = self._weights[names]
        if present != wanted:
            weights.copy_(torch.tensor(wanted))
            self._weights[names] = wanted, weights
        return weights


def warmed_up(phase: Phase, name: str, progress: float) -> float:
    """Which fraction of a loss's weight counts at this point of the phase."""
    share = phase.warmup.get(name, 0.0)
    return progress / share if progress < share else 1.0


@dataclass(frozen=True)
class Recording:
    """A captured step: new inputs are copied into `batch`, the results appear in `values`."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    values: Values


class RecordedStep(Step):
    """The same steps, each kind recorded once as a CUDA graph and then replayed.

    Recording a step does not run it, so nothing is computed twice. Losses keep no history between steps: an old
    history would tie the new one to the stream on which it was made, and capture would fail.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        autocast: torch.autocast,
        num_steps: int,
        note: Callable[[str], None] = lambda text: None,
        micro_batch: int = 0,
    ) -> None:
        super().__init__(optimizer, autocast, micro_batch, note)
        self.enabled = num_steps >= WORTHWHILE
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.seen: Counter[tuple[object, ...]] = Counter()
        self.recordings: dict[tuple[object, ...], Recording] = {}

    def __call__(self, phase: Phase, batch: Batch, progress: float) -> Values:
        kind = (phase.name, batch.images.shape, batch.images.stride())
        if self.enabled and kind not in self.recordings and self.seen[kind] >= WARMUP_STEPS:
            self._try_to_record(kind, phase, batch)
        if kind not in self.recordings:
            self.seen[kind] += 1
            with own_kernels(self.enabled):  # the kernels of the recording, here compiled
                return self._on_stream(lambda: super(RecordedStep, self).__call__(phase, batch, progress))
        recording = self.recordings[kind]
        self._weights_at(phase, recording.values.names, progress, batch.labels.device)
        recording.batch.images.copy_(batch.images)
        recording.batch.labels.copy_(batch.labels)
        recording.batch.from_memory.copy_(batch.from_memory)
        recording.graph.replay()
        return recording.values

    def _on_stream(self, run: Callable[[], Values]) -> Values:
        """Ordinary steps run on the stream that records, so that gradients are accumulated there as well."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            values = run()
        torch.cuda.current_stream().wait_stream(self.stream)
        return values

    def _try_to_record(self, kind: tuple[object, ...], phase: Phase, batch: Batch) -> None:
        parts = (batch.images, batch.labels, batch.from_memory)
        images, labels, from_memory = (torch.empty_like(part).copy_(part) for part in parts)
        static = Batch(images, labels, from_memory)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)  # gradients of a replay belong to the graph
        torch.cuda.synchronize()
        try:
            with own_kernels(), torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                values = self._run(phase, static, lambda names: self._weights[names][1])
        except Exception as error:  # whatever a method does that cannot be recorded
            torch.cuda.synchronize()
            self.optimizer.zero_grad(set_to_none=True)
            self.enabled = False
            reason = str(error).strip().split("\n")[0][:200]
            self.note(f"Steps of phase {phase.name} cannot be recorded as CUDA graphs ({reason}); training is slower.")
            return
        self.recordings[kind] = Recording(graph, static, values)


def make_step(
    optimizer: torch.optim.Optimizer,
    autocast: torch.autocast,
    device: torch.device,
    num_steps: int,
    graphs: bool,
    note: Callable[[str], None],
    micro_batch: int = 0,
) -> Step:
    """Steps for this device: recorded on a GPU, unless `graphs` is off or several processes share the batches."""
    if graphs and device.type == "cuda" and num_processes() == 1:
        return RecordedStep(optimizer, autocast, num_steps, note, micro_batch)
    if graphs and device.type == "cuda":
        note(NOT_RECORDED)
    return Step(optimizer, autocast, micro_batch, note)
