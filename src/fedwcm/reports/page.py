"""The HTML page of a report: one self-contained file, whose text and tables do not need scripts."""

import json
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from string import Template

from fedwcm import __version__
from fedwcm.reports.content import ReportContent
from fedwcm.reports.figures import Curves, Figure, Heatmap
from fedwcm.reports.page_table import breakable, plain_table, results, sentence, sweep_section
from fedwcm.reports.styles import off_scale, page_styles, upper_limit
from fedwcm.reports.table_files import csv_table
from fedwcm.reports.text import plain_number


def page(content: ReportContent) -> str:
    """Render the page. Everything that comes from the user is escaped."""
    alone = content.table is None
    return Template(_asset("page.html")).substitute(
        kind="run" if alone else "comparison",
        version=__version__,
        title=escape(content.title),
        style=_asset("page.css"),
        opening=_opening(content),
        sidebar=_sidebar(content),
        main="\n".join(_sections(content)),
        report=_json(content),
        vendor=files("fedwcm.reports").joinpath("vendor", "echarts.min.js").read_text(encoding="utf-8"),
        theme=_asset("theme.js"),
        shapes=_asset("shapes.js"),
        plots=_asset("plots.js"),
        script=_asset("page.js"),
    )


def _asset(name: str) -> str:
    return files("fedwcm.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _json(content: ReportContent) -> str:
    data = {
        "methods": content.methods,
        "best": content.best,
        "styles": content.styles,
        "costs": content.costs,
        "looks": page_styles(),
        "figures": [_data(figure) for figure in content.figures],
        "milestones": content.table.milestones if content.table else [],
        "target": content.table.target if content.table else None,
        "table_csv": csv_table(content.table.rows) if content.table else None,
    }
    # Inside a script element only "</" would end it; without "<" nothing can.
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _data(figure: Figure) -> dict[str, object]:
    limit = {"limit": upper_limit(figure)} if isinstance(figure, Curves) else {}
    return {**figure.data(), **limit}


def _sidebar(content: ReportContent) -> str:
    targets = [("results", "Results")] if content.table else []
    targets += [("by-class", "Class by class")] if content.classes else []
    targets += [("sweep", "What the options do")] if content.sweep else []
    targets += [("commands", "What to run next")] if content.commands else []
    targets += [(figure.key, figure.title) for figure in content.figures]
    targets += [("options", "Options")] if content.options else []
    links = "".join(f'<li><a href="#{escape(key)}">{escape(title)}</a></li>' for key, title in targets)
    return f"""<aside class="sidebar">
<details class="contents" open><summary>Contents</summary>
<nav aria-label="Contents"><ul>{links}</ul></nav></details>
{_switches(content) if content.table else ""}
<button type="button" id="theme" class="theme">Dark colours</button>
</aside>"""


def _switches(content: ReportContent) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" value="{escape(name)}" checked>'
        f'<svg data-swatch="{escape(name)}" width="34" height="10" aria-hidden="true">'
        '<line x1="1" y1="5" x2="33" y2="5" stroke-width="2"/>'
        '<path transform="translate(12.5 0.5) scale(0.9)"/></svg>'
        f"<span>{breakable(name)}</span></label>"
        for name in content.methods
    )
    best = ""
    if len(content.best) < len(content.methods):
        best = f'<button type="button" data-choose="best">Best {len(content.best)}</button>'
    return f"""<fieldset class="methods"><legend>Shown in the plots</legend>
<div class="all"><button type="button" data-choose="all">All</button>
<button type="button" data-choose="none">None</button>{best}</div>
<div class="list">{boxes}</div></fieldset>"""


def _opening(content: ReportContent) -> str:
    parts = [
        f"<h1>{escape(content.title)}</h1>",
        f'<div class="lead">{"".join(map(_verdict, content.headline))}</div>',
    ]
    parts.append(f'<div class="facts">{_paragraphs(content.facts)}</div>')
    if content.warnings:
        items = "".join(f"<li>{sentence(warning)}</li>" for warning in content.warnings)
        parts.append(f'<div class="warnings" role="note"><strong>Worth knowing</strong><ul>{items}</ul></div>')
    if content.tiles:
        tiles = "".join(
            f'<div class="tile"><dt>{escape(label)}</dt><dd><span class="number">{escape(number)}</span>'
            f'<span class="remark">{escape(remark)}</span></dd></div>'
            for label, number, remark in content.tiles
        )
        parts.append(f'<dl class="tiles">{tiles}</dl>')
    return "\n".join(parts)


def _verdict(text: str) -> str:
    """Return the lines of a verdict as paragraphs, its first sentence in bold."""
    line, *others = text.splitlines()
    first, stop, rest = line.partition(". ")
    return f"<p><strong>{sentence(first + stop)}</strong>{sentence(rest)}</p>{_paragraphs(others)}"


def _paragraphs(sentences: Sequence[str]) -> str:
    return "".join(f"<p>{sentence(text)}</p>" for text in sentences)


def _sections(content: ReportContent) -> Iterator[str]:
    """Yield the sections of the page, from top to bottom."""
    if content.table:
        yield results(content.table)
    if content.classes:
        yield _classes(content)
    if content.sweep:
        yield sweep_section(content.sweep)
    if content.commands:
        yield _commands(content)
    yield _figures(content)
    if content.options:
        yield _options(content)


def _commands(content: ReportContent) -> str:
    steps = "".join(
        f"<p>{escape(purpose)}</p><pre><code>{escape(command)}</code></pre>"
        for purpose, command in content.commands
    )
    return f'<section id="commands"><h2>What to run next</h2>{steps}</section>'


def _figures(content: ReportContent) -> str:
    notes = f'<p class="facts">{escape(" ".join(content.notes))}</p>' if content.notes else ""
    placed = zip(content.figures, _wide(content.figures), strict=True)
    drawn = (
        "\n".join(_figure(figure, wide) for figure, wide in placed)
        or "<p>No round was evaluated: there is nothing to draw.</p>"
    )
    notes += UNITS if content.table else ""
    return f"""<section><h2>Figures</h2>{notes}
<noscript><p>The plots need JavaScript; the words, tables and options do not.</p></noscript>
<div class="figures">{drawn}</div></section>"""


UNITS = """<p><label>Curves over <select id="unit"><option value="round">rounds</option>
<option value="MB">megabytes sent</option><option value="seconds">seconds</option></select></label></p>"""


def _classes(content: ReportContent) -> str:
    """Return the classes of one run from head to tail: a bar and the interval of its accuracy."""
    rows = "".join(
        f'<tr><th scope="row">{escape(one.name)}</th><td class="number">{one.trained:,}</td>'
        f'<td class="number">{one.tested:,}</td><td class="number">{one.accuracy:.3f}</td>'
        f'<td class="number">{one.low:.3f} to {one.high:.3f}</td>'
        f'<td><meter min="0" max="1" value="{one.accuracy:.4f}" aria-label="accuracy of {escape(one.name)}">'
        "</meter></td></tr>"
        for one in content.classes
    )
    numbers = ("trained on", "tested", "accuracy", "95 % interval")
    titles = "".join(
        ['<th scope="col">class</th>', *(f'<th scope="col" class="number">{n}</th>' for n in numbers)]
    )
    return f"""<section id="by-class"><h2>Class by class, from head to tail</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Accuracy of each class"><table class="by-class">
<thead><tr>{titles}<td></td></tr></thead><tbody>{rows}</tbody></table></div></section>"""


def _wide(figures: Sequence[Figure]) -> list[bool]:
    """Return which figures take the full width: those that need it, and those with a gap beside them."""
    wide, beside = [], False
    for figure, following in zip(figures, [*figures[1:], None], strict=False):
        alone = not beside and (following is None or following.wide)
        wide.append(figure.wide or alone)
        beside = not (wide[-1] or beside)
    return wide


def _figure(figure: Figure, wide: bool) -> str:
    key, title = escape(figure.key), escape(figure.title)
    square = " square" if isinstance(figure, Heatmap) and figure.square else ""
    choice = ""
    if isinstance(figure, Heatmap) and len(figure.matrices) > 1:
        names = "".join(f"<option>{escape(matrix.name)}</option>" for matrix in figure.matrices)
        choice = f'<label class="choice">of <select data-choice="{key}">{names}</select></label>'
    return f"""<figure id="{key}"{' class="wide"' if wide else ""}>
<header><h3>{title}</h3><div class="tools"><button type="button" data-csv="{key}"
aria-label="Download the data of “{title}” as CSV">CSV</button><button type="button" data-picture="{key}:svg"
aria-label="Download “{title}” as SVG">SVG</button><button type="button" data-picture="{key}:png"
aria-label="Download “{title}” as PNG">PNG</button></div></header>
<figcaption>{escape(figure.caption)}{escape(_beyond(figure))}</figcaption>{choice}
<div class="plot{square}" id="plot-{key}" data-figure="{key}" role="img" aria-label="{title}"></div></figure>"""


def _beyond(figure: Figure) -> str:
    """Return what leaves the scale, and how far."""
    if not isinstance(figure, Curves) or not (left := off_scale(figure)):
        return ""
    named = ", ".join(f"{name} (up to {plain_number(value)})" for name, value in left.items())
    return f" Off scale, from the triangles on: {named}."


def _options(content: ReportContent) -> str:
    differing = ""
    if content.differences:
        rows = zip(content.methods, *content.differences.values(), strict=True)
        table = plain_table("Options that differ", ["method", *content.differences], rows, kind="mono")
        differing = f"<h2>What differs between the configurations</h2>{table}"
    title = "All options" if content.table is None else "Options that all have in common"
    common = plain_table(title, ["option", "value"], content.options.items(), kind="mono")
    return f"""<section id="options">{differing}
<details><summary>{title}</summary>{common}</details></section>"""
