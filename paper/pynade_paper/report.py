"""`pynade report`: every table beside the paper's, as Markdown and as one self-contained HTML page."""

from __future__ import annotations

import base64
import os
import re
from html import escape
from itertools import chain, pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from pynade_paper.pages import headlines, results_page, with_highlights
from pynade_paper.record_figures import write_figures
from pynade_paper.records import UNSTABLE
from pynade_paper.tables import Tables

# blue, orange and purple can be told apart by colour-blind people, and each has its mark too
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  overflow-wrap: break-word; }
.headlines { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 1rem; }
.headlines div { border: 1px solid #ccc; border-radius: .4rem; padding: .6rem .9rem; }
.headlines dt { font-size: 1.4rem; font-weight: 600; } .headlines dd { margin: 0; font-size: .9rem; }
nav ul { columns: 16rem; padding-left: 1.2rem; }
.box { margin: 1rem 0; } .table { border: 1px solid #ddd; border-radius: .4rem; }
.box p { display: none; margin: 0; padding: .25rem .7rem; font-size: .85rem; background: #f4f4f4; }
.wide p { display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { border-bottom: 1px solid #ddd; padding: .35rem .7rem; text-align: left; white-space: nowrap; }
th { border-bottom: 2px solid #888; }
td.better { background: #e1effa; } td.worse { background: #fdebd3; } td.unstable { background: #f1e4f1; }
td.none { color: #767676; }
th:first-child, td:first-child { position: sticky; left: 0; background: #fff; }
img { max-width: 100%; height: auto; display: block; }
@media (max-width: 60rem) {
  .box p { display: block; }
  body { margin: 1rem auto; }
  img { min-width: 44rem; max-width: none; }
  th:first-child, td:first-child { white-space: normal; min-width: 7rem; max-width: 9rem; }
}
code { background: #f4f4f4; }
"""
WIDE = 120  # characters in a line of a table that has to be scrolled on a large screen too


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
    contents = ""
    for token, content in pairwise(tokens):
        if token.type == "heading_open":
            name = re.sub(r"\W+", "-", content.content.lower()).strip("-")
            token.attrSet("id", name)
            contents += f'<li><a href="#{name}">{escape(content.content)}</a></li>' * (token.tag == "h2")
        elif token.type == "td_open":
            token.attrSet("class", _kind(content.content))
    for token in chain.from_iterable(token.children or [] for token in tokens):
        if token.type == "image":
            _embed(token, results / "figures")
    body = renderer.renderer.render(tokens, renderer.options, {})
    body = re.sub(r"<table>.*?</table>|(?<=<p>)<img [^>]*>(?=</p>)", _boxed, body, flags=re.DOTALL)
    body = re.sub(r"<p>(<div.*?</div></div>)</p>", r"\1", body)
    numbers = "".join(
        f"<div><dt>{escape(number)}</dt><dd>{escape(what)}</dd></div>"
        for number, what in headlines(results, tables)
    )
    top = f'<dl class="headlines">{numbers}</dl>\n' if numbers else ""
    top += f'<nav aria-labelledby="contents"><b id="contents">Contents</b><ul>{contents}</ul></nav>'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>pynade: results beside the paper's</title><style>{STYLE}</style></head>\n"
        f"<body>\n{body.replace('</h1>', f'</h1>{chr(10)}{top}', 1)}</body></html>\n"
    )


def _boxed(found: re.Match[str]) -> str:
    """A table or picture in a box that scrolls sideways, and says so where it has to be scrolled."""
    table = found[0].startswith("<table")
    lines = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in re.split("</tr>", found[0])]
    widths = zip(*([len(re.sub("<.*?>", "", cell)) for cell in line] for line in lines if line), strict=True)
    wide = " wide" if sum(map(max, widths)) > WIDE else ""
    what = "table sideways to see all of its columns" if table else "picture sideways to see all of it"
    kind = f"box {'table' if table else 'picture'}{wide}"
    inner = f'<div class="scroll" role="region" tabindex="0" aria-label="scrolls sideways">{found[0]}</div>'
    return f'<div class="{kind}"><p>Scroll this {what}.</p>{inner}</div>'


def _kind(cell: str) -> str:
    """The style of a table's cell, from its text."""
    for end, name in (("▲", "better"), ("▼", "worse"), (UNSTABLE, UNSTABLE)):
        if cell.endswith(end):
            return name
    return "none" if cell.startswith("–") else "same"


def _embed(image: Token, figures: Path) -> None:
    """Put a picture's bytes in the place of its address."""
    picture = figures / Path(str(image.attrs["src"])).name
    image.attrs["src"] = f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode('ascii')}"
