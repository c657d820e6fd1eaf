"""`fdcnet methods`"""

from fdcnet.cli.console import console
from fdcnet.methods import all_methods


def methods() -> None:
    """List the methods: what each does, and where it comes from."""
    for name, method in all_methods().items():
        console.print(f"[bold]{name}[/]")
        console.print(f"  {method.summary}\n  {method.reference}", markup=False, highlight=False)
