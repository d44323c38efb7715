"""`pynade report`: every table beside the paper's, as Markdown and as one self-contained HTML page."""

from __future__ import annotations

import base64
import html
import re
from pathlib import Path

from pynade.experiments.tables import TABLES, results_page, sections

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #ddd; padding: .35rem .7rem; text-align: left; white-space: nowrap; }
th { border-bottom: 2px solid #888; }
td.better { background: #e6f4e6; } td.worse { background: #fbe9e7; } td.none { color: #999; }
.wide { overflow-x: auto; } figure { margin: 2rem 0; } img { max-width: 100%; } code { background: #f4f4f4; }
"""


def write_report(results: Path, markdown: Path, page: Path) -> None:
    """Write docs/results.md and the HTML page from the records and the pictures in results/figures."""
    markdown.write_text(results_page(results), encoding="utf-8")
    page.write_text(html_page(results), encoding="utf-8")


def html_page(results: Path) -> str:
    """The page; pictures are inside it, links lead to the records beside it."""
    body = "\n".join(_block(section) for section in sections(results))
    pictures = "".join(_figure(path) for path in sorted((results / "figures").glob("*.png")))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>pynade: results</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n{pictures}</body></html>\n"
    )


def _block(text: str) -> str:
    """One piece of the Markdown page as HTML: a heading, a table or a paragraph."""
    heading = re.match(r"(#+) (.*)", text)
    if heading:
        level = len(heading[1])
        return f"<h{level}>{html.escape(heading[2])}</h{level}>"
    if text.startswith("|"):
        head, _, *lines = text.splitlines()
        cells = "".join(f"<th>{html.escape(c)}</th>" for c in _cells(head))
        rows = "".join(f"<tr>{''.join(_cell(c) for c in _cells(line))}</tr>\n" for line in lines)
        return (
            f'<div class="wide"><table><thead><tr>{cells}</tr></thead>\n<tbody>{rows}</tbody></table></div>'
        )
    return f"<p>{_inline(text)}</p>"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def _cell(text: str) -> str:
    kind = "better" if "▲" in text else "worse" if "▼" in text else "none" if text.startswith("–") else "same"
    return f'<td class="{kind}">{_inline(text)}</td>'


def _inline(text: str) -> str:
    """Escaped text with links, bold and code.

    Example:
        >>> _inline("[**-1.00**](a.json) `x`")
        '<a href="a.json"><b>-1.00</b></a> <code>x</code>'
    """
    text = html.escape(text, quote=False)
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    text = re.sub(r"\[(.+?)\]\((.+?)\)", r'<a href="\2">\1</a>', text)
    return re.sub(r"`(.+?)`", r"<code>\1</code>", text)


def _figure(path: Path) -> str:
    words = path.with_suffix(".txt")
    caption = words.read_text(encoding="utf-8").strip() if words.is_file() else path.stem.replace("-", " ")
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    caption = html.escape(caption)
    image = f'<img alt="{caption}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>\n"


def summary(results: Path) -> dict[str, int]:
    """How many cells are better, the same, worse, or not measured."""
    text = results_page(results)
    cells = [c for line in text.splitlines() if line.startswith("| ") for c in _cells(line)[1:]]
    counted = {"better": "▲", "same": " =", "worse": "▼"}
    found = {name: sum(mark in cell for cell in cells) for name, mark in counted.items()}
    return found | {"not measured": sum(cell.startswith("–") for cell in cells), "tables": len(TABLES)}
