"""`pynade report`: every table beside the paper's, as Markdown and as one self-contained HTML page."""

from __future__ import annotations

import base64
import html
import os
import re
from pathlib import Path

from pynade_paper.pages import results_page, sections
from pynade_paper.record_figures import write_figures
from pynade_paper.tables import TABLES, mark, measured, table, with_highlights
from pynade_paper.workplan import plan_page, plan_sections

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #ddd; padding: .35rem .7rem; text-align: left; white-space: nowrap; }
th { border-bottom: 2px solid #888; }
td.better { background: #e6f4e6; } td.worse { background: #fbe9e7; } td.none { color: #999; }
td.long { white-space: normal; min-width: 30rem; color: #555; font-size: 85%; }
.wide { overflow-x: auto; width: max-content; min-width: 100%; max-width: calc(100vw - 4rem); }
@media (min-width: 76rem) { .wide { margin-left: 50%; transform: translateX(-50%); } }
th:first-child, td:first-child { position: sticky; left: 0; background: #fff; }
img { max-width: 100%; margin-top: 2rem; display: block; }
code { background: #f4f4f4; }
"""


def write_report(
    results: Path, markdown: Path, page: Path, readme: Path | None = None, redraw: bool = False
) -> list[Path]:
    """Draw the figures, write the pages; returns what was written.

    Args:
        results: folder of the records and of the pictures (results/figures).
        markdown: the page of results; the plan, plan.md, is written beside it.
        page: one self-contained HTML page of both.
        readme: a file whose highlights are written anew, between their two marks.
        redraw: draw the figures even where the numbers in them have not changed.
    """
    written = write_figures(results, redraw)
    link = _way(markdown.parent, results)
    pages = {
        markdown: results_page(results, link),
        markdown.with_name("plan.md"): plan_page(results),
        page: html_page(results, _way(page.parent, results)),
    }
    if readme is not None:
        pages[readme] = with_highlights(readme.read_text(encoding="utf-8"), results)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return [*written, *pages]


def _way(start: Path, goal: Path) -> str:
    return Path(os.path.relpath(goal.resolve(), start.resolve())).as_posix()


def html_page(results: Path, link: str = "../paper/results") -> str:
    """The page; pictures are inside it, links lead to the records beside it."""
    pieces = [*sections(results, link), *plan_sections(results)]
    body = "\n".join(_block(piece, results / "figures") for piece in pieces)
    for file, title in (("results.md", "Results"), ("plan.md", "The plan")):  # both are on this page
        body = body.replace(f'href="{file}"', f'href="#{_anchor(title)}"')
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>pynade: results</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _block(text: str, figures: Path) -> str:
    """One piece of the Markdown page as HTML: a heading, a picture, a table, a list or a paragraph."""
    heading = re.match(r"(#+) (.*)", text)
    if heading:
        level = len(heading[1])
        return f'<h{level} id="{_anchor(heading[2])}">{html.escape(heading[2])}</h{level}>'
    picture = re.fullmatch(r"!\[(.*)\]\((.*)\)", text)
    if picture:
        data = base64.b64encode((figures / Path(picture[2]).name).read_bytes()).decode("ascii")
        return f'<img alt="{html.escape(picture[1])}" src="data:image/png;base64,{data}">'
    if text.startswith("- "):
        return f"<ul>{''.join(f'<li>{_inline(line[2:])}</li>' for line in text.splitlines())}</ul>"
    if text.startswith("|"):
        head, _, *lines = text.splitlines()
        cells = "".join(f"<th>{html.escape(c)}</th>" for c in _cells(head))
        rows = "".join(f"<tr>{''.join(_cell(c) for c in _cells(line))}</tr>\n" for line in lines)
        return (
            f'<div class="wide"><table><thead><tr>{cells}</tr></thead>\n<tbody>{rows}</tbody></table></div>'
        )
    return f"<p>{_inline(text)}</p>"


def _anchor(heading: str) -> str:
    return re.sub(r"\W+", "-", heading.lower()).strip("-")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def _cell(text: str) -> str:
    kind = "better" if "▲" in text else "worse" if "▼" in text else "none" if text.startswith("–") else "same"
    kind = "long" if len(text) > 80 and "](" not in text else kind
    return f'<td class="{kind}">{_inline(text)}</td>'


def _inline(text: str) -> str:
    """Escaped text with links, bold, italics and code.

    Example:
        >>> _inline("[**-1.00**](a.json) `x` *y*")
        '<a href="a.json"><b>-1.00</b></a> <code>x</code> <i>y</i>'
    """
    text = html.escape(text, quote=False)
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    text = re.sub(r"\*(.+?)\*", r"<i>\1</i>", text)
    text = re.sub(r"\[(.+?)\]\((.+?)\)", r'<a href="\2">\1</a>', text)
    return re.sub(r"`(.+?)`", r"<code>\1</code>", text)


def summary(results: Path) -> dict[str, int]:
    """How many cells are better than the paper's, the same, worse, cannot be compared, are not measured.

    Standard deviations are neither better nor worse, and are left out.
    """
    counted = dict.fromkeys(("better", "same", "worse", "no number in the paper", "not measured"), 0)
    words = {"▲": "better", "=": "same", "▼": "worse"}
    for name in TABLES:
        shown = table(name)
        for row in [row for row in shown.rows if not row.deviation]:
            for data in shown.columns:
                ours, paper = measured(results, row, data), row.paper.get(data)
                if ours is None:
                    counted["not measured"] += 1
                elif paper is None or not shown.compare:
                    counted["no number in the paper"] += 1
                else:
                    counted[words[mark(ours, paper)]] += 1
    return counted
