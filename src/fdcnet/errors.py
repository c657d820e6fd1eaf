"""The one exception for mistakes a user can repair, and amounts in messages."""


class UserError(ValueError):
    """A mistake in the input: what is wrong, and what to do. The command prints both lines and exits with code 2."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}\n{remedy}")
        self.problem = problem
        self.remedy = remedy


def count(amount: int, one: str) -> str:
    """1 photo, 2 photos, 1,200 classes."""
    return f"{amount:,} {one}{'' if amount == 1 else 'es' if one.endswith('s') else 's'}"
