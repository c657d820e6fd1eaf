"""A page as PDF, printed by an installed Chromium, Chrome or Edge."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from fdcnet.errors import UserError
from fdcnet.files import write_bytes

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "chrome", "microsoft-edge", "msedge")
APPLICATIONS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
)
SECONDS = 300


def find_browser() -> str:
    """The command of the first browser that is installed."""
    found = next((path for name in COMMANDS if (path := shutil.which(name))), None)
    found = found or next((path for path in APPLICATIONS if Path(path).is_file()), None)
    if found is None:
        raise UserError(
            "There is no browser to write a PDF.",
            "Install Chromium, Chrome or Edge, or open the HTML page in another browser and print it to a file.",
        )
    return found


def write_pdf(page: Path, target: Path) -> Path:
    """Print an HTML page to `target` and return its path."""
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="fdcnet-pdf-", ignore_cleanup_errors=True) as folder:
        printed = Path(folder) / "page.pdf"
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--no-pdf-header-footer",
            f"--user-data-dir={folder}/profile",
            f"--print-to-pdf={printed}",
            *(["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),  # the sandbox refuses root
            page.resolve().as_uri(),
        ]
        try:
            subprocess.run(command, capture_output=True, check=True, timeout=SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise UserError(f"{browser} could not print the page: {error}", _REMEDY) from error
        if not printed.is_file():
            raise UserError(f"{browser} did not write a PDF.", _REMEDY)
        write_bytes(target, printed.read_bytes())
    return target


_REMEDY = "Open the HTML page in a browser and print it to a file."
