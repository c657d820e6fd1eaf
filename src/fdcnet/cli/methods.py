"""`fdcnet methods`"""

from fdcnet.cli.console import console


def methods() -> None:
    """List the methods: what each does, and the paper it comes from."""
    from fdcnet.methods import METHODS

    for name, method in METHODS.items():
        console.print(f"[bold]{name}[/]")
        console.print(f"  {method.summary}\n  {method.reference}", markup=False, highlight=False)
