"""The one exception for mistakes a user can repair, and what messages are made of."""

import errno
import re

MAX_CHARACTERS = 2000  # of a message that quotes a file
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORTAGE = re.compile("can't allocate memory|not enough memory|out of memory|can't start new thread", re.IGNORECASE)


class UserError(ValueError):
    """A mistake in the input: what is wrong, and what to do. The command prints both lines and exits with code 2."""

    def __init__(self, problem: str, remedy: str) -> None:
        if len(problem) > MAX_CHARACTERS:
            problem = f"{problem[: MAX_CHARACTERS - 200]} ... {problem[-200:]}"
        super().__init__(f"{problem}\n{remedy}")
        self.problem = problem
        self.remedy = remedy


def out_of_memory(error: BaseException, doing: str) -> UserError | None:
    """A message if `error` means that memory or threads ran out, else None."""
    by_type = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    by_number = isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN)
    if not (by_type or by_number or _SHORTAGE.search(str(error))):
        return None
    if "CUDA" in str(error):
        return UserError(
            f"Out of GPU memory while {doing}.",
            "For training, lower train.batch_size or data.crop. Otherwise close other programs on the GPU, or use "
            "--device cpu.",
        )
    return UserError(
        f"Out of memory or threads while {doing}.",
        "Close other programs or raise the limits of this process. For training, lower train.batch_size or data.size.",
    )


def printable(text: str) -> str:
    """Escape control characters, so that the name of a file cannot send commands to the terminal."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def count(amount: int, one: str) -> str:
    """1 photo, 2 photos, 1,200 classes, 3 boxes."""
    return f"{amount:,} {one}{'' if amount == 1 else 'es' if one.endswith(('s', 'x')) else 's'}"
