"""The one exception for mistakes a user can repair: what is wrong, and what to do about it."""


class UserError(ValueError):
    """A mistake in the input. The command line prints both lines and leaves with exit code 2."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}\n{remedy}")
        self.problem = problem
        self.remedy = remedy
