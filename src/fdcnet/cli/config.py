"""`fdcnet config show`"""

import typer

from fdcnet import config as settings
from fdcnet.cli import options
from fdcnet.cli.console import console

app = typer.Typer(no_args_is_help=True, help="Settings: what a run would use.")


@app.command()
def show(recipe: options.Recipe = None, set_: options.Set = []) -> None:  # noqa: B006 typer copies it
    """Print the settings as a recipe: the defaults, changed by a recipe, changed by `--set`.

    Example: `fdcnet config show -r recipes/cub200-mobilenet_v1-joint.yaml --set seed=1 > mine.yaml`
    """
    console.print(settings.to_yaml(settings.load(recipe, set_)), end="", markup=False, highlight=False)
