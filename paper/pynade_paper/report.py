"""`pynade results`: every table beside the paper's, as Markdown and as one self-contained HTML page."""

from __future__ import annotations

import os
import re
from itertools import chain, pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from pynade.runs import html
from pynade_paper.pages import headlines, results_page, with_highlights
from pynade_paper.record_figures import write_figures
from pynade_paper.records import UNSTABLE
from pynade_paper.tables import Tables

# blue, orange and purple can be told apart by colour-blind people, and each has its mark too
STYLE = """
td.better { background: #1f77c422; } td.worse { background: #f5a02a33; }
td.unstable { background: #a040a022; }
td.none { opacity: .65; }
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
    """The page of results as HTML: pictures are inside it, links lead to the records.

    It begins with a few numbers and a list of contents. Tables and pictures are in boxes that scroll.
    """
    renderer = MarkdownIt("js-default")
    tokens = renderer.parse(results_page(results, link, tables))
    headings = []
    for token, content in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", html.anchor(content.content))
            headings += [content.content] * (token.tag == "h2")
        elif token.type == "td_open":
            token.attrSet("class", _kind(content.content))
    for token in chain.from_iterable(token.children or [] for token in tokens):
        if token.type == "image":
            _embed(token, results / "figures")
    body = renderer.renderer.render(tokens, renderer.options, {})
    body = re.sub(
        r"<table>.*?</table>|(?<=<p>)<img [^>]*>(?=</p>)",
        lambda found: html.box(found[0]),
        body,
        flags=re.S,
    )
    body = re.sub(r"<p>(<div.*?</div></div>)</p>", r"\1", body)
    first = html.top(headlines(results, tables), headings)
    body = body.replace("</h1>", f"</h1>\n{first}", 1)
    return html.page("pynade: results beside the paper's", body, STYLE)


def _kind(cell: str) -> str:
    """The style of a table's cell, from its text."""
    for end, name in (("▲", "better"), ("▼", "worse"), (UNSTABLE, UNSTABLE)):
        if cell.endswith(end):
            return name
    return "none" if cell.startswith("–") else "same"


def _embed(image: Token, figures: Path) -> None:
    """Put a picture's bytes in the place of its address."""
    picture = figures / Path(str(image.attrs["src"])).name
    image.attrs["src"] = html.png_data(picture.read_bytes())
