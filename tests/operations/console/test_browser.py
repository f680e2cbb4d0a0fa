"""Every page in a browser: at the width of a phone and a desktop, light and dark, by keyboard, and for screen readers.

The checks are those of WCAG 2.1 AA that a program can decide: contrast of all text, names of controls, landmarks and
tables, no horizontal scrolling of the page, order and visibility of the focus.
"""

from __future__ import annotations

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

CONTRAST = """(() => {
  const linear = (c) => (c /= 255, c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const found = numbers(getComputedStyle(one).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
  };
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const judge = (one, words) => {
    const style = getComputedStyle(one), box = one.getBoundingClientRect();
    if (!words.trim() || style.visibility === "hidden" || box.width === 0 || box.right < 0) return;
    const [a, b] = [light(numbers(style.color)), light(ground(one))].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5)) bad.push(`${words.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  };
  let count = 0;
  while (walker.nextNode()) { judge(walker.currentNode.parentElement, walker.currentNode.data); ++count; }
  for (const one of document.querySelectorAll("input, select, button")) judge(one, one.value || one.textContent);
  return [count, bad];
})()"""
FOCUSABLE = """[...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, [tabindex='0']")]
    .map((one) => one.outerHTML.slice(0, 120))"""
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
def test_all_text_has_enough_contrast_and_no_page_scrolls_sideways(site, browser, name):
    console, pages = site
    for size in (PHONE, DESKTOP):
        for dark in (False, True):
            page = browser.page(size, dark)
            page.show(console.url + pages[name])
            count, bad = page.js(CONTRAST)
            assert count > 5 and bad == [], (size, dark, bad)
            wide = page.js("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
            assert wide[0] <= wide[1] == size[0], (size, dark, wide)
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


@pytest.mark.parametrize("name", PAGES)
def test_landmarks_controls_and_tables_have_names_for_screen_readers(site, browser, name):
    console, pages = site
    for size in (PHONE, DESKTOP):
        page = browser.page(size)
        page.show(console.url + pages[name])
        told = page.names()
        roles = [role for role, _ in told]
        assert roles.count("main") == roles.count("banner") == roles.count("contentinfo") == 1
        named = {
            "link",
            "button",
            "textbox",
            "slider",
            "checkbox",
            "combobox",
            "navigation",
            "form",
            "region",
            "image",
            "meter",
        }
        assert [one for one in told if one[0] in named and not one[1].strip()] == []
        tables = page.js("document.querySelectorAll('table').length")
        assert roles.count("table") == tables
        if tables:
            assert roles.count("columnheader") >= tables and roles.count("rowheader") >= tables
        assert page.js("document.documentElement.lang") == "en" and page.js("document.title").strip()
        ids = page.js("[...document.querySelectorAll('[id]')].map((one) => one.getAttribute('id'))")
        assert len(ids) == len(set(ids))
        assert page.js("document.querySelectorAll('h1').length") == 1
        page.close()


def test_focus_stays_when_a_part_of_the_page_is_replaced(site, browser):
    console, _ = site
    page = browser.page()
    page.show(console.url + "ledgers")
    page.js("document.getElementById('ledgers-later').focus(), 0")
    page.js("void (document.getElementById('ledgers').dataset.mark = 'old')")
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


def test_phone_shows_column_names_beside_values(site, browser):
    console, _ = site
    page = browser.page(PHONE)
    page.show(console.url + "ledgers")
    assert page.js("getComputedStyle(document.querySelector('td[data-name]'), '::before').content").startswith('"state')
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
