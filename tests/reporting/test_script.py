"""The report's script, in a real browser: tables sort and filter, and a link opens the responses that it leads to.

A second script, put at the page's end, uses the page as a reader would and writes what it then sees.
"""

import json
import re
import shutil
import subprocess

import pytest

from tests.reporting.fake_results import build, config
from tokencredit.analysis.aggregate import aggregate
from tokencredit.reporting.report import build_report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]

READER = """
<script>
const seen = {};
const table = document.querySelector("main table:has(button.sort)");
const column = [...table.tHead.rows[0].cells].findIndex((c, i) => i > 0 &&
  [...table.tBodies[0].rows].some((r) => /\\d/.test(r.cells[i]?.innerText ?? "")));
const read = () => [...table.tBodies[0].rows].map((r) => r.cells[column].innerText.trim());
seen.first = read();
seen.orders = [0, 1, 2].map(() => {
  table.tHead.rows[0].cells[column].querySelector("button").click();
  return [table.tHead.rows[0].cells[column].ariaSort, read()];
});
const field = document.querySelector("main input.filter");
if (field) {
  const rows = () => [...document.querySelectorAll("main table tbody tr")].filter((r) => r.hidden).length;
  const hidden = rows();
  field.value = "no row holds these words";
  field.dispatchEvent(new Event("input"));
  seen.hidden = [hidden, rows()];
  field.value = "";
  field.dispatchEvent(new Event("input"));
  seen.hidden.push(rows());
}
const link = document.querySelector('span.value a[href^="#responses-"]');
const holder = document.getElementById(link.getAttribute("href").slice(1)).closest("details");
seen.opened = [holder.open];
location.hash = link.getAttribute("href");
setTimeout(() => {
  seen.opened.push(holder.open);
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify(seen);
  document.body.append(out);
}, 300);
</script>
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    root, specs = build(tmp_path_factory.mktemp("made"), config(seeds=2, rollouts=10, samples=4))
    aggregate(specs["aggregate"], root, root / "analysis")
    build_report(specs["report"], root, root)
    page = root / "report.html"
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", READER + "</body>"), encoding="utf-8")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={root}/browser", "--virtual-time-budget=5000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    found = re.search(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[-2000:]
    return json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))


def numbers(cells):
    found = [re.search(r"[+-]?\d+(\.\d+)?", c.replace("\u2212", "-").replace(",", "")) for c in cells]
    return [float(m[0]) for m in found if m]


def test_a_column_sorts_down_up_and_back(seen):
    (down, falling), (up, rising), (none, back) = seen["orders"]
    assert (down, up, none) == ("descending", "ascending", "none")
    assert len(set(numbers(seen["first"]))) > 1
    assert numbers(falling) == sorted(numbers(seen["first"]), reverse=True)
    assert numbers(rising) == sorted(numbers(seen["first"]))
    assert back == seen["first"]


def test_rows_are_filtered_by_words(seen):
    before, with_words, after = seen["hidden"]
    assert before == after == 0 and with_words > 9


def test_a_link_opens_the_responses(seen):
    assert seen["opened"] == [False, True]
