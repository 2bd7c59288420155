"""Makes the pictures of the README from real runs: a terminal, and the report in a browser.

    python docs/make_pictures.py            # needs pmapx[tools] and Chromium

The commands are run on a copy of the demo's program, and what they print is what is drawn.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

CHECKOUT = Path(__file__).resolve().parents[1]
ASSETS = CHECKOUT / "docs" / "assets"
COLUMNS = 96
# What is typed, and which lines of the answer are kept.
ALL, LAST, LAST_BUT_SPEED = slice(None), slice(-1, None), slice(-3, -1)
SCENE = [
    ("python train.py --steps 60", LAST),
    ("pmapx run train.py --steps 60", LAST_BUT_SPEED),
    ("pmapx check train.py --select PMX511", ALL),
    ("pmapx migrate train.py --write --no-diff", ALL),
    ("python train.py --steps 60", LAST_BUT_SPEED),
]


def main() -> None:
    """Runs the scene in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(CHECKOUT / "examples" / "demo" / "train.py", folder)
        draw_report(Path(folder))
        draw_terminal(Path(folder))


def draw_terminal(folder: Path) -> None:
    """Draws what was typed and said, as a terminal shows it."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    for typed, kept in SCENE:
        console.print(Text.assemble(("$ ", "bold green"), (typed, "bold")))
        lines = said(typed, folder).strip().splitlines()
        for line in lines[kept]:
            console.print(Text.from_ansi(line))
        console.print()
    svg = console.export_svg(title="pmapx")
    # Fonts would be fetched from elsewhere; the reader's own will do.
    svg = re.sub(r"<!-- Generated with Rich.*?-->", "", svg)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    write("terminal.svg", svg.encode())


def said(typed: str, folder: Path) -> str:
    """Returns what a command says; of one that fails, its error too."""
    command = typed.split()
    command[:1] = [sys.executable] if command[0] == "python" else [sys.executable, "-m", "pmapx"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(CHECKOUT / "src"),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "FORCE_COLOR": "1",
        "COLUMNS": str(COLUMNS),
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + (done.stderr if done.returncode else "")


def draw_report(folder: Path) -> None:
    """Takes a picture of the page of a migration, at its first site."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium here: the report's picture stays as it is")
        return
    said("pmapx migrate train.py --no-diff --report report.html", folder)
    subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--screenshot={folder / 'report.png'}", "--window-size=1200,760"),
            f"--user-data-dir={folder / 'profile'}",
            (folder / "report.html").as_uri() + "#site-0",
        ],
        capture_output=True,
        check=True,
    )
    write("report.png", (folder / "report.png").read_bytes())


def write(name: str, picture: bytes) -> None:
    """Keeps a picture, and says how large it is."""
    (ASSETS / name).write_bytes(picture)
    print(f"docs/assets/{name}: {len(picture) // 1024} KiB")


if __name__ == "__main__":
    main()
