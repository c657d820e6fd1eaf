"""Two processes with half of each batch do what one does with the whole batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fdcnet.data.synthetic import make_synthetic
from fdcnet.evaluation.table import Table
from fdcnet.methods import METHODS
from fdcnet.store.bundle import load_bundle
from fdcnet.training import checkpoint

SETTINGS = (
    "train.optim.lr=0.003",
    "train.checkpoint_minutes=0",
    "protocols=[{map: class, crops: 2}, {map: topk-mean}]",
)
SCRIPT = """
import atexit
import os
import sys
from pathlib import Path
from fdcnet import config
from fdcnet.data.sources import read
from fdcnet.methods import find_method
from fdcnet.training.run import train

@atexit.register  # so it runs after the atexit function of fdcnet, which closes the connections
def refuse_threads_left_by_torchrun():
    if "LOCAL_RANK" in os.environ and sys.platform == "linux" and len(os.listdir("/proc/self/task")) > 1:
        print("threads are left", file=sys.stderr, flush=True)
        os._exit(1)  # a thread that wants Python's lock now would abort the process

photos, out, *methods = sys.argv[1:]
settings = Path(out, "settings.txt").read_text().splitlines()
for method in methods:
    classifier = find_method(method).classifier or "linear"
    chosen = config.load(None, [*settings, f"model.classifier={classifier}"], method=method)
    train(chosen, read(photos), Path(out, method), cache_dir=Path(out, "cache"), progress=False, resume=True)
"""
DIES = """
import os, signal
from fdcnet.training.step import Step

steps, take = 0, Step.__call__

def die(self, phase, batch, progress):
    global steps
    steps += 1
    if steps == 16 and os.environ["RANK"] == "1":  # in the second task
        os.kill(os.getpid(), signal.SIGKILL)
    return take(self, phase, batch, progress)

Step.__call__ = die
"""
PARTS = """
import torch
import torch.distributed as dist
from torch import nn
from fdcnet.errors import UserError
from fdcnet.losses.subset import mean_over
from fdcnet.models.shared_norm import SharedBatchNorm2d, share_statistics
from fdcnet.runtime import distributed
from fdcnet.runtime.distributed import join_processes, joined_shares, own_share, refuse_too_many_processes

join_processes(torch.device("cpu"))
first = dist.get_rank() == 0

# Three photos here, one there; two and none of them are chosen: (1 + 2) / 2 = 3/4 * 2 + 1/4 * 0
values, chosen = ([1.0, 5.0, 2.0], [1, 0, 1]) if first else ([7.0], [0])
assert mean_over(torch.tensor(values), torch.tensor(chosen) > 0).item() == (2.0 if first else 0.0)

# Batch norm: output, gradients and running statistics are those of PyTorch's own norm on the whole batch.
torch.manual_seed(0)
whole, weights = 100 + torch.randn(5, 3, 4, 4), torch.randn(5, 3, 4, 4)
own = slice(0, 3) if first else slice(3, 5)
alone, shared = nn.BatchNorm2d(3), nn.Sequential(nn.BatchNorm2d(3))
share_statistics(shared)
assert isinstance(shared[0], SharedBatchNorm2d)
results = []
for norm, rows in ((alone, slice(0, 5)), (shared[0], own)):
    norm.weight.data.copy_(torch.tensor([1.0, 2.0, -1.0]))
    x = whole[rows].clone().requires_grad_()
    y = norm(x)
    (y * weights[rows]).sum().backward()
    if norm is not alone:
        dist.all_reduce(norm.weight.grad)
    results.append((y, x.grad, norm.weight.grad, norm.running_mean, norm.running_var, norm.num_batches_tracked))
for number, (expected, found) in enumerate(zip(*results)):
    torch.testing.assert_close(found, expected[own] if number < 2 else expected, rtol=1e-3, atol=1e-3)
torch.testing.assert_close(shared.eval()(whole), alone.eval()(whole), rtol=1e-3, atol=1e-3)

# Gradients are those of the whole batch. Full buckets are sent before the backward pass reaches the input.
layers, unused = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)), nn.Parameter(torch.zeros(3))
whole = torch.tensor([[1.0, 2.0], [3.0, 5.0], [-1.0, 0.5]])
layers(whole).square().sum().backward()
expected = [parameter.grad.clone() for parameter in layers.parameters()]
layers.zero_grad()
events, send = [], distributed._sum_in_background
distributed.BUCKET = 7  # values; the last two layers have 9
distributed._sum_in_background = lambda bucket: [events.append(len(bucket)), send(bucket)][1]
x = whole[:2] if first else whole[2:]
x = x.clone().requires_grad_()
x.register_hook(lambda gradient: events.append("input"))
with distributed.summed_gradients([unused, *layers.parameters()]):
    layers(x).square().sum().backward()
assert events == [4, "input", 3], events
assert unused.grad is None
for parameter, gradient in zip(layers.parameters(), expected):
    torch.testing.assert_close(parameter.grad, gradient)
assert distributed.sum_over_processes(torch.tensor([1.0, float(first)])).tolist() == [2.0, 1.0]

# Rows that each computes a part of, and a batch that is too small.
rows = torch.arange(10.0).view(5, 2)
for num in (5, 1):
    share = own_share(num)
    assert torch.equal(joined_shares([rows[share.start : share.stop]], num), rows[:num])
try:
    refuse_too_many_processes(1)
except UserError as error:
    assert "A batch of 1 photo cannot be shared by 2 processes." in str(error)
else:
    raise AssertionError("not refused")
"""


def torchrun(num: int, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num}", *arguments]
    return subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1", **environment}, capture_output=True, text=True, timeout=300
    )


def curve(run: Path) -> dict[str, dict[str, float]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {f"{line['task']} {line['phase']} {line['epoch']}": line["losses"] for line in lines}


def relative_difference(found: dict[str, dict[str, float]], expected: dict[str, dict[str, float]]) -> float:
    assert found.keys() == expected.keys()
    pairs = [(found[epoch][name], value) for epoch, losses in expected.items() for name, value in losses.items()]
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in pairs)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, shrunk: tuple[str, ...]) -> Path:
    """one/METHOD and two/METHOD, trained by one process and by two."""
    folder = tmp_path_factory.mktemp("distributed")
    make_synthetic(folder / "photos", num_classes=4, train_per_class=6, test_per_class=3, size=40)
    (folder / "train.py").write_text(SCRIPT)
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "settings.txt").write_text("\n".join([*shrunk, *SETTINGS]))
    arguments = [str(folder / "train.py"), str(folder / "photos")]
    subprocess.run([sys.executable, *arguments, str(folder / "one"), *METHODS], check=True, timeout=300)
    done = torchrun(2, *arguments, str(folder / "two"), *METHODS)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("method", sorted(METHODS))
def test_two_processes_have_the_losses_and_results_of_one(runs: Path, method: str) -> None:
    one, two = runs / "one" / method, runs / "two" / method
    assert relative_difference(curve(two), curve(one)) < 1e-3
    models = [load_bundle(run / "model") for run in (one, two)]
    first, second = (model.network.state_dict() for model in models)
    for name, value in first.items():
        assert torch.allclose(second[name].float(), value.float(), rtol=1e-2, atol=1e-4), name
    classifiers = [model.discriminant for model in models if model.discriminant]
    if classifiers:
        alone, shared = classifiers
        assert torch.allclose(shared.solve().means, alone.solve().means, rtol=1e-2, atol=1e-3)
        assert torch.equal(shared.counts, alone.counts)
    tables = [Table.load(run / "predictions" / "task-1.csv.gz") for run in (one, two)]
    assert tables[0].path == tables[1].path
    assert tables[1].p_true == pytest.approx(tables[0].p_true, abs=1e-3)


def test_a_checkpoint_of_two_processes_is_continued_by_one(runs: Path, tmp_path: Path) -> None:
    """And one that a lost process has left behind: the other one says so, and the run can be resumed."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "settings.txt").write_text((runs / "two" / "settings.txt").read_text())
    (tmp_path / "dies.py").write_text(DIES + SCRIPT)
    (tmp_path / "train.py").write_text(SCRIPT)
    arguments = [str(runs / "photos"), str(tmp_path / "out"), "fdcnet"]
    done = torchrun(2, str(tmp_path / "dies.py"), *arguments)
    assert done.returncode != 0
    # Whichever comes first: the broken connection, or the signal by which torchrun ends the other process. The signal
    # may also end it while it reports the broken connection.
    reports = ("Another process of this run has failed or was stopped.", "Stopping after this step.")
    messages = (*reports, "Signal 15 (SIGTERM) received")
    assert any(message in done.stderr for message in messages), done.stderr
    position = checkpoint.read_position(tmp_path / "out" / "fdcnet")
    assert position is not None
    assert position.task == 2
    subprocess.run([sys.executable, str(tmp_path / "train.py"), *arguments], check=True, timeout=300)
    expected = curve(runs / "one" / "fdcnet")
    assert relative_difference(curve(tmp_path / "out" / "fdcnet"), expected) < 1e-3


def test_the_parts_of_a_shared_batch(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    done = torchrun(2, str(tmp_path / "parts.py"))
    assert done.returncode == 0, done.stderr
