"""The page in a real browser: ask, condition, read, upload, download, paint a hole."""

import io
import shutil
import socket
import threading
import time

import numpy as np
import polars
import pytest

from pynade.app.serve import explorer_of_run
from pynade.runs.run import start_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
webdriver = pytest.importorskip("selenium.webdriver", reason="the browser test needs selenium")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed"
)
QUIET = ("background-networking", "component-update", "sync", "default-apps", "domain-reliability", "gpu")
SEVERAL = {"profile.default_content_setting_values.automatic_downloads": 1}
CSV = "species,island,bill_length_mm,bill_depth_mm,flipper_length_mm,body_mass_g,sex,year\n"
CSV += "Gentoo,,50.1,15,220,,male,2007\nAdelie,Dream,,18,190,3700,,2008\n"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        *(f"disable-{name}" for name in QUIET),
    ):
        options.add_argument(f"--{word}")
    folder = tmp_path_factory.mktemp("downloads")
    options.add_experimental_option("prefs", {"download.default_directory": str(folder)} | SEVERAL)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    driver.set_window_size(1280, 900)
    driver.downloads = folder
    yield driver
    driver.quit()


@pytest.fixture
def page(runs, browser):
    """Opens the page of a run; all log entries of the browser must be harmless."""
    uvicorn = pytest.importorskip("uvicorn")
    servers = []

    def opened(name):
        application, _ = explorer_of_run(runs / name)
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # the browser may be quicker than the server
        server = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        servers.append((server, thread, listening))
        browser.get(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        return browser

    yield opened
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []
    browser.get("about:blank")
    for server, thread, listening in servers:
        server.should_exit = True
        thread.join()
        listening.close()


def until(browser, script, *arguments):
    """What a script gives, as soon as it gives something."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 60, 0.05).until(lambda _: browser.execute_script(script, *arguments))


def click(browser, selector):
    until(browser, "const n = document.querySelector(arguments[0]); n?.click(); return !!n", selector)


def text(browser, selector):
    return until(browser, "return document.querySelector(arguments[0])?.textContent", selector)


def chip(browser, name, wanted):
    """Click a column until it is asked or given."""
    click(browser, f'.chip[data-column="{name}"]')
    until(
        browser,
        "return document.querySelector(arguments[0])",
        f'.chip[data-column="{name}"][data-state="{wanted}"]',
    )


def shown(value):
    return str(int(value)) if float(value).is_integer() else f"{value:.4g}"


def test_ask_and_condition(page, model):
    one = page("penguins")
    until(one, "return document.querySelector('#view svg')")  # the first column is asked when the page opens
    left = 1 - sum(model.conditional("species").probabilities().values())
    assert f"{100 * left:.1f}\xa0% are left" in text(one, "#view")
    chip(one, "species", "given")
    chip(one, "body_mass_g", "asked")
    click(one, 'select[id^="given-"]')
    one.execute_script(
        "const s = document.querySelector('select[id^=given-]'); s.value = 'Gentoo';"
        "s.dispatchEvent(new Event('change'))"
    )
    until(
        one, "return document.querySelector('#view h2')?.textContent === 'body_mass_g given species = Gentoo'"
    )
    answer = model.conditional("body_mass_g", {"species": "Gentoo"})
    numbers = {name: text(one, f'[data-number="{name}"]') for name in ("median", "low", "high", "mean")}
    low, high = answer.interval(0.9)
    expected = {"median": answer.median(), "low": low, "high": high, "mean": answer.mean()}
    assert numbers == {name: shown(value) for name, value in expected.items()}
    assert text(one, "#view .badge") == "exact"
    cells = "return [...document.querySelectorAll('#view details td:nth-child(2)')].map((n) => n.textContent)"
    shares = [float(cell.removesuffix("\xa0%")) for cell in until(one, cells)]
    assert 95 < sum(shares) < 101
    spread = until(one, "return document.getElementById('spread').textContent")
    assert f"{answer.disagreement():.3f}" in spread
    assert "model.conditional('body_mass_g', given={'species': 'Gentoo'})" in text(one, "#source")
    size = "return document.querySelector('#view svg')?.viewBox.baseVal.width === arguments[0]"
    for width, drawn in ((390, 340), (1280, 640)):  # text of a chart keeps its size when a phone is turned
        facts = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 700}
        one.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", facts)
        until(one, size, drawn)
    one.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chip(one, "bill_length_mm", "asked")
    until(
        one, "return document.querySelector('svg.joint .cell') && document.querySelector('svg.joint .point')"
    )


def test_keyboard_and_labels(page):
    from selenium.webdriver.common.keys import Keys

    one = page("penguins")
    until(one, "return document.querySelector('#view svg')")
    unnamed = one.execute_script(
        "const named = (n) => n.textContent.trim() || n.labels?.length || n.getAttribute('aria-label');"
        "const all = [...document.querySelectorAll('button, input, select, svg, canvas')];"
        "return all.filter((n) => !named(n)).map((n) => n.outerHTML)"
    )
    assert unnamed == []
    tab = one.find_element("id", "tab-ask")
    tab.send_keys(Keys.ARROW_RIGHT)
    until(one, "return document.activeElement.id === 'tab-rows' && document.querySelector('td[tabindex]')")
    one.execute_script("document.querySelector('td[tabindex]').focus()")
    until(
        one,
        "const t = document.getElementById('tip'); return /Expected: /.test(t.textContent) && !t.hidden",
    )
    one.switch_to.active_element.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    focused = "const a = document.activeElement; return [a.parentNode.rowIndex, a.cellIndex]"
    first = one.execute_script("const c = document.querySelector('td[tabindex]'); return c.cellIndex")
    assert one.execute_script(focused) == [2, first + 1]
    assert one.execute_script("return document.querySelectorAll('td[tabindex=\"0\"]').length") == 1
    one.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert one.execute_script("return document.getElementById('tip').hidden")


def test_fill_gaps(page, model, tmp_path):
    one = page("penguins")
    (tmp_path / "gaps.csv").write_text(CSV)
    click(one, "#tab-gaps")
    until(one, "return document.getElementById('file')")
    assert "model = pynade.load(" in text(one, "#source")
    one.find_element("id", "file").send_keys(str(tmp_path / "gaps.csv"))
    assert until(one, "return document.querySelectorAll('td.filled').length") == 4
    table = polars.read_csv(io.StringIO(CSV))
    filled, place = model.impute(table), one.downloads / "gaps-filled.csv"
    click(one, "#download")
    _wait_for(place)
    assert polars.read_csv(place).equals(filled)
    click(one, "#download-draws")
    _wait_for(one.downloads / "gaps-draws.csv")
    assert len(polars.read_csv(one.downloads / "gaps-draws.csv")) == 10


def _wait_for(path):
    for _ in range(600):
        if path.is_file() and path.stat().st_size:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path.name} was not downloaded")


def test_paint_a_hole(page, runs):
    from selenium.webdriver.common.action_chains import ActionChains

    import pynade
    from pynade.tables import load

    one = page("digits")
    until(one, "return document.getElementById('paint')")
    canvas = one.find_element("id", "paint")
    ActionChains(one).move_to_element(canvas).click_and_hold().move_by_offset(40, 0).release().perform()
    click(one, "#complete")
    log_p = float(text(one, "#log-p"))
    assert len(one.find_elements("css selector", "#completions .thumbs canvas")) == 5
    found = {}
    exec(text(one, "#source"), found)
    assert log_p == pytest.approx(found["log_p"], abs=6e-4)
    assert f"over 8 orderings is {found['spread'].item():.2f}" in text(one, "#completions")
    image = load("digits").split("all")[0].astype(float)
    hole = np.isnan(found["image"])
    assert 9 <= hole.sum() < 20  # a brush of 3 by 3 pixels, moved
    cells = "return [...document.querySelectorAll('#completions td')].map((n) => Number(n.textContent))"
    pixels = np.array(one.execute_script(cells)).reshape(-1, 3)  # line, pixel, probability of white
    places = (pixels[:, 0] - 1) * 8 + pixels[:, 1] - 1
    assert places.tolist() == np.flatnonzero(hole).tolist()
    np.testing.assert_allclose(pixels[:, 2], found["probabilities"][hole], atol=6e-4)
    click(one, "#erase")
    ActionChains(one).move_to_element(canvas).click().perform()
    click(one, "#complete")
    less = hole.sum() - 9
    until(one, "return document.querySelectorAll('#completions td').length === arguments[0]", int(3 * less))
    image[hole] = np.nan
    assert log_p == pytest.approx(pynade.load(runs / "digits").score_samples(image[None])[0], abs=6e-4)


def test_real_numbers_of_a_fixed_ordering(page, runs):
    """What a model cannot say is no empty column, and numbers are not shown with sixteen digits."""
    if not (runs / "real").is_dir():
        rows = np.random.default_rng(0).normal(size=(60, 3))
        polars.DataFrame(rows, ["a", "b", "c"]).write_csv(runs / "real.csv")
        start_run(runs / "real", "rnade", {"epochs": 1, "hidden": 4}, str(runs / "real.csv"))
    one = page("real")
    until(one, "return document.querySelector('#view svg')")
    chip(one, "a", "given")
    chip(one, "b", "asked")
    title = until(
        one,
        "const h = document.querySelector('#view h2')?.textContent; return / given /.test(h) && h",
    )
    assert len(title.partition("a = ")[2]) < 10
    click(one, "#tab-rows")
    assert "fixed ordering" in text(one, "#view .note")
    heads = [cell.text for cell in one.find_elements("css selector", "#view th[scope=col]")]
    assert heads == ["row", "log p", "a", "b", "c"]
    chip(one, "a", "")
    click(one, "#tab-samples")
    marks = "return [...document.querySelectorAll('#view .legend span')].map((mark) => mark.textContent)"
    until(one, "return document.querySelector('#view .legend')")
    assert one.execute_script(marks) == ["sampled", "real"]  # in one step: the page may draw them again


def test_two_hundred_columns_on_a_phone(page, runs):
    columns = {f"a rather long name of column {i}": np.arange(40) % (2 + i % 9) for i in range(200)}
    if not (runs / "wide").is_dir():
        polars.DataFrame(columns).write_csv(runs / "wide.csv")
        named = {"epochs": 1, "hidden": (8,), "members": 1, "mixture": False}
        start_run(runs / "wide", "tabularnade", named, str(runs / "wide.csv"))
    one = page("wide")
    facts = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    one.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", facts)
    until(one, "return document.querySelector('#view svg')")
    assert one.execute_script("return document.querySelectorAll('.chip').length") == 200
    assert one.execute_script("return document.documentElement.scrollWidth") <= 390
    assert one.execute_script("return document.getElementById('chips').offsetHeight") < 300
    one.find_element("id", "search").send_keys("column 17")
    count = "const n = document.querySelectorAll('.chip').length; return n < 200 && n"
    assert until(one, count) == 11
    one.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
