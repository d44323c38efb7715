"""Directive `commands`: the reference of the command line, made from the commands themselves."""

import inspect
import re
from pathlib import Path

import typer
from sphinx.util.docutils import SphinxDirective

from pynade.cli.fit import model_options
from pynade.cli.main import app
from pynade.estimators.registry import ALIASES, MODELS

KINDS = {Path: "PATH", int: "INT", float: "FLOAT", str: "TEXT"}


def plain(text):
    """Words as Markdown: what is not code has no markup."""
    pieces = re.split(r"(`[^`]*`)", " ".join((text or "").replace("\\[", "[").split()))
    return "".join(p if p.startswith("`") else re.sub(r"([*_<>|\[\]$])", r"\\\1", p) for p in pieces)


def text_of(help_text):
    """The help of a command as Markdown: paragraphs, and code of what keeps its lines (after \\b)."""
    parts = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(help_text or "")):
        if not part.startswith("\b"):
            parts.append(plain(part))
            continue
        title, _, rest = part.lstrip("\b\n").partition("\n")
        parts.append(f"{plain(title)}\n\n```text\n{inspect.cleandoc(rest)}\n```")
    return "\n\n".join(parts)


def listed(parameters):
    """Arguments or options with their texts, as a definition list."""
    lines = []
    for p in parameters:
        words = ", ".join(p.opts) + "".join(f" / {word}" for word in p.secondary_opts)
        value = p.metavar or KINDS.get(p.type_descriptor.annotation, "")
        known = not (p.default in (None, False, (), []) or "[" in (p.help or "") or callable(p.default))
        facts = " Required." * p.required + f" Default: `{p.default}`." * known
        shown = p.metavar or p.name.upper() if p.param_type_name == "argument" else f"{words} {value}".strip()
        lines.append(f"`{shown}`\n: {plain(p.help)}{facts}\n")
    return "\n".join(lines)


def of_models():
    """The options of every model of `pynade fit`, by model."""
    for name, entry in MODELS.items():
        lines = [f"## {name}", f"The estimator `{entry.kind}`; data: {entry.data}."]
        for alias, (other, preset) in ALIASES.items():
            if other == name:
                settings = ", ".join(f"`{key}={value}`" for key, value in preset.items())
                lines.append(f"`--model {alias}` is the same{' with ' if preset else ''}{settings}.")
        for option in model_options(name):
            typed = option.parameter().annotation.__metadata__[0]
            words = f"{typed.default.replace('/', ' / ')} {typed.metavar or ''}".strip()
            lines.append(f"`{words}`\n: {plain(typed.help)}")
        yield "\n\n".join(lines)


def described(command, name):
    """A command and those within it, as Markdown."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p not in arguments and p.name != "help"]
    shown = [p.metavar or p.name.upper() for p in arguments]
    words = [word if p.required else f"[{word}]" for word, p in zip(shown, arguments, strict=True)]
    usage = " ".join([name, *["[OPTIONS]"] * bool(options), *words])
    parts = [f"## {name}", f"```text\n{usage}\n```", text_of(command.help), listed([*arguments, *options])]
    yield "\n\n".join([*parts, plain(getattr(command, "epilog", ""))])
    for inner, part in getattr(command, "commands", {}).items():
        yield from described(part, f"{name} {inner}")


def reference(what):
    """All commands, or the options of all models, as Markdown."""
    parts = of_models() if what == "models" else described(typer.main.get_command(app), "pynade")
    return "\n\n".join(parts)


class Commands(SphinxDirective):
    """All commands with their options; with the argument `models`, the options of models of `pynade fit`."""

    optional_arguments = 1

    def run(self):
        """Parse the Markdown where the directive stands."""
        return self.parse_text_to_nodes(reference("".join(self.arguments)), allow_section_headings=True)


def setup(app):
    """Add the directive to Sphinx."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
