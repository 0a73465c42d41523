"""The prefix of a line of a job's output: of the container's log, of who prints for several ranks, and a progress bar before it.

>>> unprefixed("2025-11-30T10:00:00.123Z stderr F [rank3]: ValueError: no")
OutputLine(source='3', rank='3', text='ValueError: no')
>>> unprefixed("(RayTrainWorker pid=12, ip=10.0.0.1)     main()").text
'    main()'
>>> unprefixed("worker-0: Traceback (most recent call last):").source
'worker-0: '
"""

import json
import re
from collections.abc import Collection
from typing import NamedTuple

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CONTAINER = re.compile(r"\A(?:\d{4}-\d\d-\d\dT[\d:.]{8,24}(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] |\[pod/[^\]\s]{1,300}\] )")
"""containerd's (CRI), and that of `kubectl logs --prefix`: of one container, so it tells no lines apart."""
_ACTOR = re.compile(r"\A\([^()\s]{1,100} (?:pid|rank)=\d{1,9}(?:, (?:ip|rank|pid)=[^()\s,]{1,50}){0,2}\) ?")
"""Ray's."""
_HOST = re.compile(r"\A([A-Za-z][\w.-]{0,100}: )(?=(?:\[(?:rank|default)?\d+\]: ?)?(?:Traceback \(most recent call last\)|  \+ Exception Group Traceback ))")
"""pdsh's, which DeepSpeed uses. Any word before a colon looks like it, so it is one only where a traceback begins behind it."""
_HOST_ERROR = re.compile(r"\A([a-z](?=[\w.-]{0,100}\d)[\w.-]{0,100}: )(?=[A-Za-z_][\w.]{0,100}(?:Error|Exception): )")
_LOGGER_WORDS = ("error", "critical", "fatal", "warning", "exception", "stderr", "stdout")
_RANK = re.compile(r"\A\s{0,3}(?:\[rank(\d+)\]:\s?|(\d{1,6}): |(?:\[(?:default)?(\d+)\]:|\[\d{1,9},(\d{1,9})\]<std(?:out|err|diag)>:)(?: (?! ))?)")
"""torch's `[rank3]: `, torchrun's `[default3]:`, srun's `3: `, mpirun's `[1,3]<stderr>:`."""
_BAR = re.compile(r"\A[^|]{0,200}\d%\|[^|]{0,400}\|\s{0,3}[\d.]{1,20}[kMGT]?i?B?/[\d.]{1,20}[kMGT]?i?B?(?:\s?\[[^\]]{0,600}\])?")
"""tqdm's, which whatever is printed next follows without an end of line."""


class OutputLine(NamedTuple):
    """One line without its prefix and colours."""

    source: str
    """Who printed it, told apart from others that print into the same log; '' = it is not said."""
    rank: str
    """'' = it is not said."""
    text: str


def unprefixed(line: str, hosts: Collection[str] = ()) -> OutputLine:
    """`hosts`: prefixes of hosts that are known to be ones, from a line before. A text without a known prefix stays as it is."""
    text = _without_container(_COLOURS.sub("", line).rstrip("\r\n"))
    host, rest = _host_of(without_bar(text) or text, hosts)
    found = _RANK.match(rest)
    if found is None:
        return OutputLine(host, "", rest)
    rank = found[found.lastindex or 0]
    return OutputLine(host + rank, rank, rest[found.end() :])


def without_bar(text: str) -> str:
    """What follows a progress bar; the text as it is where there is none. '' = a bar alone."""
    bar = _BAR.match(text) if "%|" in text else None
    return text[bar.end() :].strip() if bar else text


def host_before(line: OutputLine) -> str:
    """The prefix of a host in `source`, to recognise the host's next lines by; '' = it has none."""
    return line.source[: len(line.source) - len(line.rank)] if line.rank else line.source


def _without_container(text: str) -> str:
    if text.startswith('{"log":"') and (inner := _docker(text)) is not None:
        return inner
    found = _CONTAINER.match(text)
    return text[found.end() :] if found else text


def _docker(text: str) -> str | None:
    """Docker's json-file driver."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    inner = record.get("log") if isinstance(record, dict) else None
    return _COLOURS.sub("", inner).rstrip("\r\n") if isinstance(inner, str) else None


def _host_of(text: str, hosts: Collection[str]) -> tuple[str, str]:
    for host in hosts:
        if text.startswith(host):
            return host, text[len(host) :]
    found = _ACTOR.match(text) or _HOST.match(text) or _HOST_ERROR.match(text)
    if found is None or (found.re is not _ACTOR and found[1].rstrip(": ").lower().endswith(_LOGGER_WORDS)):
        return "", text
    return found[0], text[found.end() :]
