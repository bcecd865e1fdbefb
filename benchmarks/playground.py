"""The playground in the system's Chromium: first paint, and how fast its network learns the adding problem, T = 50.

python benchmarks/playground.py [draws of weights]
"""

# pyright: reportMissingImports=false
# playwright is in the group dev

import shutil
import sys
import time

from _rows import append
from playwright.sync_api import sync_playwright

from longlag.play import PAGE

PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def main(draws: int) -> None:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for seed in range(1, draws + 1):
            page = browser.new_page()
            page.goto(f"{PAGE.as_uri()}#seed={seed}")
            page.wait_for_selector("#picture-flow svg")
            append(f"playground: first paint, draw {seed}", page.evaluate(PAINT), "ms")
            begin = time.perf_counter()
            page.click("#go")
            page.wait_for_function("playground.learning.last.learned", timeout=60_000)
            append(f"playground: adding problem learned, draw {seed}", time.perf_counter() - begin, "s")
            count, seconds = page.evaluate("[playground.learning.last.count, playground.learning.last.seconds]")
            append(f"playground: sequences seen, draw {seed}", count, "sequences")
            append(f"playground: sequences per second, draw {seed}", count / seconds, "sequences/s")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
