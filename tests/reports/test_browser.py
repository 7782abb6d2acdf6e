"""The page in a real browser: it draws, sorts, switches and asks for nothing."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import fedwcm
from tests.reports.browser import (
    DESKTOP,
    KEEP_DOWNLOADS,
    PHONE,
    browser,
    complaints,
    look_at,
    requests,
    require_browser,
    violations,
    wait,
)
from tests.reports.folders import LONG_NAME, write_comparison, write_diverging_losses, write_grid, write_run

EVIL = "</script><script>alert(1)"
METHODS = ("fedavg", "fedcm", "fedwcm")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    require_browser()
    with browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pages")
    many = tuple(f"fedcm[alpha=0.{number}]" for number in range(11, 35))
    diverging = write_comparison(root / "diverging", ("fedavg", "fedcm", LONG_NAME))
    write_diverging_losses(diverging / "runs" / "m1-seed0")
    return {
        "run": fedwcm.report(write_run(root / "run", diagnosed=True)),
        "evil": fedwcm.report(write_run(root / "evil", classes=(EVIL, "=<b>", "$", '"'))),
        "untested": fedwcm.report(write_run(root / "untested", tested=False)),
        "one round": fedwcm.report(write_run(root / "one", rounds=1)),
        "at once": fedwcm.report(write_run(root / "at-once", rounds=1, diverged="the model has a NaN")),
        "going on": fedwcm.report(write_run(root / "going-on", finished=False)),
        "comparison": fedwcm.report(write_comparison(root / "comparison", METHODS, diagnosed=True)),
        "many": fedwcm.report(write_comparison(root / "many", many, seeds=1)),
        "diverging": fedwcm.report(diverging),
        "grid": fedwcm.report(write_grid(root / "grid")),
    }


NARROW = ("run", "evil", "untested", "one round", "at once", "going on", "comparison", "many", "diverging", "grid")
WIDE = ("run", "comparison", "many", "grid")
SCREENS = [*((name, PHONE, "dark") for name in NARROW), *((name, DESKTOP, "light") for name in WIDE)]
AXE = ("run", "diverging", "grid")
"""The pages that axe-core looks at, on every screen: between them they have all parts of a page."""


@pytest.mark.parametrize(("name", "size", "colours"), SCREENS)
def test_every_page_draws_its_plots_and_axe_the_console_and_the_network_say_nothing(
    driver: Any, pages: dict[str, Path], name: str, size: tuple[int, int], colours: str
) -> None:
    requests(driver)
    look_at(driver, pages[name], size, colours)
    assert complaints(driver) == []
    assert {address for address in requests(driver) if not address.startswith("data:")} == {pages[name].as_uri()}
    empty = driver.execute_script(
        "return [...document.querySelectorAll('.plot')].filter(p => !p.querySelector('svg path, canvas')).length"
    )
    assert empty == 0
    overflow = driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0
    assert driver.execute_script(SPILLED) == []
    assert driver.execute_script("return document.documentElement.dataset.theme") == colours
    if name in AXE:
        assert violations(driver) == []


SPILLED = """
  const wide = (element) => element.scrollWidth > element.clientWidth + 1;
  const parts = document.querySelectorAll("figure, figcaption, .methods label, .warnings, .tile, .lead, .facts");
  return [...parts].filter(wide).map((element) => element.textContent.slice(0, 80));
"""
"""Parts of a page whose text does not fit into them."""


def test_a_search_has_its_commands_and_a_logarithmic_axis_more_than_one_tick(driver: Any, tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    from fedwcm.sweeps.tuning.result import Tuning

    space = {"local.lr": optuna.distributions.FloatDistribution(0, 1)}
    known = [(rate, {"distributions": space, "user_attrs": {"val_accuracy": [rate]}}) for rate in (0.5, 0.03)]
    trials = [optuna.trial.create_trial(params={"local.lr": x}, value=x, **rest) for x, rest in known]
    Tuning(tmp_path, [0], {"fedavg": trials}).write()
    look_at(driver, tmp_path / "report.html", PHONE, "dark")
    texts = "return [...document.querySelectorAll('#plot-local-lr svg text')].map((text) => text.textContent)"
    assert {"0.05", "0.1", "0.5"} <= set(driver.execute_script(texts))
    assert len(driver.execute_script("return [...document.querySelectorAll('#commands pre')]")) == 2


def curves_of(driver: Any, plot: str) -> int:
    """How many curves a plot shows: lines that are drawn, not those of a legend or an axis."""
    script = """
      const chart = echarts.getInstanceByDom(document.getElementById(arguments[0]));
      const hidden = chart.getOption().legend[0].selected;
      return chart.getOption().series.filter(s => s.type === "line" && hidden[s.name] !== false).length;"""
    shown: int = driver.execute_script(script, plot)
    return shown


def checked(driver: Any) -> list[str]:
    script = "return [...document.querySelectorAll('.methods input:checked')].map(box => box.value)"
    names: list[str] = driver.execute_script(script)
    return names


def test_a_click_in_the_legend_hides_the_curve_in_every_plot(driver: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    look_at(driver, pages["comparison"])
    paths = "return document.querySelectorAll('#plot-test-accuracy svg path').length"
    before = driver.execute_script(paths)
    entries = driver.find_elements(By.CSS_SELECTOR, "#plot-test-accuracy svg text")
    named = [element for element in entries if element.text == "fedcm"]
    entry = min(named, key=lambda element: element.location["y"])  # the legend is above the names at the ends
    ActionChains(driver).move_to_element(entry).click().perform()
    wait(driver, "return document.querySelectorAll('.methods input:checked').length === 2")
    assert checked(driver) == ["fedavg", "fedwcm"]
    assert curves_of(driver, "plot-test-accuracy") == curves_of(driver, "plot-test-loss") == 2
    assert driver.execute_script(paths) < before
    assert complaints(driver) == []


def test_the_keyboard_reaches_and_works_every_control(driver: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver import ActionChains, Keys

    look_at(driver, pages["comparison"])
    wanted = driver.execute_script(
        "return document.querySelectorAll('button, input, select, summary, nav a, .skip').length"
    )
    seen = set()
    for _ in range(wanted + 20):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        script = "const e = document.activeElement; return [e.tagName, e.textContent.trim(), e.value ?? '', e.id]"
        seen.add(tuple(driver.execute_script(script)))
    assert {("BUTTON", "final", "", ""), ("BUTTON", "All", "", "")} <= seen
    assert {value for tag, _, value, _ in seen if tag == "INPUT"} > set(METHODS)
    assert {tag for tag, *_ in seen} >= {"A", "BUTTON", "INPUT", "SELECT", "SUMMARY"}
    driver.execute_script("document.querySelector('.methods input[value=fedcm]').focus()")
    ActionChains(driver).send_keys(Keys.SPACE).perform()
    assert checked(driver) == ["fedavg", "fedwcm"]
    assert curves_of(driver, "plot-test-accuracy") == 2
    driver.execute_script("document.querySelector('[data-choose=all]').focus()")
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    assert checked(driver) == list(METHODS)


def column(driver: Any, number: int) -> list[str]:
    rows = "[...document.querySelectorAll('.results tbody tr')]"
    script = f"return {rows}.map(row => row.cells[arguments[0]].dataset.value)"
    values: list[str] = driver.execute_script(script, number)
    return values


def test_the_table_sorts_by_a_press_on_its_heading(driver: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver import Keys
    from selenium.webdriver.common.by import By

    look_at(driver, pages["comparison"])
    heading = driver.find_element(By.XPATH, "//table[contains(@class, 'results')]//th[2]")
    button = heading.find_element(By.TAG_NAME, "button")
    values = [float(value) for value in column(driver, 1)]
    assert values == sorted(values, reverse=True)
    assert heading.get_attribute("aria-sort") == "descending"
    button.send_keys(Keys.ENTER)
    assert [float(value) for value in column(driver, 1)] == sorted(values)
    assert heading.get_attribute("aria-sort") == "ascending"
    button.send_keys(Keys.ENTER)
    assert [float(value) for value in column(driver, 1)] == values
    by_name = driver.find_element(By.XPATH, "//table[contains(@class, 'results')]//th[1]/button")
    by_name.send_keys(Keys.ENTER)
    assert column(driver, 0) == sorted(column(driver, 0))
    assert heading.get_attribute("aria-sort") is None


def test_rounds_to_reach_follow_the_chosen_accuracy(driver: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By

    look_at(driver, pages["comparison"])
    target = driver.find_element(By.ID, "target")
    rounds = []
    for accuracy in ("0.2", "0.5"):
        target.clear()
        target.send_keys(accuracy)
        rounds.append([float(value) for value in column(driver, 3)])
    assert all(low <= high for low, high in zip(*rounds, strict=True))
    assert rounds[0] != rounds[1]
    target.clear()
    target.send_keys("0.999")
    assert column(driver, 3) == ["", "", ""]
    texts = driver.execute_script("return [...document.querySelectorAll('.reached')].map(c => c.textContent)")
    assert set(texts) == {"never"}


def test_the_data_of_every_plot_is_downloaded_as_csv(driver: Any, pages: dict[str, Path]) -> None:
    look_at(driver, pages["comparison"])
    driver.execute_script(KEEP_DOWNLOADS)
    figures = driver.execute_script("return JSON.parse(document.getElementById('report').textContent).figures")
    wait(driver, f"return Object.keys(window.saved).length === {len(figures) + 1}")
    saved = driver.execute_script("return window.saved")
    tables = {name: list(csv.reader(io.StringIO(text))) for name, text in saved.items()}
    assert set(tables) == {f"{figure['key']}.csv" for figure in figures} | {"table.csv"}
    assert {"method", "final_accuracy_mean", "final_accuracy_std", "final_accuracy_n"} <= set(
        tables["table.csv"][0]
    )
    assert all(len({len(row) for row in rows}) == 1 and len(rows) > 1 for rows in tables.values())
    accuracy = next(figure for figure in figures if figure["key"] == "test-accuracy")
    drawn = [[c["name"], x, y] for c in accuracy["curves"] for x, y in zip(c["x"], c["y"], strict=True)]
    assert [[row[0], float(row[1]), float(row[2])] for row in tables["test-accuracy.csv"][1:]] == drawn
    assert len(tables["table.csv"]) == 1 + len(METHODS)


def test_names_that_are_markup_stay_text(driver: Any, pages: dict[str, Path]) -> None:
    look_at(driver, pages["evil"])
    assert driver.execute_script("return document.querySelectorAll('main b').length") == 0
    texts = "[...document.querySelectorAll('#plot-classes text')]"
    labels = driver.execute_script(f"return {texts}.map(text => text.textContent)")
    assert EVIL in labels
    driver.execute_script(
        "echarts.getInstanceByDom(document.getElementById('plot-classes'))"
        ".dispatchAction({type: 'showTip', seriesIndex: 0, dataIndex: 0})"
    )
    wait(driver, "return document.querySelector('.tip') !== null")
    assert driver.execute_script("return document.querySelector('.tip strong').textContent") == EVIL
    driver.execute_script(KEEP_DOWNLOADS)
    wait(driver, "return Object.keys(window.saved).length === document.querySelectorAll('[data-csv]').length")
    saved = driver.execute_script("return window.saved").values()
    cells = {cell for text in saved for row in csv.reader(io.StringIO(text)) for cell in row}
    assert "'=<b>" in cells
    assert "=<b>" not in cells


def test_dark_and_light_switch_and_print_is_light(driver: Any, pages: dict[str, Path]) -> None:
    look_at(driver, pages["run"], colours="dark")
    ground = "return getComputedStyle(document.documentElement).backgroundColor"
    dark = driver.execute_script(ground)
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 50_000
    assert driver.execute_script(ground) == dark
    driver.execute_script("document.getElementById('theme').click()")
    assert driver.execute_script(ground) == "rgb(255, 255, 255)" != dark
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    driver.execute_script("document.documentElement.dataset.theme = 'dark'")
    assert driver.execute_script(ground) == "rgb(255, 255, 255)"
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert complaints(driver) == []


def test_of_many_methods_the_best_are_shown_and_all_can_be(driver: Any, pages: dict[str, Path]) -> None:
    look_at(driver, pages["many"])
    assert curves_of(driver, "plot-test-accuracy") == len(checked(driver)) == 10
    driver.execute_script("document.querySelector('[data-choose=all]').click()")
    assert curves_of(driver, "plot-test-accuracy") == 24
    driver.execute_script("document.querySelector('[data-choose=none]').click()")
    assert curves_of(driver, "plot-test-accuracy") == 0
    assert complaints(driver) == []


def test_a_choice_shows_another_matrix(driver: Any, pages: dict[str, Path]) -> None:
    look_at(driver, pages["comparison"])
    script = (
        "return JSON.stringify(echarts.getInstanceByDom(document.getElementById('plot-confusion'))"
        ".getOption().series[0].data)"
    )
    before = driver.execute_script(script)
    driver.execute_script(
        "const s = document.querySelector('[data-choice=confusion]'); s.selectedIndex = 1;"
        "s.dispatchEvent(new Event('change'));"
    )
    assert driver.execute_script(script) != before


def option(driver: Any, plot: str) -> dict[str, Any]:
    """The option of a plot, as far as JSON tells it."""
    chart = "echarts.getInstanceByDom(document.getElementById(arguments[0]))"
    script = f"return JSON.parse(JSON.stringify({chart}.getOption()))"
    read: dict[str, Any] = driver.execute_script(script, plot)
    return read


def test_a_diverged_run_leaves_the_scale_and_not_the_others(driver: Any, pages: dict[str, Path]) -> None:
    look_at(driver, pages["diverging"])
    for plot in ("test-loss", "train-loss"):
        drawn = option(driver, f"plot-{plot}")
        assert drawn["yAxis"][0]["max"] <= 3  # the others begin at 2
        (mark,) = [series for series in drawn["series"] if series["type"] == "scatter"]
        assert mark["name"] == "fedcm"
        assert mark["data"] == [[4, drawn["yAxis"][0]["max"]]]
        assert "fedcm (up to" in driver.execute_script(
            f"return document.querySelector('#{plot} figcaption').innerText"
        )
    tip = "{type: 'showTip', seriesIndex: 0, dataIndex: 9}"
    chart = "echarts.getInstanceByDom(document.getElementById('plot-test-loss'))"
    driver.execute_script(f"document.getElementById('test-loss').scrollIntoView(); {chart}.dispatchAction({tip})")
    wait(driver, "return document.querySelector('#test-loss .tip')?.innerText.includes('×10') ?? false")
    driver.execute_script("document.querySelector('.methods input[value=fedcm]').click()")
    assert option(driver, "plot-test-loss")["yAxis"][0]["max"] <= 3


def looks(driver: Any, plot: str) -> dict[str, Any]:
    """How each series that is shown looks."""
    drawn = option(driver, plot)
    shown = drawn["legend"][0]["selected"]
    return {
        series["name"]: (series["itemStyle"], series.get("lineStyle"), series.get("symbol"))
        for series in drawn["series"]
        if series["type"] in ("line", "bar") and shown[series["name"]]
    }


def test_a_method_keeps_its_looks_when_others_are_switched_off(driver: Any, pages: dict[str, Path]) -> None:
    look_at(driver, pages["many"])
    driver.execute_script("document.querySelector('[data-choose=all]').click()")
    plots = ("plot-test-accuracy", "plot-shots")
    before = {plot: looks(driver, plot) for plot in plots}
    for name in list(before[plots[0]])[:3]:
        driver.execute_script("document.querySelector(`.methods input[value='${arguments[0]}']`).click()", name)
    for plot in plots:
        assert len({str(look) for look in before[plot].values()}) == len(before[plot]) == 24
        after = looks(driver, plot)
        assert after == {name: look for name, look in before[plot].items() if name in after}
        assert len(after) == 21


def test_no_legend_has_pages_and_the_list_beside_the_plots_is_one(driver: Any, pages: dict[str, Path]) -> None:
    for size in (DESKTOP, PHONE):
        look_at(driver, pages["many"], size)
        driver.execute_script("document.querySelector('[data-choose=all]').click()")
        legend = option(driver, "plot-test-loss")["legend"][0]
        assert legend["type"] == "plain"
        assert legend["show"] == (size == PHONE)
    top = option(driver, "plot-test-loss")["grid"][0]["top"]
    texts = (
        "[...document.querySelectorAll('#plot-test-loss svg text')].filter(t => t.textContent.startsWith('fedcm'))"
    )
    plot = "document.getElementById('plot-test-loss').getBoundingClientRect().top"
    lowest = driver.execute_script(
        f"return Math.max(...{texts}.map(t => t.getBoundingClientRect().bottom)) - {plot}"
    )
    assert lowest <= top + 20  # the padding of the plot


def test_curves_go_over_another_unit_and_a_figure_can_be_kept(
    driver: Any, pages: dict[str, Path], tmp_path: Path
) -> None:
    look_at(driver, pages["comparison"])
    chart = "echarts.getInstanceByDom(document.getElementById('plot-test-accuracy'))"
    ends = f"return {chart}.getOption().series.filter(s => s.type === 'line').map(s => s.data.at(-1)[0])"
    rounds = driver.execute_script(ends)
    costs = driver.execute_script("return JSON.parse(document.getElementById('report').textContent).costs")
    choose = "const s = document.getElementById('unit'); s.value = 'MB'; s.dispatchEvent(new Event('change'))"
    driver.execute_script(choose)
    assert driver.execute_script(ends) == pytest.approx(
        [last * costs[name]["MB"] for last, name in zip(rounds, ("fedavg", "fedcm", "fedwcm"), strict=True)]
    )
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    buttons = {"png": "picture='differences:png'", "svg": "picture='differences:svg'", "csv": "csv='differences'"}
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<svg"), ("csv", b"of,against,difference,low,high\n")):
        driver.execute_script(f'document.querySelector("[data-{buttons[kind]}]").click()')
        path = tmp_path / f"differences.{kind}"
        for _ in range(100):
            if path.exists():
                break
            wait(driver, "return new Promise(done => setTimeout(() => done(true), 50))")
        assert start in path.read_bytes()[:200]
    assert ElementTree.parse(tmp_path / "differences.svg").getroot().tag.endswith("svg")
    assert complaints(driver) == []
