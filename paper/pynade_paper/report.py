"""`pynade report`: every table beside the paper's, as Markdown and as one self-contained HTML page."""

from __future__ import annotations

import base64
import os
import re
from itertools import chain, pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from pynade_paper.pages import results_page, with_highlights
from pynade_paper.record_figures import write_figures
from pynade_paper.tables import Tables

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; display: block;
  overflow-x: auto; width: max-content; min-width: 100%; max-width: calc(100vw - 4rem); }
@media (min-width: 76rem) { table { margin-left: 50%; transform: translateX(-50%); } }
th, td { border-bottom: 1px solid #ddd; padding: .35rem .7rem; text-align: left; white-space: nowrap; }
th { border-bottom: 2px solid #888; }
td.better { background: #e6f4e6; } td.worse { background: #fbe9e7; } td.none { color: #999; }
th:first-child, td:first-child { position: sticky; left: 0; background: #fff; }
img { max-width: 100%; margin-top: 2rem; display: block; }
code { background: #f4f4f4; }
"""


def write_report(
    results: Path,
    markdown: Path,
    page: Path,
    readme: Path | None = None,
    redraw: bool = False,
    tables: Tables | None = None,
) -> list[Path]:
    """Draw the figures, write the pages; returns what was written.

    Args:
        results: folder of the records and of the pictures (figures).
        markdown: the page of results.
        page: the same as one self-contained HTML page.
        readme: a file with a table of highlights to write between its two marks.
        redraw: draw the figures even where their numbers have not changed.
        tables: those of the paper when left out.
    """
    written = write_figures(results, redraw, tables)
    pages = {markdown: results_page(results, _relative(results, markdown.parent), tables)}
    pages[page] = html_page(results, _relative(results, page.parent), tables)
    if readme is not None:
        pages[readme] = with_highlights(readme.read_text(encoding="utf-8"), results)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return [*written, *pages]


def _relative(path: Path, start: Path) -> str:
    return Path(os.path.relpath(path.resolve(), start.resolve())).as_posix()


def html_page(results: Path, link: str = "../paper/results", tables: Tables | None = None) -> str:
    """The page of results as HTML: pictures are inside it, links lead to the records."""
    renderer = MarkdownIt("js-default")
    tokens = renderer.parse(results_page(results, link, tables))
    for token, content in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", re.sub(r"\W+", "-", content.content.lower()).strip("-"))
        elif token.type == "td_open":
            token.attrSet("class", _kind(content.content))
    for token in chain.from_iterable(token.children or [] for token in tokens):
        if token.type == "image":
            _embed(token, results / "figures")
    body = renderer.renderer.render(tokens, renderer.options, {})
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>pynade: results</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )


def _kind(cell: str) -> str:
    """The style of a table's cell, from its text."""
    if "▲" in cell or "▼" in cell:
        return "better" if "▲" in cell else "worse"
    return "none" if cell.startswith("–") else "same"


def _embed(image: Token, figures: Path) -> None:
    """Put a picture's bytes in the place of its address."""
    picture = figures / Path(str(image.attrs["src"])).name
    image.attrs["src"] = f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode('ascii')}"
