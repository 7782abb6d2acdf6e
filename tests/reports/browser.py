"""A headless Chromium, as Debian has it, for looking at pages."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

INSTALL = "apt-get install -y chromium chromium-driver"
"""What gives Debian the browser and its driver; as root."""

INSTALL_PACKAGES = "pip install -e '.[dev]'"
"""What brings the packages that drive it, and axe-core, which tells what keeps people from using a page."""

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

DESKTOP, PHONE = (1280, 900), (390, 844)


def require_browser() -> None:
    """Skip where there is no browser to drive, and say which part is missing."""
    for package in ("selenium", "axe_core_python"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: {INSTALL_PACKAGES}")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip(f"no chromium or chromedriver on the path: {INSTALL}")


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    """A fresh browser; what it downloads goes to `profile/downloads`."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(profile / "downloads")})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(120)  # a busy machine must not fail a page
    try:
        yield driver
    finally:
        driver.quit()


def look_at(driver: Any, page: Path, size: tuple[int, int] = DESKTOP, colours: str = "light") -> None:
    """Open a report on a screen of this size and wait until its plots are drawn."""
    show_page(driver, page, size, colours)
    wait(driver, "return document.documentElement.dataset.drawn === 'true'")


def show_page(driver: Any, page: Path, size: tuple[int, int] = DESKTOP, colours: str = "light") -> None:
    """Open a page on a screen of this size."""
    width, height = size
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = [{"name": "prefers-color-scheme", "value": colours}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    driver.get(page.as_uri())


def wait(driver: Any, condition: str) -> None:
    """Wait until a script says yes."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 10, 0.05).until(lambda d: d.execute_script(condition))


def violations(driver: Any) -> list[str]:
    """What axe-core finds against a page; AXE_CORE may name a newer `axe.min.js` than the package's."""
    file = os.environ.get("AXE_CORE") or files("axe_core_python") / "axe.min.js"
    driver.execute_script(Path(str(file)).read_text(encoding="utf-8"))
    script = """
      const done = arguments[0];
      axe.run(document).then(({ violations }) =>
        done(violations.flatMap((rule) => rule.nodes.map((node) => `${rule.id}: ${node.html}`))));"""
    found: list[str] = driver.execute_async_script(script)
    return found


def complaints(driver: Any) -> list[str]:
    """What the console was told since it was last asked."""
    return [entry["message"] for entry in driver.get_log("browser")]


def requests(driver: Any) -> list[str]:
    """Addresses asked for since this was last called."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


KEEP_DOWNLOADS = (
    "window.saved = {}; URL.createObjectURL = (blob) => { window.blob = blob; return '#'; };"
    "HTMLAnchorElement.prototype.click = function () { const n = this.download;"
    " window.blob.text().then(t => { window.saved[n] = t; }); };"
    "for (const b of document.querySelectorAll('[data-csv], [data-table-csv]')) b.click();"
)
"""Downloads everything, and keeps it in the page."""
