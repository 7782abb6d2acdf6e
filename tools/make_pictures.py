"""Draw the terminal after `make demo`, for the README: `python -m tools.make_pictures runs/demo`."""

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from fedwcm import Comparison, open_run
from fedwcm.cli.results_table import print_comparison

PICTURE = Path("docs/images/demo.svg")
WIDTH = 96
THEME = TerminalTheme(
    (13, 17, 23),
    (230, 237, 243),
    [
        (72, 79, 88),
        (255, 123, 114),
        (63, 185, 80),
        (210, 153, 34),
        (88, 166, 255),
        (188, 140, 255),
        (57, 197, 207),
        (177, 186, 196),
    ],
    [
        (110, 118, 129),
        (255, 161, 152),
        (86, 211, 100),
        (227, 179, 65),
        (121, 192, 255),
        (210, 168, 255),
        (86, 212, 221),
        (255, 255, 255),
    ],
)


def main() -> None:
    """Print the comparison to a terminal that is a picture."""
    comparison = open_run(sys.argv[1])
    assert isinstance(comparison, Comparison)
    screen = Console(
        record=True,
        width=WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    screen.print("[bold]$ make demo[/bold]")
    print_comparison(comparison, screen)
    svg = screen.export_svg(title="fedwcm", theme=THEME, unique_id="demo")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)  # nothing is loaded from elsewhere
    svg = svg.replace("font-family: Fira Code, monospace", "font-family: ui-monospace, Menlo, Consolas, monospace")
    PICTURE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
