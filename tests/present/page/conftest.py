"""A headless Chromium for pages, where there is one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
READY_S = 20.0


@pytest.fixture(scope="session")
def start_browser() -> Callable[..., Any]:
    """Starts a driver; further flags as arguments."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no chromium and chromedriver (Debian: chromium, chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")

    def start(*flags: str) -> Any:
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        for flag in (*FLAGS, *flags):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        found.set_network_conditions(offline=True, latency=0, throughput=0)
        found.set_window_size(1300, 1000)
        return found

    return start


@pytest.fixture(scope="session")
def browser(start_browser: Callable[..., Any]) -> Iterator[Any]:
    """One browser for all tests."""
    found = start_browser()
    yield found
    found.quit()


def open_page(browser: Any, path: Path) -> None:
    """Load a file and wait until its charts are drawn."""
    browser.get(path.as_uri())
    end = time.monotonic() + READY_S
    while browser.execute_script("return document.body.dataset.ready") != "yes":
        assert time.monotonic() < end, browser.get_log("browser")
        time.sleep(0.02)


@pytest.fixture
def opened(browser: Any) -> Callable[[Path], Any]:
    """Opens a page; no error and no request but the file itself may come of it."""

    def load(path: Path) -> Any:
        browser.get_log("browser")
        browser.get_log("performance")
        open_page(browser, path)
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
        return browser

    return load
