"""Take docs/pictures/browse.png: four pages of the site as Chromium shows them, and what a policy reads of each."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from steadyrl.environments.browse.browser.settings import BrowserSettings
from steadyrl.environments.browse.families import make_quest
from steadyrl.environments.browse.site_suite import SiteInBrowser
from steadyrl.environments.browse.view import View

OUT = Path(__file__).parent.parent / "docs" / "pictures" / "browse.png"
SHOWN = (("buy", 2, 0), ("cheapest", 4, 1), ("close", 1, 0), ("register", 3, 0))


def main() -> None:
    """Show each quest's first page and write the picture."""
    site = SiteInBrowser(BrowserSettings())
    figure, axes = plt.subplots(len(SHOWN), 2, figsize=(13, 12), width_ratios=(3, 2))
    for (page, text), (family, level, seed) in zip(axes, SHOWN, strict=True):
        quest = make_quest(family, level, seed)
        tab = site.show(quest)
        seen = View(tab, 600).first()
        page.imshow(plt.imread(io.BytesIO(tab.screenshot()))[20:420, 270:1010], interpolation="antialiased")
        page.set_title(f"{family}, level {level}", fontsize=12, loc="left")
        text.text(0.0, 1.0, f"goal: {quest.goal}\n{seen}", va="top", family="monospace", fontsize=9.5)
        page.set(xticks=[], yticks=[])
        text.axis("off")
        tab.close()
    site.close()
    figure.tight_layout()
    figure.savefig(OUT, dpi=75)


if __name__ == "__main__":
    main()
