"""The pages in a real browser: what a person does, and what must not happen."""

import http.server
import json
import os
import platform
import socket
import threading
import time
from urllib.parse import parse_qsl, urlsplit
from xml.etree import ElementTree

import pytest

from steadyrl.core.rundir import append_line, write_json, write_lines
from steadyrl.environments.browse.browser.find import find_chromium
from steadyrl.environments.browse.browser.settings import BrowserSettings
from steadyrl.show.page import html
from steadyrl.show.report.pictures.curves import curves
from tests import needs
from tests.show.web.made import FINDING, make_run, metrics, rollout
from tests.show.web.test_studies import make_report, make_study

needs.skip_without_packages("starlette", "uvicorn", extra="web")
pytestmark = [pytest.mark.browser, pytest.mark.slow]
TOKEN = "the-token"
EVIL = "<script>window.broken=1</script><img src=x onerror='window.broken=1'>"
VIEWPORT = {"width": 1300, "height": 900}
SLOW_MS = 20_000  # a busy machine


@pytest.fixture(scope="module")
def port():
    """Return one port for the servers of all tests: for pages of one origin Chromium starts one process."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.fixture
def served(tmp_path, port):
    """Return the address of a server of a folder with two runs, and the folder."""
    import uvicorn

    from steadyrl.show.web.app import create
    from steadyrl.show.web.serve import Guard, listen

    good = make_run(tmp_path / "good", steps=120, planned=200, status="running", rate=0.001)
    process = {"id": os.getpid(), "node": platform.node()}
    write_json(good.info_file, {**good.info(), "process": process})
    bad = make_run(tmp_path / "bad", steps=120, planned=120, rate=0.02)
    rewards = [0.2 + 0.01 * min(step, 80) - 0.03 * max(0, step - 80) for step in range(120)]
    write_lines(
        bad.metrics_file,
        [metrics(step, **{"reward/mean": reward, "tokens/sampled": 50.0}) for step, reward in enumerate(rewards)],
    )
    for run in (good, bad):
        texts = [rollout(f"p{i}", i / 10, f"{EVIL} answer {i}", note=EVIL) for i in range(10)]
        write_lines(run.rollouts_file(110), texts)
        token = {"rollout": 0, "tokens": [EVIL, " answer", " 0"], "policy": [True] * 3, "logprob": [-1.0, -2.0, -0.1]}
        write_lines(run.tokens_file(110), [token])
        lines = [
            {
                "problem": f"h{i}",
                "prompt": "?",
                "answers": {"sampled": {"text": EVIL, "metric": (i * (run is bad)) % 3}},
            }
            for i in range(8)
        ]
        write_lines(run.evaluation_file("after"), lines)
    episode = {"turns": [EVIL, "click 2"], "seen": [f"page {EVIL}", "page two"], "outcome": {"success": 0.0}}
    write_lines(bad.rollouts_file(112), [rollout("shop", 0.5, EVIL, **episode)])
    make_report(make_study(tmp_path / "rates"))
    listening = listen("127.0.0.1", port)
    guarded = Guard(create(tmp_path), "127.0.0.1", port, TOKEN)
    server = uvicorn.Server(uvicorn.Config(guarded, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{port}", tmp_path
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = find_chromium(BrowserSettings())
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def window(browser):
    """Return a window, with what a browser remembers."""
    return browser.new_page(viewport=VIEWPORT)


@pytest.fixture
def page(window, served):
    """Return a page that knows the token; an error in its console, or a request to elsewhere, fails the test.

    The window remembers nothing of the tests before.
    """
    address, _ = served
    window.set_default_timeout(SLOW_MS)
    window.set_viewport_size(VIEWPORT)
    wrong = []
    watched = {
        "console": lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None,
        "pageerror": lambda error: wrong.append(str(error)),
        "dialog": lambda dialog: (wrong.append("a dialog"), dialog.dismiss()),
        "request": lambda sent: None if sent.url.startswith((address, "data:")) else wrong.append(sent.url),
    }
    for event, note in watched.items():
        window.on(event, note)
    window.goto(f"{address}/?token={TOKEN}")
    yield window
    broken = window.evaluate("(localStorage.clear(), sessionStorage.clear(), window.broken)")
    window.context.clear_cookies()
    for event, note in watched.items():
        window.remove_listener(event, note)
    window.goto("about:blank")
    assert (wrong, broken) == ([], None)


def until(page, said):
    """Wait for an expression to be true; Playwright's own way evaluates texts in the page, which the page forbids."""
    end = time.monotonic() + SLOW_MS / 1000
    while not page.evaluate(said):
        assert time.monotonic() < end, said
        time.sleep(0.05)


def follow(page, link):
    """Click a link and wait for its page with its scripts: a click or a key before they run would be lost."""
    with page.expect_navigation(wait_until="load"):
        page.click(link)


def test_every_page_opens_and_what_a_model_wrote_does_nothing(page, served):
    address, _ = served
    for path in (
        "/",
        "/run/bad",
        "/run/bad/rollouts",
        "/run/bad/rollouts/110/0",
        "/run/bad/problem?problem=p1",
        "/run/bad/doctor",
        "/run/bad/report",
        "/run/bad/rollouts/112/0",
        "/compare?run=good&run=bad",
        "/studies",
        "/study/rates",
        "/doctor",
    ):
        page.goto(address + path)
        assert page.locator("h1").count() == 1, path
        assert page.evaluate("window.broken") is None, path
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    page.set_viewport_size({"width": 380, "height": 800})
    narrow = ("/run/bad/rollouts", "/run/bad/rollouts/110/0", "/run/bad/rollouts/112/0", "/studies", "/study/rates")
    more = ("/run/bad/report", "/run/bad/doctor", "/run/bad/problem?problem=p1", "/compare")
    for path in ("/", "/run/bad", "/compare?run=good&run=bad", "/doctor", *narrow, *more):
        page.goto(address + path)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert page.evaluate(
            "[...document.querySelectorAll('.scroll')].every((one) => one.scrollWidth <= one.clientWidth)"
        ), path


def test_a_run_is_followed_while_it_writes(page, served):
    address, folder = served
    page.goto(f"{address}/run/good")
    page.wait_for_selector(".chart canvas")
    until(page, "document.getElementById('live-text').textContent === 'live'")
    began = time.monotonic()
    append_line(folder / "good" / "metrics.jsonl", metrics(120, **{"reward/mean": 7.25}))
    until(page, "document.querySelector('.facts dd').textContent.includes('121')")
    until(page, "document.querySelector('.overview .legend').textContent.includes('7.25')")
    assert time.monotonic() - began < 10  # bench/web.py has the figure of an idle machine
    asked = page.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
    assert any("/curves?after=119" in name for name in asked)  # what is new, and no more
    append_line(folder / "good" / "metrics.jsonl", metrics(119, 1, **{"reward/mean": 3.75}))  # it was resumed
    append_line(folder / "good" / "metrics.jsonl", metrics(120, 1, **{"reward/mean": 4.75}))
    until(page, "document.querySelector('.overview .legend').textContent.includes('4.75')")
    append_line(folder / "good" / "findings.jsonl", {**FINDING, "check": "fresh", "step": 120, "state": "raised"})
    page.wait_for_selector(".finding >> text=fresh")


def test_three_questions_of_a_stranger_take_at_most_three_clicks(page, served):
    address, _ = served
    page.add_init_script(
        "addEventListener('click', () => { localStorage.clicks = 1 + Number(localStorage.clicks || 0); }, true)"
    )

    def clicks_since():
        made = page.evaluate("Number(localStorage.clicks || 0)")
        page.evaluate("localStorage.clear()")
        return made

    page.goto(address)
    follow(page, "text=bad")  # why did it get worse after step 80?
    finding = page.locator(".finding", has_text="reward_falling")
    finding.locator("button.step").click()
    until(page, "document.getElementById('zoom-from').value !== ''")
    shown = [int(page.input_value(f"#{name}")) for name in ("zoom-from", "zoom-to")]
    assert shown[0] < 80 < shown[1]
    assert finding.is_visible()
    assert not finding.evaluate("(details) => details.open"), "the button of a line does not open the line"
    assert clicks_since() == 2

    page.goto(address)  # the worst rollouts of the last step?
    follow(page, "text=bad")
    follow(page, "text=Worst rollouts of step 112")
    assert "reward 0.500" in page.locator(".rollout").first.inner_text()
    assert clicks_since() == 2

    page.goto(address)  # which setting differs?
    for name in ("good", "bad"):
        page.check(f"input[value={name}]")
    follow(page, "text=Compare the marked runs")
    table = page.locator("h2:has-text('Settings that differ') + .scroll")
    assert "update.learning_rate" in table.inner_text()
    assert "0.02" in table.inner_text()
    page.wait_for_selector("text=Held-out answers")
    assert clicks_since() == 3


def test_an_episode_is_read_turn_by_turn_and_a_study_by_its_curves(page, served):
    address, _ = served
    page.goto(f"{address}/run/bad/rollouts")
    follow(page, ".rollout >> text=#0")
    turns = page.locator(".talk li")
    assert turns.nth(1).locator(".page").inner_text() == f"page {EVIL}"
    assert "click 2" in turns.nth(4).inner_text()

    follow(page, "nav >> text=Studies")
    follow(page, "a >> text=Rates")
    page.uncheck("input[value=base]")
    page.click("text=Show the curves of the marked experiments")
    page.wait_for_url("**/study/rates?arm=fast")
    page.wait_for_selector(".chart canvas")
    assert "base" not in page.locator("#board").get_attribute("data-sources")


def test_a_rollout_is_clicked_through_to_its_tokens(page, served):
    address, _ = served
    page.goto(f"{address}/run/bad/rollouts?step=110")
    follow(page, ".rollout >> text=#0")
    assert page.locator(".tokens .t").count() == 3
    assert page.locator(".tokens .t").first.inner_text() == EVIL
    assert page.locator(".tokens .t").nth(1).get_attribute("title") == "log-prob -2"
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("h1:has-text('Rollout 1 of step 110')")


def test_a_chart_is_read_and_zoomed_by_the_keyboard(page, served):
    address, _ = served
    page.goto(f"{address}/run/bad")
    page.wait_for_selector(".chart canvas")
    page.locator(".plot").first.focus()
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('.overview .legend').textContent.includes('step 6')")
    page.keyboard.press("+")
    until(page, "document.getElementById('zoom-from').value !== ''")
    page.keyboard.press("0")
    until(page, "document.getElementById('zoom-from').value === ''")


def test_what_a_reader_chose_of_the_curves_stands_in_the_address(page, served):
    address, _ = served
    page.goto(f"{address}/run/bad")
    page.wait_for_selector(".overview .chart canvas")
    page.click(".topic:has(h2:has-text('System')) > summary")
    page.select_option("#x-axis", "tokens")
    page.select_option("#smoothing", "none")
    page.check("#log-scale")
    page.fill("#zoom-from", "1000")
    page.fill("#zoom-to", "2000")
    page.press("#zoom-to", "Enter")
    page.locator("figure[data-title='Entropy'] .series").click()
    page.fill("#own-metrics", "entropy, reward/std")
    page.press("#own-metrics", "Enter")
    kept = {
        "x": "tokens",
        "from": "1000",
        "to": "2000",
        "smooth": "none",
        "log": "1",
        "hide": "entropy",
        "open": "System",
    }
    assert dict(parse_qsl(urlsplit(page.url).query)) == {**kept, "chart": "entropy,reward/std"}
    page.reload()
    page.wait_for_selector(".overview .chart canvas")
    assert page.locator("figure[data-title='Entropy'] .plot").inner_text() == "all lines are off"
    assert page.locator(".topic[open]").get_attribute("data-topic") == "System"
    assert page.input_value("#x-axis") == "tokens"
    page.locator("#own .plot").scroll_into_view_if_needed()
    page.wait_for_selector("#own canvas")
    assert page.locator("#own .series").all_inner_texts()[1].startswith("reward/std")
    asked = page.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
    assert any("/curves?from=19&to=39" in name for name in asked)  # 50 tokens a step: 1,000 at step 19, 2,000 at 39
    page.fill("#metric-filter", "kl_ref")
    assert page.locator(".chart:visible").count() == 2  # its own, and the chart of choice
    assert "show=kl_ref" in page.url


def test_a_run_that_was_named_with_a_comma_is_left_out_of_a_comparison_by_its_legend(page, served):
    address, folder = served
    write_json(folder / "labels.json", {"runs": {"bad": {"name": "fast, 50 %"}, "good": {"name": "slow"}}})
    page.goto(f"{address}/compare?run=good&run=bad")
    page.wait_for_selector(".overview .chart canvas")
    page.locator("figure[data-title='Entropy'] .series", has_text="fast, 50 %").click()
    page.reload()
    page.wait_for_selector(".overview .chart canvas")
    for title in ("Entropy", "KL"):  # in every chart
        pressed = page.locator(f"figure[data-title='{title}'] .series")
        assert [one.get_attribute("aria-pressed") for one in pressed.all()] == ["true", "false"], title


def test_from_a_point_of_a_curve_to_the_rollouts_of_its_step(page, served):
    address, folder = served  # of a run whose held-out score was measured before and after training only
    write_json(folder / "bad" / "report" / "summary.json", {"before": 0.2, "after": 0.4})
    page.goto(f"{address}/run/bad")
    page.wait_for_selector(".overview .chart canvas")
    box = page.locator(".overview .u-over").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.98, box["y"] + box["height"] / 2)
    link = page.locator(".overview .picked a").first
    step = int(link.get_attribute("href").rpartition("=")[2])
    assert 115 <= step <= 118
    follow(page, ".overview .picked a")
    assert page.locator(".bar strong").first.inner_text() == "step 112"  # recorded are 0, 10, 110 and 112


def test_a_chart_is_saved_as_numbers_and_as_pictures(page, served):
    address, _ = served
    page.goto(f"{address}/run/bad")
    page.wait_for_selector(".overview .chart canvas")
    contents = {}
    for format in ("csv", "svg", "png"):
        with page.expect_download() as saved:
            page.select_option("figure[data-title='Entropy'] .save", format)
        assert saved.value.suggested_filename == f"bad-Entropy.{format}"
        with open(saved.value.path(), "rb") as file:
            contents[format] = file.read()
    rows = contents["csv"].decode().splitlines()
    assert rows[0] == "run,metric,step,value,lowest,highest"
    assert rows[11] == "bad,entropy,10,1.9,1.9,1.9"
    assert len(rows) == 121
    root = ElementTree.fromstring(contents["svg"])
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert texts[0] == "Entropy (nats/token)" and "step" in texts
    assert contents["png"].startswith(b"\x89PNG")


def test_a_run_is_renamed_on_its_page_and_hidden_in_the_table(page, served):
    address, folder = served
    page.goto(f"{address}/run/bad")
    page.click("text=Rename, tag, note")
    page.fill("input[name=name]", EVIL)
    with page.expect_navigation(wait_until="load"):
        page.click("button[value=label]")
    assert page.locator("h1").inner_text().startswith(EVIL)
    page.goto(address)
    page.check("input[value=bad]")
    page.click("text=With the marked")
    with page.expect_navigation(wait_until="load"):
        page.click("button[value=hide]")
    assert page.locator("input[value=bad]").count() == 0
    assert json.loads((folder / "labels.json").read_text())["runs"]["bad"]["hidden"] is True


def test_an_axis_is_as_wide_as_its_numbers(page, served):
    address, folder = served
    flat = [metrics(step, entropy=3.8018 + 1e-5 * (step % 3)) for step in range(20)]
    write_lines(folder / "good" / "metrics.jsonl", flat)
    page.goto(f"{address}/run/good")
    page.wait_for_selector(".overview .chart canvas")
    left = {
        title: page.locator(f"figure[data-title='{title}'] .u-over").evaluate("(over) => over.offsetLeft")
        for title in ("Entropy", "KL")
    }
    assert left["KL"] == 54
    assert left["Entropy"] > 65  # "3.8018050" takes about 55 pixels
    with page.expect_download() as saved:
        page.select_option("figure[data-title='Entropy'] .save", "svg")
    numbers = [text.text for text in ElementTree.parse(saved.value.path()).getroot().iter() if text.get("x") == "62"]
    assert len(set(numbers)) == len(numbers) > 3, "in the saved picture too no two numbers of the axis look alike"


@pytest.mark.parametrize(("slope", "axes"), [(0.01, 1), (0.0005, 2)])
def test_a_reward_of_another_scale_than_the_held_out_score_has_an_axis_of_its_own(page, served, slope, axes):
    address, folder = served
    rows = [metrics(step, **{"heldout/retrieval": 0.2 + slope * step}) for step in range(60)]  # the reward: 0.2 to 0.79
    write_lines(folder / "good" / "metrics.jsonl", rows)
    page.goto(f"{address}/run/good")
    page.wait_for_selector(".overview .chart canvas")
    figure = page.locator("figure[data-title='Held-out score and reward']")
    texts = figure.locator(".series").all_inner_texts()
    assert ["right axis" in text for text in texts] == [False, axes == 2]
    with page.expect_download() as saved:
        figure.locator(".save").select_option("svg")
    lines = ElementTree.parse(saved.value.path()).getroot().iter("{http://www.w3.org/2000/svg}polyline")
    points = [[float(point.split(",")[1]) for point in line.get("points").split()] for line in lines]
    heights = [max(line) - min(line) for line in points if len(line) == 60]
    assert min(heights) > 0.8 * (440 - 64 - 48), "each line fills its chart"


def test_a_log_is_dropped_and_diagnosed(page, served):
    address, _ = served
    page.goto(f"{address}/doctor")
    log = "".join(json.dumps({"step": i, "reward": 0.5, "kl": -0.2 * i, "loss": 0.1}) + "\n" for i in range(60))
    page.evaluate(
        """(text) => {
          const data = new DataTransfer();
          data.items.add(new File([text], "run.jsonl"));
          window.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }""",
        log,
    )
    page.wait_for_selector(".word.is-bad")
    assert "negative_kl" in page.locator("#result").inner_text()
    page.fill("#log", "this is no log")
    page.click("text=Diagnose")
    page.wait_for_selector("#result .note")


def test_another_origin_and_a_wrong_token_get_nothing(browser, served):
    address, _ = served

    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<h1>elsewhere</h1>")

        def log_message(self, *_):
            pass

    elsewhere = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
    page = browser.new_page()
    page.set_default_timeout(SLOW_MS)
    page.goto(f"{address}/?token={TOKEN}")  # this browser has the cookie
    page.goto(f"http://127.0.0.1:{elsewhere.server_address[1]}/")
    tried = """async ([url, mode]) => {
      try { const answer = await fetch(url, { mode, credentials: "include" }); return ["got", await answer.text()]; }
      catch (error) { return ["refused", ""]; }
    }"""
    for path in ("/", f"/?token={TOKEN}", "/run/good/curves"):
        for mode in ("cors", "no-cors"):
            assert page.evaluate(tried, [address + path, mode])[1] == ""
    framed = """(url) => new Promise((done) => {
      const frame = document.createElement("iframe");
      frame.src = url; frame.onload = () => { try { done(frame.contentDocument.title); } catch { done("closed"); } };
      document.body.append(frame);
    })"""
    assert page.evaluate(framed, f"{address}/") in ("closed", "")
    elsewhere.shutdown()
    elsewhere.server_close()
    stranger = browser.new_context().new_page()
    for path in ("/", "/?token=wrong", "/run/good", "/static/app.css"):
        answer = stranger.goto(address + path)
        assert answer.status == 403
        assert "good" not in answer.text()


def test_a_page_that_is_sent_as_a_file_has_its_curves_inside(browser, tmp_path):
    """Two seeds with rewards of 0 and 1 have a line at 0.5; a group that is hidden at first is drawn on a click."""
    zero, one, two = ([{"step": step, "reward/mean": float(reward)} for step in range(12)] for reward in range(3))
    explored = curves({"seeds": [zero, one], "single": [two]}, "page.html", visible=["seeds"])
    (tmp_path / "page.html").write_text(html.page("curves", [explored]))
    opened, wrong = browser.new_page(), []
    opened.set_default_timeout(SLOW_MS)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.goto((tmp_path / "page.html").as_uri())
    assert opened.locator(".series").all_inner_texts() == ["seeds 0.5", "single"]
    opened.click("text=single")
    assert opened.locator(".series").all_inner_texts() == ["seeds 0.5", "single 2"]
    opened.check("text=every run of a group")
    opened.fill("#zoom-from", "4")
    opened.press("#zoom-from", "Enter")
    assert opened.locator(".series").all_inner_texts() == ["seeds 0.5", "single 2"] and opened.url.endswith("page.html")
    assert opened.locator("canvas").count() == 1
    assert wrong == []
    opened.context.close()
