import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fdcnet.errors import UserError
from fdcnet.files import (
    creating,
    did_you_mean,
    is_temporary,
    locked,
    old_name,
    open_regular,
    remove_folder,
    remove_leftovers,
    replacing,
    sha256,
    write_bytes,
)

ABC_SHA256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / ("n" * 250 + ".json")
    write_bytes(path, b"old")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"half" * (1 // 0))
    assert path.read_bytes() == b"old" and list(path.parent.iterdir()) == [path]
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old" and is_temporary(Path(file.name))
    assert path.read_bytes() == b"new" and list(path.parent.iterdir()) == [path]


def test_a_written_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"")
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for text in ("one", "two"):
        with creating(path, replace=True) as new:
            (new / "inner").mkdir()
            (new / "inner" / "file").write_text(text)
        assert (path / "inner" / "file").read_text() == text
    with pytest.raises(ZeroDivisionError), creating(path, replace=True):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == [path] and (path / "inner" / "file").read_text() == "two"
    with pytest.raises(OSError, match="not empty"), creating(path):
        pass
    assert list(tmp_path.iterdir()) == [path] and not old_name(path).exists()


def test_removing_a_link_leaves_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    remove_folder(tmp_path / "link")
    remove_folder(tmp_path / "missing")
    assert [path.name for path in tmp_path.rglob("*")] == ["photos", "a.jpg"]


def test_leftovers_of_killed_writers_are_removed_once_they_are_old(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib; from fdcnet.files import creating, replacing\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "with replacing(path / 'a') as file, creating(path / 'b') as folder:\n"
        "    (folder / 'x').touch(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    (tmp_path / "notes.tmp").touch()
    remove_leftovers(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.tmp"]


def test_a_second_writer_is_refused_and_told_who_holds_the_lock(tmp_path: Path) -> None:
    problems = []

    def second() -> None:
        try:
            with locked(tmp_path):
                problems.append("entered")
        except UserError as error:
            problems.append(error.problem)

    with locked(tmp_path):
        for _ in range(2):  # the first must not wipe out the name
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()
    second()
    held = f"{tmp_path} is being changed by process {os.getpid()} on {os.uname().nodename}."
    assert problems == [held, held, "entered"]
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "precious").write_text("content")
    (tmp_path / "model" / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic"), locked(tmp_path / "model"):
        pass
    assert (tmp_path / "precious").read_text() == "content"


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(OSError, match=r"pipe\.jpg is not a regular file"):
        open_regular(tmp_path / "pipe.jpg")
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert sha256(tmp_path / "link") == ABC_SHA256
    with pytest.raises(OSError, match="link is a link"):
        open_regular(tmp_path / "link", follow_links=False)


def test_the_nearest_name_is_suggested() -> None:
    assert did_you_mean("fdcnt", ["joint", "fdcnet"], "Choose one.") == "Did you mean 'fdcnet'?"
    assert did_you_mean("leraning", ["learning"], "", prefix="train.") == "Did you mean 'train.learning'?"
    assert did_you_mean("zzz", ["joint"], "Choose one.") == "Choose one."
