import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fdcnet.errors import UserError
from fdcnet.files import remove_leftovers
from fdcnet.training.checkpoint import FILE, Position, read_checkpoint, remove_checkpoint, save_checkpoint


def network(value: float) -> nn.Module:
    module = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3))
    for parameter in module.parameters():
        nn.init.constant_(parameter, value)
    return module


def test_what_was_saved_is_read_again(tmp_path: Path) -> None:
    saved = network(1 / 3)
    momenta = {"0.weight": torch.randn(3, 2, 1, 1).to(memory_format=torch.channels_last), "0.bias": torch.randn(3)}
    save_checkpoint(tmp_path, Position(task=2, phase=1, epochs_done=7), saved, momenta)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.position == Position(2, 1, 7)
    assert checkpoint.network.keys() == saved.state_dict().keys()
    for name, value in saved.state_dict().items():
        assert torch.equal(checkpoint.network[name], value)
        assert checkpoint.network[name].dtype == value.dtype
    assert checkpoint.momenta.keys() == momenta.keys()
    for name, value in momenta.items():
        assert torch.equal(checkpoint.momenta[name], value)


def test_without_one_there_is_none(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None
    remove_checkpoint(tmp_path)


def test_the_next_one_replaces_it_and_removing_leaves_nothing(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, Position(1, 0, 1), network(1.0), {})
    save_checkpoint(tmp_path, Position(1, 0, 2), network(2.0), {})
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.position.epochs_done == 2
    assert checkpoint.network["0.bias"].tolist() == [2.0] * 3
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    remove_checkpoint(tmp_path)
    assert list(tmp_path.iterdir()) == []


KILLED_WHILE_SAVING = """
import os, pathlib, sys
from torch import nn
from fdcnet.training.checkpoint import Position, save_checkpoint
os.fsync = lambda descriptor: os._exit(9)  # the file beside is written, the move has not happened
save_checkpoint(pathlib.Path(sys.argv[1]), Position(1, 0, 2), nn.Linear(2, 2), {})
"""


def test_a_kill_while_saving_leaves_the_last_good_one(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, Position(1, 0, 1), network(1.0), {})
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_SAVING, str(tmp_path)], check=False)
    assert done.returncode == 9
    assert len(list(tmp_path.iterdir())) == 2
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.position.epochs_done == 1
    remove_leftovers(tmp_path, older_than=0)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_damaged_checkpoint_says_what_to_do(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, Position(1, 0, 1), network(1.0), {"0.bias": torch.ones(3)})
    content = bytearray((tmp_path / FILE).read_bytes())
    for place in (0, 9, len(content) // 3, len(content) // 2, len(content) - 1):
        content[place] ^= 4
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(UserError, match="is damaged") as caught:
            read_checkpoint(tmp_path)
        assert "starts over from the last saved model" in caught.value.remedy
        content[place] ^= 4


def test_a_checkpoint_from_before_checksums_is_read(tmp_path: Path) -> None:
    position = {"task": 1, "phase": 0, "epochs_done": 3}
    tensors = {"network.a": torch.ones(2), "momentum.b": torch.zeros(1)}
    save_file(tensors, tmp_path / FILE, metadata={"position": json.dumps(position)})
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None and checkpoint.position.epochs_done == 3
