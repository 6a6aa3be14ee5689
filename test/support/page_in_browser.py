"""Opens a page of `lockstep report` in headless Chromium, 375 and 1,280 pixels wide, in light and dark.

    python3 test/support/page_in_browser.py CHROMIUM PAGE.html FOLDER      # FOLDER: for copies of the page and pictures

Fails if the console has a message, a chart shows no data, texts overlap, leave their chart or are smaller than 10.5
pixels, or the page is wider than the window. The copies have no content security policy, since that forbids the
measuring script. A picture of each case is left in the folder.
"""
import json
import os
import re
import subprocess
import sys

# The rectangles of all lines of text that are visible. Two of them overlap if they share more than a pixel in both
# directions.
SCRIPT = r"""
const found = {width: innerWidth, overflow: document.documentElement.scrollWidth - innerWidth, n_texts: 0, charts: {},
               overlaps: [], outside: [], small: [], ground: getComputedStyle(document.body).backgroundColor};
const visible = element => element.checkVisibility();  // false in a folded table, too
const texts = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement;
  if (!node.data.trim() || !visible(parent) || parent.closest('script, title, desc')) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  const rects = parent.closest('svg') ? [parent.getBoundingClientRect()] : range.getClientRects();
  for (const rect of rects) if (rect.width > 0) texts.push({rect, parent, text: node.data.trim().slice(0, 40)});
  const svg = parent.closest('svg');
  if (!svg) continue;
  const rect = parent.getBoundingClientRect(), frame = svg.getBoundingClientRect();
  if (rect.left < frame.left - 1 || rect.right > frame.right + 1 || rect.bottom > frame.bottom + 1)
    found.outside.push(node.data);
  const size = parseFloat(getComputedStyle(parent).fontSize) * frame.width / svg.viewBox.baseVal.width;
  if (size < 10.5) found.small.push(node.data + ': ' + size);
}
found.n_texts = texts.length;
texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
  if (a.parent === b.parent) return;
  const width = Math.min(a.rect.right, b.rect.right) - Math.max(a.rect.left, b.rect.left);
  const height = Math.min(a.rect.bottom, b.rect.bottom) - Math.max(a.rect.top, b.rect.top);
  // The lines of text have room above and below the letters, which may overlap in HTML.
  if (width > 1 && height > 3) found.overlaps.push(a.text + ' | ' + b.text);
}));
for (const figure of document.querySelectorAll('figure')) {
  const svg = [...figure.querySelectorAll('svg')].filter(visible);
  const shapes = svg.flatMap(s => [...s.querySelectorAll('polyline, rect, circle, polygon')]);
  found.charts[figure.id] = [svg.length, shapes.filter(s => {
    const box = s.getBoundingClientRect();
    return box.width > 0 && (box.height > 0 || s.tagName === 'polyline');  // a constant is a flat line
  }).length];
}
const result = document.createElement('pre');
result.id = 'result';
result.textContent = JSON.stringify(found);
parent.document.body.append(result);
"""

# Chromium's window cannot be narrower than 500 pixels, so the page is in a frame as wide as a phone.
FRAME = """<!DOCTYPE html><html style="color-scheme: {scheme}"><meta charset="utf-8"><body style="margin: 0">
<iframe src="{page}" style="width: {width}px; height: {height}px; border: 0; display: block"></iframe></body></html>
"""


def chromium(browser, folder, page, width, dark, *arguments):
    height = 7400 if width < 760 else 4000
    with open(f"{folder}/frame.html", "w", encoding="utf-8") as file:
        scheme = "dark" if dark else "light"
        file.write(FRAME.format(page=f"file://{os.path.abspath(page)}", width=width, height=height, scheme=scheme))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
               "--allow-file-access-from-files", "--enable-logging=stderr", f"--user-data-dir={folder}/profile",
               f"--window-size={max(width, 500)},{height}", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
               *arguments, f"file://{folder}/frame.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not messages, messages
    return done.stdout


def main():
    browser, page, folder = sys.argv[1:]
    folder = os.path.abspath(folder)
    os.makedirs(folder, exist_ok=True)
    with open(page, encoding="utf-8") as file:
        html = file.read()
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n')
    assert policy.search(html)
    measured = f"{folder}/measured.html"
    with open(measured, "w", encoding="utf-8") as file:
        file.write(policy.sub("", html).replace("</body>", f"<script>{SCRIPT}</script></body>"))
    grounds = set()
    for width in (375, 1280):
        for dark in (False, True):
            name = f"{width}-{'dark' if dark else 'light'}"
            dom = chromium(browser, folder, measured, width, dark, "--dump-dom")
            text = re.search(r'<pre id="result">(.*?)</pre>', dom, re.DOTALL).group(1)
            found = json.loads(text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
            assert found["width"] == width, found["width"]
            assert found["overflow"] <= 0, f"{name}: {found['overflow']} pixels wider than the window"
            assert found["n_texts"] > 50, found["n_texts"]
            for problem in ("overlaps", "outside", "small"):
                assert not found[problem], f"{name}: {problem}: {found[problem]}"
            for chart, (n_svg, n_shapes) in found["charts"].items():
                assert n_svg == 1 and n_shapes > 0, f"{name}: {chart}: {n_svg} pictures with {n_shapes} shapes"
            grounds.add(found["ground"])
            chromium(browser, folder, page, width, dark, f"--screenshot={folder}/{name}.png")
            print(f"{name}: {len(found['charts'])} charts, {found['n_texts']} lines of text")
    assert len(grounds) == 2, grounds


if __name__ == "__main__":
    main()
