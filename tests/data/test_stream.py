"""Tasks: which classes arrive when, and which photos each task trains and tests on."""

from collections import Counter
from pathlib import Path

import pytest

from fdcnet.data.records import Dataset, Record
from fdcnet.data.sources import read
from fdcnet.data.stream import append_task, class_order, fingerprint, make_stream
from fdcnet.errors import UserError


def make(classes: str = "abcdefg", photos: int = 3, tests: int = 2) -> Dataset:
    def records(split: str, count: int) -> tuple[Record, ...]:
        return tuple(Record(Path(split, name, f"{i}.jpg"), name) for i in range(count) for name in reversed(classes))

    return Dataset("letters", tuple(classes), records("train", photos), records("test", tests))


def labels(records: tuple[Record, ...]) -> str:
    return "".join(record.label for record in records)


def test_a_dataset_prints_in_one_line() -> None:
    assert repr(make()) == "<Dataset letters: 7 classes, 21 training photos, 14 test photos>"


def test_base_and_steps_with_a_smaller_last_task() -> None:
    tasks = make_stream(make(), base_classes=3, step_classes=3)
    assert [(t.number, t.classes, t.first_label, t.num_classes) for t in tasks] == [
        (1, ("a", "b", "c"), 0, 3),
        (2, ("d", "e", "f"), 3, 6),
        (3, ("g",), 6, 7),
    ]
    assert [labels(t.train) for t in tasks] == ["aaabbbccc", "dddeeefff", "ggg"]
    assert [labels(t.test) for t in tasks] == ["aabbcc", "aabbccddeeff", "aabbccddeeffgg"]
    assert tasks[1].test[:6] == tasks[0].test


@pytest.mark.parametrize(
    ("base", "step", "sizes"),
    [
        (0, 0, [7]),
        (7, 0, [7]),
        (7, 2, [7]),
        (2, 0, [2, 5]),
        (2, 5, [2, 5]),
        (2, 1, [2, 1, 1, 1, 1, 1]),
        (2, 100, [2, 5]),
    ],
)
def test_task_sizes(base: int, step: int, sizes: list[int]) -> None:
    assert [len(task.classes) for task in make_stream(make(), base, step)] == sizes


@pytest.mark.parametrize(
    ("base", "step", "problem"),
    [
        (8, 0, "asks for 8 classes, the data has 7"),
        (0, 2, "but not base_classes"),
        (-1, 0, "negative"),
        (2, -1, "negative"),
    ],
)
def test_impossible_sizes(base: int, step: int, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        make_stream(make(), base, step)


def test_one_class_only_is_no_first_task() -> None:
    with pytest.raises(UserError, match="one class only"):
        make_stream(make("a"))
    with pytest.raises(UserError, match="one class only"):
        make_stream(make(), 1, 2)
    with pytest.raises(UserError, match="one class only"):
        append_task([], make("a"))


def test_class_without_training_photos_is_named() -> None:
    data = make("ab")
    with pytest.raises(UserError, match="Class 'b' has no training photos"):
        make_stream(Dataset("x", ("a", "b"), tuple(r for r in data.train if r.label == "a"), data.test))


def test_a_class_in_two_tasks_is_refused() -> None:
    data = make("ab")
    with pytest.raises(UserError, match="names the class 'a' twice"):
        make_stream(Dataset("x", ("a", "b", "a"), data.train), 2, 1)


def test_seeded_order_is_a_shuffle_fixed_by_the_seed() -> None:
    data = make()
    first = class_order(data, "seeded", 1)
    assert sorted(first) == list("abcdefg")
    assert first == class_order(data, "seeded", 1)
    assert len({class_order(data, "seeded", seed) for seed in range(20)}) > 15
    # random.Random(0) begins .844 .758 .421 .259 .511 .405 .784: by size d f c e b g a, on every machine
    assert "".join(class_order(data, "seeded", 0)) == "dfcebga"


def test_order_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "order.txt"
    file.write_text("\ufeffg\n\n a \nd\n", encoding="utf-8")
    tasks = make_stream(make(), 2, 1, order=str(file))
    assert [task.classes for task in tasks] == [("g", "a"), ("d",)]
    assert labels(tasks[1].test) == "ggaadd"


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ("cat\ndgo\n", "names the class 'dgo'", "Did you mean 'dog'"),
        ("cat\n12345\n", "names the class '12345'", "It has: cat, dog"),
        ("cat\ndog\ncat\n", "names the class 'cat' twice", "one task only"),
        ("\n", "names no class", "one class per line"),
    ],
)
def test_mistakes_in_the_order_file(tmp_path: Path, text: str, problem: str, remedy: str) -> None:
    data = Dataset("pets", ("cat", "dog"), (Record(Path("1"), "cat"), Record(Path("2"), "dog")))
    (tmp_path / "order.txt").write_text(text)
    with pytest.raises(UserError, match=problem) as caught:
        make_stream(data, order=str(tmp_path / "order.txt"))
    assert remedy in caught.value.remedy


def test_unknown_order() -> None:
    with pytest.raises(UserError, match="There is no class order 'random'"):
        make_stream(make(), order="random")


def test_holdout_takes_a_share_of_each_class() -> None:
    data = make("abc", photos=20, tests=4)
    (task,) = make_stream(data, holdout=0.1, seed=5)
    assert Counter(labels(task.test)) == {"a": 2, "b": 2, "c": 2}
    assert len(task.train) == 54
    assert set(task.train) | set(task.test) == set(data.train)
    assert not set(task.train) & set(task.test)
    assert make_stream(data, holdout=0.1, seed=5) == [task]
    assert make_stream(data, holdout=0.1, seed=6) != [task]


def test_holdout_chooses_the_same_photos_on_every_machine() -> None:
    (task,) = make_stream(make("ab", photos=10), holdout=0.2, seed=5)
    # random.Random("5 a"): .111 .668 .697 .812 .033 .758 .477 .622 .392 .998: the two smallest are 0 and 4
    # random.Random("5 b"): .773 .666 .340 .149 .424 .820 .100 .088 .080 .392: 7 and 8
    assert [f"{r.label}{r.path.stem}" for r in task.test] == ["a0", "a4", "b7", "b8"]


def test_holdout_is_at_least_one_and_leaves_at_least_one() -> None:
    (task,) = make_stream(make("ab", photos=3), holdout=0.01)
    assert Counter(labels(task.test)) == {"a": 1, "b": 1}
    with pytest.raises(UserError, match="Class 'a' has 1 training photo: holdout would leave none"):
        make_stream(make("ab", photos=1), holdout=0.1)
    for share in (1.0, -0.1, 1.5):
        with pytest.raises(UserError, match="holdout cannot be"):
            make_stream(make(), holdout=share)


def test_holdout_does_not_depend_on_order_or_tasks() -> None:
    data = make("abcd", photos=10)
    together = make_stream(data, holdout=0.3, seed=1)[0]
    apart = make_stream(data, 2, 1, order="seeded", holdout=0.3, seed=1)[-1]
    assert set(together.test) == set(apart.test)


def test_append_task() -> None:
    task = append_task(["x", "y"], make("ab"), number=4)
    assert (task.number, task.classes, task.first_label, task.num_classes) == (4, ("a", "b"), 2, 4)
    assert (labels(task.train), labels(task.test)) == ("aaabbb", "aabb")
    assert append_task(["x", "y"], make("a")).classes == ("a",)  # one new class beside known ones
    assert append_task([], make("ab")).number == 1
    assert append_task(["x", "y"], make("a")).number == 2
    with pytest.raises(UserError, match="already knows 'b'"):
        append_task(["x", "b"], make("ab"))


def write(root: Path, **contents: bytes) -> list[Record]:
    records = []
    for name, data in contents.items():
        path = root / name / "1.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        records.append(Record(path, name))
    return records


def test_fingerprint_is_of_names_labels_and_sizes(tmp_path: Path) -> None:
    first = write(tmp_path / "one", cat=b"12", dog=b"345")
    moved = write(tmp_path / "two" / "deeper", cat=b"xy", dog=b"zzz")
    assert fingerprint(first) == fingerprint(reversed(moved))
    assert len(fingerprint(first)) == 16
    others = [
        write(tmp_path / "size", cat=b"12", dog=b"3456"),
        write(tmp_path / "name", cat=b"12", dig=b"345"),
        [first[0], Record(first[1].path, "cat")],
        first[:1],
        [],
    ]
    assert len({fingerprint(records) for records in [first, *others]}) == 6


def test_fingerprint_names_a_lost_photo(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.jpg cannot be read"):
        fingerprint([Record(tmp_path / "gone.jpg", "cat")])


def test_cub_stream_real(shared_data: Path) -> None:
    tasks = make_stream(read(shared_data / "CUB_200_2011"), 100, 20)
    assert [len(task.classes) for task in tasks] == [100, 20, 20, 20, 20, 20]
    assert len(tasks[-1].test) == 5794
    assert sum(len(task.train) for task in tasks) == 5994
    assert tasks[1].classes[0].startswith("101.")
