"""Self-contained HTML pages: style, tables and pictures that scroll, contents."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --page: #fff; --line: #ccc; --soft: #f2f2f2;
  --link: #0b57a4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e4; --page: #17191d; --line: #4a4d52; --soft: #25282e; --link: #86bdf5; }
}
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  overflow-wrap: break-word; color: var(--ink); background: var(--page); }
a { color: var(--link); }
.headlines { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 1rem; }
.headlines div { border: 1px solid var(--line); border-radius: .4rem; padding: .6rem .9rem; }
.headlines dt { font-size: 1.4rem; font-weight: 600; } .headlines dd { margin: 0; font-size: .9rem; }
nav ul { columns: 16rem; padding-left: 1.2rem; }
.box { margin: 1rem 0; } .table { border: 1px solid var(--line); border-radius: .4rem; }
.box p { display: none; margin: 0; padding: .25rem .7rem; font-size: .85rem; background: var(--soft); }
.wide p { display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .7rem; text-align: left; white-space: nowrap; }
th { border-bottom: 2px solid var(--line); }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--page); }
img { max-width: 100%; height: auto; display: block; background: #fff; border-radius: .3rem; }
@media (max-width: 60rem) {
  .box p { display: block; }
  body { margin: 1rem auto; }
  img { min-width: 40rem; max-width: none; }
  th:first-child, td:first-child { white-space: normal; min-width: 7rem; max-width: 9rem; }
}
code, pre { background: var(--soft); } pre { padding: .6rem .9rem; overflow-x: auto; }
"""
WIDE = 105  # characters in a line of a table that has to be scrolled on a large screen too


def page(title: str, body: str, style: str = "") -> str:
    """The text of a page, whose body begins with its heading; `style` is added to the usual one."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>\n<body><main>\n{body}</main></body></html>\n"
    )


def top(numbers: Iterable[tuple[str, str]], headings: Iterable[str]) -> str:
    """A few numbers, each with what it is, and a list of contents."""
    boxes = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(name)}</dd></div>" for n, name in numbers)
    items = "".join(f'<li><a href="#{anchor(text)}">{escape(text)}</a></li>' for text in headings)
    headlines = f'<dl class="headlines">{boxes}</dl>\n' if boxes else ""
    return f'{headlines}<nav aria-labelledby="contents"><b id="contents">Contents</b><ul>{items}</ul></nav>'


def anchor(heading: str) -> str:
    """The name by which a heading is linked."""
    return re.sub(r"\W+", "-", heading.lower()).strip("-")


def box(content: str) -> str:
    """A table or picture in a box that scrolls sideways, and says so where it has to be scrolled."""
    kind, rest = ("table", " of its columns") if content.startswith("<table") else ("picture", " of it")
    lines = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in re.split("</tr>", content)]
    widths = zip(*([len(re.sub("<.*?>", "", cell)) for cell in line] for line in lines if line), strict=True)
    wide = " wide" if sum(map(max, widths)) > WIDE else ""
    content = f'<div class="scroll" role="group" tabindex="0" aria-label="scrolls sideways">{content}</div>'
    advice = f"<p>Scroll this {kind} sideways to see all{rest}.</p>"
    return f'<div class="box {kind}{wide}">{advice}{content}</div>'


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of texts in a box."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(str(c))}</td>' for c in row)}</tr>" for row in rows)
    return box(f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>")


def picture(figure: Figure, words: str) -> str:
    """A figure inside the page, in a box; `words` say what it shows to those who cannot see it."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return box(f'<img alt="{escape(words)}" src="{png_data(file.getvalue())}">')


def png_data(png: bytes) -> str:
    """The address that holds a picture itself."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
