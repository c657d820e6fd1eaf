"""`fdcnet methods`"""

from fdcnet.cli.console import console


def methods() -> None:
    """List the methods: what each does, and the paper it comes from."""
    from fdcnet.methods import all_methods

    for name, method in all_methods().items():
        console.print(f"[bold]{name}[/]")
        console.print(f"  {method.summary}\n  {method.reference}", markup=False, highlight=False)
