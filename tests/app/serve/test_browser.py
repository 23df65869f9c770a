"""The page in a browser: what a visitor sees and does. Where there is no Chromium these tests are skipped."""

import csv
import shutil

import pytest

from app.serve.conftest import EVIL, address_of

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
DONE = "() => /drawn in [\\d.]+ s\\./.test(document.querySelector('#status').innerText)"


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as found:
        chromium = found.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, playgrounds):
    """A function that opens the page of a run; whatever the test does there, no other machine is called."""
    pages = []

    def open_page(name):
        context = address_of(playgrounds[name])
        address = context.__enter__()
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        asked, problems = set(), []
        page.on("request", lambda request: asked.add(request.url))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.set_default_timeout(90_000)
        page.goto(address)
        page.wait_for_selector("#draw")
        pages.append((context, address, page, asked, problems))
        return page

    yield open_page
    for context, address, page, asked, problems in pages:
        elsewhere = {url for url in asked if not url.startswith((address, "data:", "blob:"))}
        page.close()
        context.__exit__(None, None, None)
        assert elsewhere == set()
        assert problems == []


def test_text_is_filled_in_and_its_film_is_watched_and_a_long_call_is_cancelled(opened, playgrounds):
    page = opened("text")
    page.locator("#template textarea").fill("<<__>>")
    page.click("#draw")
    page.wait_for_function(DONE)
    assert page.locator("#samples .path dd").count() == 8
    texts = page.locator("#samples .path dd").all_inner_texts()
    assert all(text.startswith("<<") and text[4:6] == ">>" for text in texts)
    assert page.locator("#samples .filled").first.inner_text() == texts[0][2:4]

    final = page.locator("#film .film p").first.inner_text()
    slider = page.locator("#frame input[type=range]")
    assert slider.input_value() == "65"
    slider.focus()
    page.keyboard.press("Home")
    page.wait_for_function("document.querySelector('#film').innerText.includes('Frame 1 of 65, t = 1.000')")
    assert page.locator("#film .film p").first.inner_text() == "<<▒▒>>▒▒▒▒▒▒"
    assert page.locator("#film .given").count() == 4
    page.get_by_label("when it was decided").click()
    page.wait_for_selector("#film .order")
    slider.focus()
    page.keyboard.press("End")
    page.wait_for_function("document.querySelector('#film').innerText.includes('Frame 65 of 65')")
    assert page.locator("#film .film p").first.inner_text() == final == texts[0]

    page.click("#bound")
    page.wait_for_function("document.querySelector('#status').innerText.includes('256 draws')")
    assert "bits at most for 4 tokens" in page.inner_text("#status")

    page.locator("#template textarea").fill("<script>")
    page.click("#draw")
    assert "is not in the alphabet" in page.get_by_test_id("toast-body").first.inner_text()

    playground, per_step = playgrounds["text"], playgrounds["text"].bridge.network.forward
    playground.bridge.network.forward = lambda *values, **options: (page_waits(), per_step(*values, **options))[1]
    try:
        page.locator("#template textarea").fill("")
        page.click("#draw")
        page.wait_for_selector("#status progress")
        page.click("#cancel")
        page.wait_for_function("document.querySelector('#status').innerText.includes('Cancelled')")
        page.wait_for_timeout(400)  # the step that was being computed
        before = playground.calls
        page.wait_for_timeout(700)
        assert playground.calls == before
        assert "Cancelled" in page.inner_text("#status")
    finally:
        del playground.bridge.network.forward


def page_waits():
    """A network so slow that a draw of 64 steps takes a quarter of a minute."""
    import time

    time.sleep(0.25)


def test_a_table_has_distributions_and_rows_to_download(opened, playgrounds):
    page = opened("table")
    assert page.locator("#distributions .piece").count() == 3
    page.get_by_label("colour").click()
    page.get_by_role("option", name=EVIL).click()
    page.wait_for_function("document.querySelector('#distributions').innerText.includes('given 1 column,')")
    assert page.locator("#distributions h3").all_inner_texts() == ["size", "a<b"]
    page.click("#draw")
    page.wait_for_function(DONE)
    assert "The file has 80 more." in page.inner_text("#status")
    with page.expect_download() as download:
        page.click("#download")
    assert download.value.suggested_filename == "samples.csv"
    with open(download.value.path(), newline="") as file:
        header, *rows = csv.reader(file)
    assert header == playgrounds["table"].codec.names
    assert len(rows) == 100
    assert {row[1] for row in rows} == {EVIL}
    assert page.locator("#samples tr").nth(1).locator("td").all_inner_texts()[:2] == rows[0][:2]


def test_digits_are_drawn_by_class_and_noise_is_shown_at_any_time(opened, playgrounds):
    page = opened("digits")
    page.get_by_label("Class").click()
    page.get_by_role("option", name="3", exact=True).click()
    page.click("#draw")
    page.wait_for_function(DONE)
    assert page.locator("#samples img").get_attribute("src").startswith("data:image/png;base64,")
    assert page.locator("#film figure").count() == 3
    page.get_by_role("tab", name="What noise destroys").click()
    page.locator("#time input[type=range]").focus()
    page.keyboard.press("Home")
    page.wait_for_function("document.querySelector('#noise').innerText.includes('t = 0.00, 0%')")
    pictures = [image.get_attribute("src") for image in page.locator("#noise img").all()[:5]]
    assert len(set(pictures)) == 1


def test_a_visitor_logs_in_and_draws(browser, playgrounds):
    with address_of(playgrounds["text"], auth=("me", "secret")) as address:
        page = browser.new_page()
        page.goto(address)
        assert page.title() == "dmb"
        page.get_by_label("User").fill("me")
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button").click()
        page.get_by_text("Wrong user or password").wait_for()
        page.get_by_label("Password").fill("secret")
        page.get_by_role("button").click()
        page.wait_for_selector("#draw")
        page.click("#draw")
        page.wait_for_function(DONE)
        page.close()
