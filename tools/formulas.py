"""Formulas of the docstrings, written with Unicode, as TeX for the site: `w_k = softmax_k(s_k / T)     Eq. 4`.

Four or more spaces set a remark apart, two or three a second formula on the same line.
"""

import re
import unicodedata

SYMBOLS = {
    **{
        "·": r"\cdot ",
        "←": r"\leftarrow ",
        "∝": r"\propto ",
        "~": r"\sim ",
        "−": "-",
        "‖": r"\Vert ",
        "…": r"\dots ",
    },
    **{
        "⌈": r"\lceil ",
        "⌉": r"\rceil ",
        "∇": r"\nabla ",
        "∂": r"\partial ",
        "∈": r"\in ",
        "≤": r"\le ",
        "≥": r"\ge ",
    },
    **{
        "≲": r"\lesssim ",
        "→": r"\to ",
        "×": r"\times ",
        "≈": r"\approx ",
        "√": r"\surd ",
        "⟨": r"\langle ",
        "⟩": r"\rangle ",
        "∞": r"\infty ",
    },
    **{
        "⁺": "^+",
        "²": "^2",
        "⁻¹": "^{-1}",
        "ᵀ": r"^\top ",
        "₀": "_0",
        "₁": "_1",
        "₂": "_2",
        "%": r"\%",
        "#": r"\#",
    },
}
MARKS = {"\u0303": "tilde", "\u0304": "bar", "\u0302": "hat"}
TOKEN = re.compile(
    r"(?P<code>`[^`]+`)"
    r"|(?P<word>[A-Za-z]{2,}(?:_[A-Za-z0-9]{2,}|_(?![\w{]))?(?:['’-][A-Za-z]+)*)(?:_(?P<of>\w|\{[^}]*\}))?"
    r"|(?P<article>\ba(?= [a-z]{2,}))"
    r"|(?P<sum>Σ)(?=_\w+ [^,=)]|_\{[^}]*\} | \w)"
    r"|(?P<letter>[^\W\d_])(?P<mark>[\u0303\u0304\u0302])?(?P<prime>'(?!s\b))?(?:_(?P<below>\{[^}]*\}|\w+))?"
    r"|(?P<apostrophe>'s?)"
    r"|\^(?P<power>\([^()]*\)|\w+)"
    r"|(?P<two>⁻¹)"
    r"|(?P<space> +)"
    r"|(?P<other>.)",
)
MATHEMATICAL = re.compile(r"[Σ←‖∝∂∇⁺√~]|[αβγΔημλπνσ][_ ]| [=] ")
PROGRAM = re.compile(r"^\s*(?:fedwcm|python|pip|import|from|def|class|make|git|\$|#|\|)|\"|->|\w\(\w*=|--")
RELATION = re.compile(r" ([=←∝~]) ")


def set_formulas(markdown: str) -> str:
    """Return a page with its indented blocks of formulas as blocks of TeX."""
    return re.sub(r"(?<=\n\n)(    \S.*\n(?:    +\S.*\n)*)(?=\n|\Z)", _block, markdown)


def _block(found: re.Match[str]) -> str:
    lines = [line[4:] for line in re.sub(r"\n {8,}", " ", found[1]).splitlines()]
    if any(PROGRAM.search(re.sub("`[^`]*`", "", line)) for line in lines) or not all(
        MATHEMATICAL.search(line) for line in lines
    ):
        return found[1]
    sizes = [[len(part) for part in re.split(r" {4,}", _tidy(line), maxsplit=1)] for line in lines]
    beside = max(size[0] for size in sizes) + max(sum(size[1:]) for size in sizes) <= LONGEST
    rows = " \\\\\n".join(row for line in lines for row in _rows(_tidy(line), beside))
    return f"```math\n\\begin{{aligned}}\n{rows}\n\\end{{aligned}}\n```\n"


def _tidy(line: str) -> str:
    return re.sub(r" {2,}(?=[=←∝~] )", " ", line.rstrip())


def _rows(line: str, beside: bool) -> list[str]:
    """Return a formula aligned at its relation, and its remark beside or below it."""
    formula, *remarks = re.split(r" {4,}", line)
    remark = "; ".join(remarks)
    parts = [tex(part) for part in re.split(r" {2,3}", formula)]
    left, relation, right = _split(re.split(r" {2,3}", formula)[0])
    parts[0] = f"{tex(left)} &{SYMBOLS.get(relation, relation)} {tex(right)}" if relation else f"&{parts[0]}"
    row = r"\quad ".join(parts)
    if not remark:
        return [row]
    if beside:
        return [rf"{row} &&\quad {tex(remark)}"]
    return [rf"{row}\quad ({tex(remark)})"] if len(remark) < SHORT else [row, rf"&\quad {tex(remark)}"]


LONGEST, SHORT = 80, 9
"""Characters of the longest formula and remark of a block whose remarks stand beside them; those of a number."""


def _split(formula: str) -> tuple[str, str, str]:
    found = RELATION.search(formula)
    return (formula[: found.start()], found[1], formula[found.end() :]) if found else (formula, "", "")


def tex(text: str) -> str:
    """Return text with formulas in Unicode as TeX; words become upright text."""
    joined = "".join(_token(found) for found in TOKEN.finditer(unicodedata.normalize("NFD", text)))
    joined = re.sub(r"(?<=\\text\{)([^{}]*)\}((?:\\ \\text\{[^{}]*\})+)", _merge, joined)
    return AROUND.sub(r"\1", joined)


AROUND = re.compile(r"(?:\\ )?([-+=/]|\\(?:cdot|leftarrow|sim|propto) )(?:\\ )?")
"""Relations and operators bring their own space."""


def _merge(found: re.Match[str]) -> str:
    """Return words beside each other as one text."""
    return " ".join([found[1], *re.findall(r"\\text\{([^{}]*)\}", found[2])]) + "}"


def _token(found: re.Match[str]) -> str:
    kind = found.lastgroup
    if found["code"]:
        return rf"\texttt{{{_escape(found['code'][1:-1])}}}"
    if found["word"]:
        below = f"_{{{tex(found['of'].strip('{}'))}}}" if found["of"] else ""
        return rf"\text{{{_escape(found['word'].rstrip('_'))}}}{below}"
    if found["article"]:
        return r"\text{a}"
    if found["apostrophe"]:
        return rf"\text{{{found[0]}}}"
    if found["sum"]:
        return r"\sum "
    if found["letter"]:
        return _letter(found)
    if found["power"]:
        return f"^{{{tex(found['power'].strip('()'))}}}"
    if kind == "space":
        return r"\ "
    return SYMBOLS.get(found[0], found[0])


def _letter(found: re.Match[str]) -> str:
    letter = SYMBOLS.get(found["letter"], found["letter"])
    if found["mark"]:
        letter = rf"\{MARKS[found['mark']]}{{{letter}}}"
    below = found["below"]
    if not below:
        return letter + (found["prime"] or "")
    inside = below.strip("{}")
    is_word = below.isascii() and below.isalpha()
    lower = tex(inside) if not is_word else inside if len(below) < 3 else rf"\text{{{inside}}}"
    return f"{letter}{found['prime'] or ''}_{{{lower}}}"


def _escape(text: str) -> str:
    return text.replace("_", r"\_").replace("’", "'").replace("#", r"\#").replace("%", r"\%")
