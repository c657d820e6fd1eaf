from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fdcnet.config import Config, Protocol
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import BoxXYXY, Record
from fdcnet.errors import UserError
from fdcnet.evaluation.measure import eval_batch_size, examples_of, measure, pick_examples, targets_of
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import Method, State
from fdcnet.models.network import new_network
from fdcnet.runtime.runtime import Runtime

Make = Callable[..., Config]
CLASSES = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]


def photos(labels: list[str], boxes: tuple[BoxXYXY, ...] = ()) -> PixelCache:
    records = tuple(Record(Path("/data/test") / label / f"{i}.jpg", label, boxes) for i, label in enumerate(labels))
    pixels = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].expand(-1, 40, 40, 3).clone()
    return PixelCache(records, torch.tensor([[80, 20]] * len(labels)), pixels)


def state_of(make: Make, *task_sizes: int) -> State:
    config = make("finetune")
    network = new_network(config.model, 0)
    network.grow(sum(task_sizes))
    return State(config, network.eval(), ExemplarMemory(9), list(CLASSES[: sum(task_sizes)]), list(task_sizes))


def test_targets_carry_label_size_boxes_and_a_path_without_the_machine() -> None:
    box = (1.0, 2.0, 3.0, 4.0)
    first, second = targets_of(photos(["bee", "ant"], (box,)), ["ant", "bee"])
    assert (first.path, first.label, first.image_size, first.boxes_xyxy) == ("bee/0.jpg", 1, (80, 20), (box,))
    assert (second.path, second.label) == ("ant/1.jpg", 0)


def test_an_unknown_class_is_refused_with_what_is_known() -> None:
    with pytest.raises(UserError) as error:
        targets_of(photos(["ant", "yak"]), CLASSES)
    assert error.value.problem == "The model does not know the class 'yak' of /data/test/yak/1.jpg."
    assert error.value.remedy == "It knows 7 classes, such as ant, bee, cat. Leave the others out."


def test_no_photos_are_refused_in_words(small_config: Make) -> None:
    state = state_of(small_config, 2)
    with pytest.raises(UserError, match="no test photos"):
        measure(state, Method(), Runtime.of(state.config), photos([]), [Protocol()])


def test_examples_are_spread_over_the_classes_of_each_task(small_config: Make) -> None:
    # rows: two photos of each class; the first of the first, middle and last class of a task of five: ant, cat, eel
    records = photos([name for name in CLASSES for _ in range(2)]).records
    assert pick_examples(records, state_of(small_config, 5)) == [0, 4, 8]
    assert pick_examples(records, state_of(small_config, 5, 2)) == [0, 4, 8, 10, 12]


def test_every_class_has_examples_at_the_end(small_config: Make) -> None:
    records = photos([name for name in CLASSES[:2] for _ in range(8)]).records
    assert pick_examples(records, state_of(small_config, 2), every_class=True) == [0, 8, *range(1, 6), *range(9, 14)]


def test_examples_stay_the_same_while_tasks_come(small_config: Make) -> None:
    names = ["bee", "ant", "bee", "dog", "cat", "cat", "fox", "eel", "gnu"]
    everything = photos(names)
    shown: list[list[Path]] = []
    for sizes in ((2,), (2, 2), (2, 2, 3)):
        state = state_of(small_config, *sizes)
        part = everything.of_classes(state.classes)
        shown.append([part.records[row].path for row in pick_examples(part.records, state)])
    assert [len(paths) for paths in shown] == [2, 4, 7]
    assert shown[1][:2] == shown[0]
    assert shown[2][:4] == shown[1]


def test_a_class_without_test_photos_is_no_example(small_config: Make) -> None:
    records = photos(["bee", "cat"]).records
    assert pick_examples(records, state_of(small_config, 2, 1)) == [0, 1]
    assert pick_examples(records[:1], state_of(small_config, 2, 1)) == [0]


def test_the_facts_of_an_example_are_those_of_its_row(small_config: Make) -> None:
    state = state_of(small_config, 2, 1)
    protocol = Protocol(crops=1, frame="crop")
    cache = photos(["ant", "cat"], ((8.0, 2.0, 48.0, 12.0),))  # in 40 x 40: 4, 4, 24, 24; the crop begins at 4
    [table] = measure(state, Method(), Runtime.of(state.config), cache, [protocol], keep=[1])
    [(name, photo, heat, facts)] = examples_of(state, cache, table, protocol, [1])
    assert name == "cat-1"
    assert photo.shape == (32, 32, 3)
    assert np.all(photo == 1)
    assert heat.shape == (32, 32)
    assert facts["label"] == "cat"
    assert facts["class_task"] == 2
    assert facts["predicted"] in state.classes
    assert facts["box"] == table.box[1].tolist()
    assert facts["true_boxes"] == [[0.0, 0.0, 20.0, 20.0]]
    assert facts["iou"] == pytest.approx(float(table.iou[1]))


def test_examples_with_the_same_file_name_have_names_of_their_own(small_config: Make) -> None:
    state, cache = state_of(small_config, 2), photos(["ant", "bee", "bee", "bee"])
    files = ("ant/1.jpg", "bee/1.jpg", "bee/1.png", "bee/more/1.jpg")
    records = (replace(r, path=Path("/data/test") / file) for r, file in zip(cache.records, files, strict=True))
    cache = replace(cache, records=tuple(records))
    [table] = measure(state, Method(), Runtime.of(state.config), cache, [Protocol()], keep=range(4))
    names = [name for name, *_ in examples_of(state, cache, table, Protocol(), range(4))]
    assert names == ["ant-1", "bee-1", "bee-bee/1.png", "bee-bee/more/1.jpg"]


def test_many_classes_are_evaluated_on_fewer_photos_at_a_time() -> None:
    sizes = [eval_batch_size(torch.device("cuda"), num) for num in (0, 200, 1000, 2000, 10_000, 10**6)]
    assert sizes == [256, 256, 256, 128, 25, 1]
    assert eval_batch_size(torch.device("cpu"), 10_000) == 3
