"""Windows, as far as it can be simulated: names that Python lacks there, and the rules for files that are in use.

`python tests/windows.py '[["learn", "model", "photos"]]'` runs commands of `fdcnet` under these rules. Other packages
have their own code for Windows, which is not simulated.
"""

import builtins
import importlib
import json
import os
import pkgutil
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

import numpy as np

ABSENT_MODULES = {"fcntl", "grp", "pwd", "pty", "resource", "syslog", "termios"}
ABSENT = {
    "os": (
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "fchmod", "fork", "getgid", "getloadavg", "getuid"),
        *("killpg", "mkfifo", "nice", "sched_getaffinity", "setsid", "statvfs", "sysconf", "uname", "wait"),
    ),
    "signal": ("SIGALRM", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "alarm", "pause", "setitimer"),
    "sys": (),
}
CHANGED = {"os": {"name": "nt"}, "sys": {"platform": "win32"}, "signal": {}}
FORBIDDEN = re.compile(r'[<>:"|?*\x00-\x1f]|[ .]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)', re.IGNORECASE)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class WindowsModule(ModuleType):
    """A module of the standard library as it is on Windows."""

    def __init__(self, real: ModuleType) -> None:
        super().__init__(real.__name__)
        self.__dict__.update({key: value for key, value in vars(real).items() if key not in ABSENT[real.__name__]})
        self.__dict__.update(CHANGED[real.__name__])


def install() -> None:
    """From here on, `fdcnet` sees the modules of Windows, and the whole process its rules for files."""
    real_import, real_rename = builtins.__import__, os.rename

    def rename(source: Any, target: Any, **options: Any) -> None:
        if Path(target).exists():
            raise FileExistsError(17, "Cannot create a file when that file already exists", str(target))
        real_rename(source, target, **options)

    os.rename = rename  # os.replace may overwrite a file
    modules = {name: WindowsModule(importlib.import_module(name)) for name in ABSENT}

    def import_(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        ours = (globals or {}).get("__name__", "").startswith("fdcnet")
        if ours and level == 0 and name in ABSENT_MODULES:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        if ours and level == 0 and name in modules:
            return modules[name]
        return real_import(name, globals, locals, fromlist, level)

    builtins.__import__ = import_
    warnings.filterwarnings("ignore", category=EncodingWarning)
    warnings.filterwarnings("error", category=EncodingWarning, module=r"fdcnet\.")  # UTF-8 is not the default there
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # it would open folders
    tempfile.TemporaryFile = tempfile.NamedTemporaryFile  # type: ignore[misc,assignment]  # as tempfile does there
    sys.addaudithook(_apply_file_rules)


def _apply_file_rules(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], (str, PurePath)):
        path, flags = Path(arguments[0]), arguments[2] or 0
        if flags & WRITING:
            _check_name(path)
        elif path.is_dir():
            raise PermissionError(13, "Permission denied: a folder", str(path))
    elif event == "os.mkdir":
        _check_name(Path(arguments[0]))
    elif event == "os.rename":
        source, target = (Path(name) for name in arguments[:2])
        _check_name(target)
        _check_unused(source)
        _check_unused(target)
        if target.is_dir():
            raise PermissionError(13, "Access is denied: a folder is there", str(target))
    elif event in ("os.remove", "os.rmdir"):
        _check_unused(Path(arguments[0]))
    elif event == "os.symlink":
        raise OSError(1314, "A required privilege is not held by the client")


def _check_name(path: Path) -> None:
    if FORBIDDEN.search(path.name):
        raise OSError(22, "Invalid argument: a file name that Windows does not allow", str(path))


def _check_unused(path: Path) -> None:
    """A file that is open or mapped can be neither renamed nor removed, and neither can its folder."""
    place = str(path.absolute())
    for used in _used_files():
        if used == place or used.startswith(place + os.sep):
            raise PermissionError(13, f"The process cannot access the file because it is used: {used}", str(path))


def _used_files() -> set[str]:
    used = {line.split(maxsplit=5)[-1].rstrip("\n") for line in _maps() if "/" in line}
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            used.add(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
        except OSError:
            continue
    return used


def _maps() -> list[str]:
    descriptor = os.open("/proc/self/maps", os.O_RDONLY)
    with os.fdopen(descriptor, encoding="utf-8") as file:
        return file.readlines()


def import_everything() -> None:
    import fdcnet

    for module in pkgutil.walk_packages(fdcnet.__path__, "fdcnet."):
        if module.name != "fdcnet.__main__":
            importlib.import_module(module.name)


def show_rules() -> None:
    """Break each rule once, and print what happens."""
    Path("folder").mkdir()
    mapped = np.memmap("folder/mapped", np.uint8, "w+", shape=1)
    Path("free").touch()
    with Path("open").open("xb"):
        attempts: dict[str, Callable[[], object]] = {
            "rename to an existing file": lambda: Path("free").rename("open"),
            "remove an open file": lambda: Path("open").unlink(),
            "rename the folder of a mapped file": lambda: Path("folder").rename("other"),
            "open a folder": lambda: os.open("folder", os.O_RDONLY),
            "create con.txt": lambda: Path("con.txt").touch(),
            "link": lambda: Path("link").symlink_to("free"),
        }
        for name, attempt in attempts.items():
            try:
                attempt()
                print(f"{name}: allowed")
            except OSError as error:
                print(f"{name}: {type(error).__name__}")
    del mapped
    seen: dict[str, Any] = {"__name__": "fdcnet.example"}
    exec("import os, sys", seen)
    try:
        exec("import fcntl", seen)
    except ModuleNotFoundError:
        fork = hasattr(seen["os"], "fork")
        print(f"fdcnet sees fcntl: False, os.fork: {fork}, sys.platform: {seen['sys'].platform}")


def run(command: list[str]) -> None:
    from fdcnet.cli import main

    sys.argv = ["fdcnet", *command]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    print(end="\0")


if __name__ == "__main__":
    install()
    import_everything()
    if len(sys.argv) == 1:
        show_rules()
    for command in json.loads(sys.argv[1]) if len(sys.argv) > 1 else ():
        run(command)
