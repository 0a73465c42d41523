"""Takes secrets out of text before it leaves the node: a short list of what a secret looks like.

A name is looked at once, from the beginning of its word, and no pattern goes back over what it has read, so the time grows with
the length of the text alone: a line of the letters that a pattern begins with costs what any other line costs.
"""

import re
from pathlib import Path

HIDDEN = "[redacted]"

_WORD = r"(?<![\w-])"
"""Only here a name begins: from each character of a long word it would take seconds."""
_STRONG = (
    r"(?:password|passwd|passphrase|secret|credential|(?:api|access|private|storage|account|encryption|signing|master|auth|wandb|comet|ngc)[_-]?key"
    r"|(?:smtp|db|mysql|redis|mail)[_-]?(?:pass|pwd)(?![\w-])|authorization(?![\w-]))"
)
"""What such a name says is always hidden."""
_SUFFIXES = "ids?|idx|index|indices|type|types|count|len|length|limit|budget|rate|size|embed[a-z]*|weights?|mask|pos|position|name"
_INNOCENT_KEYS = (
    "cache", "primary", "foreign", "sort", "state", "dict", "metric", "public", "partition", "group", "missing", "unexpected", "lookup", "index", "layer", "param", "query",
)  # fmt: skip
_WEAK = (
    rf"(?:token(?![a-z]|[_-](?:{_SUFFIXES})(?![a-z]))|(?:api|auth|access|refresh|bearer)[_-]?tokens(?![\w-])"
    rf"|{''.join(f'(?<!{word})' for word in _INNOCENT_KEYS)}(?:[_-]key|(?-i:[a-z]Key))(?![\w-])"
    r"|(?:pwd|(?<!ward)[_-]pass|(?<![a-z])o?auth|cookie|(?<![a-z])sig|signature)(?![\w-]))"
)
"""What such a name says is hidden unless it is a number, a piece of code or a path: `pad_token_id=0`, `token_ids = batch[…`, `PWD=/root`."""
_END = r"(?=[\s,;'\"&)\]}\\]|\Z)"
_KEPT = (
    rf"(?:[-+]?\d{{1,15}}(?:[.]\d{{1,15}})?(?:e[-+]?\d{{1,4}})?%?{_END}|(?:none|null|true|false|nan|inf|redacted|sig[a-z]{{3,6}}\d?){_END}"
    rf"|<[^<>\s]{{0,40}}>|[\[({{]|[a-z_]\w{{0,60}}+(?:\.[a-z_]\w{{0,60}}+){{0,9}}+[\[(]|[a-z_]{{1,40}}(?:\.[a-z_]{{1,40}}){{1,9}}{_END}"
    rf"|[~.]{{0,2}}/(?-i:[a-z])[a-z-]{{0,20}}(?:/|{_END}))"
)
_OPENED = r"[bru]{0,2}\\{0,8}['\"]"
_QUOTED = r"[bru]{0,2}(?P<quote>\\{0,8}(?:\"\"\"|'''|\"|'))(?:(?!(?P=quote))(?:\\.|[^\\])){0,2000}+(?P=quote)"
_VALUE = rf"(?:{_QUOTED}|{_OPENED}[^\n]*+|[^\s,;'\"&]++)"
"""In quotes, also escaped ones; behind a quote that nothing closes the rest of the line; else a word."""
_SCHEME = r"(?:(?:bearer|basic|token|digest|apikey|negotiate)\s++)?"
_ASSIGNED = r"\\{0,8}['\"]?\s*+(?::\s*+(?:str|bytes|secretstr)\s*+=|=>|:=|[:=])(?!=)\s*+"
_LISTED = rf"\\{{0,8}}['\"]\s*+,\s*+(?={_OPENED})"
"""A tuple or an argument list as Python prints it: the value is the next text."""


def _named(names: str, separator: str, value: str) -> re.Pattern[str]:
    return re.compile(rf"(?is){_WORD}(?=[\w-]++{separator})(?=[\w-]*{names})([\w-]++{separator}){value}")


_SHOWN = rf"\1{HIDDEN}"
PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"(?m)^[ \t]*+(?=[^\n]*[G-Zg-z+/])(?:[A-Za-z0-9+/]{64}(?:[A-Za-z0-9+/]{6})?\r?\n[ \t]*+){2,}+[A-Za-z0-9+/=]*+"), f"{HIDDEN}\n"),
    (re.compile(r"(?i)\b((?:set-)?cookie\s*+:\s*+)[^\s'\"=]{1,100}=[^\n'\"]++"), _SHOWN),
    (re.compile(r"(?i)\b(authorization\s*+[:=]\s*+)(?!['\"])(?:[\w-]++[ \t]++)?[^\s'\"]++"), _SHOWN),
    (re.compile(r"(?i)\b(bearer|basic)\s++(?=[\w+/~.-]{0,40}(?:\d|=|(?-i:[a-z][A-Z])))[\w.+/=~-]{12,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"(://[^\s:/@'\"]*+):(?!\d{1,5}(?:[/?#,\s]|\Z))(?:(?!://)[^\s'\"<>])+@"), rf"\1:{HIDDEN}@"),
    (re.compile(r"(://)(?=[^\s:/@'\"]{0,100}\d)[^\s:/@'\"]{16,}+@"), rf"\1{HIDDEN}@"),
    (re.compile(r"(hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/)[\w/-]+"), _SHOWN),
    (_named(_STRONG, _ASSIGNED, _SCHEME + _VALUE), _SHOWN),
    (_named(_STRONG, _LISTED, _VALUE), _SHOWN),
    (_named(_WEAK, _ASSIGNED, rf"(?!(?:{_OPENED})?{_KEPT})(?!(?<=:\s)(?-i:[A-Z]?[a-z]{{1,20}})(?:[\s.,;]|\Z)){_VALUE}"), _SHOWN),
    (_named(_WEAK, _LISTED, rf"(?={_OPENED}[^\s'\"]{{0,200}}?\d)(?!{_OPENED}{_KEPT}){_VALUE}"), _SHOWN),
    (re.compile(rf"(?is){_WORD}(?=[\w-]++\s)(?=[\w-]*?--)(?=[\w-]*(?:{_STRONG}|{_WEAK}))([\w-]++\s++)(?!-|{_KEPT}){_VALUE}"), _SHOWN),
    (re.compile(r"(?i)(\blogin\s++\S++\s++(?:account\s++\S++\s++)?password\s++)\S++"), _SHOWN),
    (re.compile(r"(?i)(\b(?:wandb:?\s++login|wandb_api_key)\b[^\n]{0,200}?)\b[0-9a-f]{40}\b"), _SHOWN),
    (re.compile(r"(\b(?:(?:docker|podman|nerdctl|buildah|skopeo|oras|crane|registry)\s++login|sshpass)(?:[ \t]++(?!-p)\S++){0,20}+[ \t]++-p[ \t=]*+)\S++"), _SHOWN),
    (re.compile(r"(\b(?:mysql|mariadb)[\w-]*+(?:[ \t]++(?!-p)\S++){0,20}+[ \t]++-p)(?!thread\b)\S++"), _SHOWN),
    (re.compile(r"(\bcurl (?:-\S{1,40} ){0,8}(?:-u|--user)[ =][^\s:]{1,100}:)\S++"), _SHOWN),
    (re.compile(
        r"\b(?:(?:hf_|gh[pousr]_|AKIA|ASIA)[A-Za-z0-9]{12,}|npm_[A-Za-z0-9]{30,}|(?:github_pat_|[sr]k_(?:live|test)_|dop_v1_|wandb_v1_)\w{12,}|AIza[\w-]{20,}|dapi[0-9a-f]{32}"
        r"|(?:glpat-|nvapi-|xox[abeoprs]-|xapp-|ya29\.|eyJ)[\w.-]{12,})"
    ), HIDDEN),
    (re.compile(rf"{_WORD}sk-(?=[\w.-]{{0,80}}\d)[\w.-]{{12,}}"), HIDDEN),
)  # fmt: skip
_KEY_END = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY-----")
_KEY_LINE = re.compile(r"\s*(?:[A-Za-z0-9+/]+={0,2}|(?:Proc-Type|DEK-Info): .*)\s*")


def redact(text: str) -> str:
    """The text without what looks like a secret.

    >>> redact("login with --api-token abc, password='x y'")
    'login with --api-token [redacted], password=[redacted]'
    """
    for pattern, replacement in PATTERNS:
        text = pattern.sub(replacement, text)
    return _without_key_rest(text) if "-----END " in text else text


def last_lines(path: Path, lines: int = 20, longest: int = 16_384, since: int = 0) -> str:
    """The end of a log from byte `since` on, redacted; empty if there is none. At most `longest` bytes are read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = file.seek(max(since, size - longest))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    if start > since and "\n" in text.rstrip("\n"):  # half a line may be the half of a secret whose name is in the other
        text = text.partition("\n")[2]
    return "\n".join(redact(text).splitlines()[-lines:])


def _without_key_rest(text: str) -> str:
    """The lines of a private key whose beginning was cut away are known by its end alone."""
    kept: list[str] = []
    for line in text.splitlines(keepends=True):
        found = _KEY_END.search(line)
        if found is not None:
            while kept and _KEY_LINE.fullmatch(kept[-1]):
                kept.pop()
        kept.append(HIDDEN + line[found.end() :] if found is not None else line)
    return "".join(kept)
