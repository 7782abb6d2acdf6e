"""Photograph pages, for a look with one's own eyes: `python -m tools.take_screenshots PAGE… --out DIR`.

Every page at four widths, light and dark, from top to bottom; and what axe-core and the browser's console say
against it. Needs Chromium and its driver (`apt-get install -y chromium chromium-driver`) and the extra `dev`.
"""

import argparse
import base64
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from tests.reports.browser import browser, complaints, show_page, violations

WIDTHS = (390, 768, 1280, 1920)
HEIGHT = 900
TALLEST = 16_000
"""Pixels of a page that one picture can hold."""


def main() -> None:
    """Photograph the pages, and print a line for each picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path, help="HTML files")
    parser.add_argument("--out", type=Path, default=Path("screenshots"), help="folder of the pictures")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--colours", nargs="+", default=("light", "dark"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as driver:
        for page, width, colours in product(arguments.pages, arguments.widths, arguments.colours):
            name = f"{page.parent.name}-{page.stem}-{width}-{colours}.png"
            show_page(driver, page.resolve(), (width, HEIGHT), colours)
            (arguments.out / name).write_bytes(whole_page(driver, width))
            print(name, *violations(driver), *complaints(driver), sep="\n    ")


def whole_page(driver: Any, width: int) -> bytes:
    """Return a picture of the page from top to bottom."""
    height = min(TALLEST, driver.execute_script("return document.documentElement.scrollHeight"))
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    return base64.b64decode(shot["data"])


if __name__ == "__main__":
    main()
