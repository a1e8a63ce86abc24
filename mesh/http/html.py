"""Small HTML pages for people who open an address of the mesh in a browser. Pure.

All texts are escaped, and a page may load and run nothing: no script, no image.
"""

import hashlib
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from starlette.responses import HTMLResponse

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; }
dd { margin: 0; overflow-wrap: anywhere; }
li { overflow-wrap: anywhere; }
.aside { opacity: .7; }
""".strip()
_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"style-src 'sha256-{b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {"Cache-Control": "no-store", "Vary": "Accept"}
"""The headers of a response that is a page for browsers and JSON for other clients."""
_MOST_SHOWN = 200


@dataclass(frozen=True)
class Section:
    """A part of a page. ``links`` are (name, address, a text beside it)."""

    title: str
    links: tuple[tuple[str, str, str], ...] = ()
    text: str = ""


def page(title: str, about: str, sections: Iterable[Section]) -> HTMLResponse:
    """The page."""
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_shown(title)}</title><style>{_STYLE}</style>",
        f'<h1>{_shown(title)}</h1><p class="aside">{_shown(about)}</p>',
        *map(_section, sections),
    ]
    headers = {
        **HEADERS,
        "Content-Security-Policy": _POLICY,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse("\n".join(parts) + "\n</html>\n", headers=headers)


def prefers_html(accept: str) -> bool:
    """Whether an ``Accept`` header is one of a browser: HTML is named, and JSON is not wanted more."""
    wanted = {"text/html": 0.0, "application/json": 0.0}
    for item in accept.lower().split(","):
        kind, _, parameters = item.partition(";")
        if kind.strip() in wanted:
            wanted[kind.strip()] = _quality(parameters)
    return wanted["text/html"] > wanted["application/json"]


def _quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0


def _section(section: Section) -> str:
    text = f"<p>{_shown(section.text)}</p>" if section.text else ""
    rows = "".join(
        f"<dt>{_link(name, address)}</dt><dd>{_shown(more)}</dd>" for name, address, more in section.links
    )
    return f"<h2>{_shown(section.title)}</h2>{text}" + (f"<dl>{rows}</dl>" if rows else "")


def _link(name: str, address: str) -> str:
    return f'<a href="{escape(address)}" rel="noreferrer">{_shown(name)}</a>'


def _shown(text: str) -> str:
    """A text in one line, short, without characters that a terminal or a browser would act on."""
    line = " ".join(text.split())
    line = line if len(line) <= _MOST_SHOWN else line[: _MOST_SHOWN - 1] + "…"
    return escape("".join(each for each in line if each.isprintable()))
