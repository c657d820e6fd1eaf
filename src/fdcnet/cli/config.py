"""`fdcnet config show` and `fdcnet config list`"""

import typer

from fdcnet import config as settings
from fdcnet.cli import options
from fdcnet.cli.console import console

app = typer.Typer(no_args_is_help=True, help="Show settings and recipes.")


@app.command("list")
def list_() -> None:
    """List the recipes that come with fdcnet: DATA-BACKBONE-METHOD."""
    console.print("\n".join(settings.recipe_names()), markup=False, highlight=False)


@app.command()
def show(
    method: options.Method = None,
    recipe: options.Recipe = None,
    set_: options.Set = [],  # noqa: B006 typer copies it
) -> None:
    """Print the settings as a recipe: the defaults, changed by a recipe, `--set` and `--method`.

    Example: `fdcnet config show -r cub200-mobilenet_v1-joint --set seed=1 > mine.yaml`
    """
    config = settings.load(recipe, set_, method=method)
    console.print(settings.to_yaml(config), end="", markup=False, highlight=False)
