"""Every page in a browser: at the width of a phone and a desktop, light and dark, by keyboard, and for screen readers.

The checks are those of WCAG 2.1 AA that axe decides, no horizontal scrolling of the page, order and visibility of the focus.
"""

from __future__ import annotations

from importlib.resources import files

import pytest

from bookspark.local import LocalCluster
from bookspark.logs import create_log, open_log
from bookspark.operations.console import WebConsole
from bookspark.store.client import BookKeeper
from tests.awaiting import await_that
from tests.operations.console import snapshots
from tests.operations.console.browser import BROWSER, DESKTOP, PHONE, Browser
from tests.operations.console.conftest import PATIENT, ask

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
LONG = "a-log-with-a-name-that-is-as-long-as-names-may-be-and-has-no-space-in-it"
TAB, RIGHT = ("Tab", 9), ("ArrowRight", 39)

AXE = (files("axe_core_python") / "axe.min.js").read_text("utf-8")
RULES = """axe.run({runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}).then((found) => [
    found.passes.length,
    found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 200)).join(" ")}`),
])"""
SCREENS = 3
"""The most screens of a phone that a page may take."""
FOCUSABLE = """[...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, [tabindex='0']")]
    .filter((one) => one.getClientRects().length).map((one) => one.outerHTML.slice(0, 120))"""
FOCUSED = """(() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const style = getComputedStyle(one), box = one.getBoundingClientRect();
  const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 && box.width > 0 && box.right > 0;
  return [one.outerHTML.slice(0, 120), seen];
})()"""


@pytest.fixture(scope="module")
def site(new_chroot, tmp_path_factory):
    """A console with a lagging reader, snapshots and a down bookie."""
    path = tmp_path_factory.mktemp("snapshots")
    with LocalCluster(bookies=4, zookeeper=new_chroot(), metrics_port=-1) as cluster:
        bookkeeper = cluster.bookkeeper(**PATIENT)
        for name in (LONG, "orders"):
            with create_log(bookkeeper, name).producer("billing") as producer:
                producer.append_batch([b'{"a": 1, "b": "text"}'] * 20)
            with open_log(bookkeeper, name).reader(group="shipping") as reader:
                reader.read(5)
                reader.commit()
        oldest = snapshots.take(bookkeeper, path)
        # More ledgers than fit on one page of the list.
        for _ in range(60):
            bookkeeper.create_ledger(3, 3, 2, custom_metadata={"label": b"x" * 300}).close()
        ledger = bookkeeper.create_ledger(3, 3, 2)
        ledger.append(b"x")
        down = next(one for one in cluster.bookies if one.bookie_id in ledger.metadata.last_fragment.ensemble)
        down.stop()
        for _ in range(2):
            ledger.append(b"x" * 100)
        snapshots.take(bookkeeper, path, oldest=oldest)
        with (
            BookKeeper(cluster.zookeeper, **PATIENT) as own,
            WebConsole(own, show_rows=True, snapshots=str(path)) as console,
        ):
            await_that(lambda: "is down" in ask(console).text)
            await_that(
                lambda: f'id="ledger-{ledger.ledger_id}"' in ask(console, f"/ledgers?from={ledger.ledger_id}").text
            )
            known = {"ledger": ledger.ledger_id, "down": down.bookie_id}
            yield console, {name: where.format(**known) for name, where in PAGES.items()}


PAGES = {
    "overview": "",
    "logs": "logs",
    "log": f"log?name={LONG}",
    "rows": "log?name=orders&lane=orders@1&row=3&as=json",
    "readers": "readers",
    "ledgers": "ledgers",
    "ledger": "ledger?id={ledger}",
    "what if": "what-if?bookie={down}",
    "time": "time?at=1&since=0",
    "time ledgers": "time/ledgers?at=1",
    "time ledger": "time/ledger?at=1&id={ledger}",
    "time logs": "time/logs?at=1",
    "no such ledger": "ledger?id=987654321",
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_and_a_page_fits_the_width_and_three_screens_of_a_phone(site, browser, name):
    console, pages = site
    for size in (PHONE, DESKTOP):
        for dark in (False, True):
            page = browser.page(size, dark)
            page.show(console.url + pages[name])
            page.js(f"{AXE}; 0")
            passed, found = page.js(RULES)
            assert passed > 10 and found == [], (size, dark, found)
            wide = page.js("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
            assert wide[0] <= wide[1] == size[0], (size, dark, wide)
            if size == PHONE:
                height = page.js("Math.ceil(document.body.getBoundingClientRect().bottom)")
                assert height <= SCREENS * PHONE[1], height
            page.close()
    assert browser.told == []


@pytest.mark.parametrize("name", PAGES)
def test_tab_reaches_every_control_in_order_with_a_visible_focus(site, browser, name):
    console, pages = site
    for size in (PHONE, DESKTOP):
        page = browser.page(size)
        page.show(console.url + pages[name])
        wanted = page.js(FOCUSABLE)
        reached = []
        for _ in wanted:
            page.press(*TAB)
            found = page.js(FOCUSED)
            assert found is not None and found[1], (size, found, reached[-1:])
            reached.append(found[0])
        assert reached == wanted
        page.close()


def test_focus_stays_when_a_part_of_the_page_is_replaced(site, browser):
    console, _ = site
    page = browser.page()
    page.show(console.url + "ledgers")
    page.js("document.getElementById('ledgers-later').focus(), 0")
    page.js("void (document.getElementById('ledgers').dataset.mark = 'old', shown.clear())")
    page.wait("!document.getElementById('ledgers').dataset.mark")
    assert page.js("document.activeElement.id") == "ledgers-later"
    page.close()


def test_slider_shows_another_snapshot_and_keeps_the_focus(site, browser):
    console, _ = site
    page = browser.page(PHONE)
    page.show(console.url + "time?at=0")
    page.wait("document.body.innerText.includes('There is no earlier snapshot')")
    page.js("document.getElementById('at').focus(), 0")
    page.press(*RIGHT)
    page.wait("document.body.innerText.includes('ledgers made')")
    assert page.js("document.activeElement.id") == "at" and page.js("location.search") == "?at=1"
    assert page.js("document.getElementById('at').getAttribute('aria-valuetext')").endswith("UTC, snapshot 1")
    assert page.js("document.getElementById('since').value") == "0"
    # A past moment does not change, so the page does not poll.
    assert page.js("[...document.querySelectorAll('[data-live]')].every((one) => one.dataset.live === 'still')")
    page.close()


def test_phone_shows_the_main_columns_and_all_of_them_on_request(site, browser):
    console, _ = site
    page = browser.page(PHONE)
    page.show(console.url + "ledgers")
    columns = "[...document.querySelectorAll('thead th')].filter((one) => one.getClientRects().length).length"
    assert page.js(columns) == 4
    page.js("document.querySelector('.all').click()")
    assert page.js(columns) == 8
    # The choice outlives the next update.
    page.js("void (document.getElementById('ledgers').dataset.mark = 'old', shown.clear())")
    page.wait("!document.getElementById('ledgers').dataset.mark")
    assert page.js(columns) == 8
    page.close()


def test_order_of_a_table_outlives_updates_and_numbers_are_ordered_as_numbers(site, browser):
    console, _ = site
    page = browser.page()
    page.show(console.url + "ledgers")
    ids = "[...document.querySelectorAll('#ledgers tbody th')].map((one) => Number(one.textContent))"
    upwards = page.js(ids)
    assert upwards == sorted(upwards) and len(upwards) == 50
    for _ in range(2):
        page.js("document.getElementById('ledgers-by-0').click()")
    assert page.js(ids) == upwards[::-1]
    page.js("void (document.getElementById('ledgers').dataset.mark = 'old', shown.clear())")
    page.wait("!document.getElementById('ledgers').dataset.mark")
    assert page.js(ids) == upwards[::-1]
    assert page.js("document.getElementById('ledgers-by-0').closest('th').ariaSort") == "descending"
    page.close()


def test_plots_have_axes_with_units_and_another_range_on_request(site, browser):
    console, _ = site
    page = browser.page()
    page.show(console.url + "log?name=orders", "document.querySelectorAll('.u-wrap').length === 3")
    page.wait("document.getElementById('plot-lag').ariaLabel.includes('shipping')")
    assert "rows" in page.js("document.getElementById('plot-rows').ariaLabel")
    page.js("document.querySelector('.range[data-seconds=\"86400\"]').click()")
    page.wait("figures.to - figures.from === 86400")
    assert page.js("location.search").endswith("seconds=86400")
    assert page.js("document.querySelector('.range[aria-pressed=true]').textContent") == "1 day"
    page.close()


def test_colours_are_chosen_by_a_button_and_kept_for_the_next_page(site, browser):
    console, _ = site
    page = browser.page(dark=False)
    page.show(console.url)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.js(ground)
    for _ in range(2):
        page.js("document.getElementById('theme').click()")
    assert page.js("document.getElementById('theme').ariaLabel") == "Colours: dark"
    dark = page.js(ground)
    page.show(console.url + "ledgers")
    assert page.js(ground) == dark != light
    page.js("document.getElementById('theme').click()")
    assert page.js(ground) == light
    page.close()


def test_command_is_copied_by_its_button(site, browser):
    console, _ = site
    page = browser.page()
    page.show(console.url)
    page.js(
        "void Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (line) => { window.line = line; }}})"
    )
    page.js("document.querySelector('.copy').click()")
    page.wait("window.line !== undefined")
    assert page.js("window.line") == page.js("document.querySelector('.command code').textContent")
    page.close()


def test_pages_cause_no_error_in_the_browsers_console(site, browser):
    """Also covers the console messages of all tests above."""
    console, pages = site
    page = browser.page()
    for where in pages.values():
        page.show(console.url + where)
    page.js("0")
    assert browser.told == []
    page.close()
