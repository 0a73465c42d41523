"""Files that commands are given: what is no text, or no file, is refused with its name and the remedy; no command waits, and none ends in a traceback."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from detectors.rules.pack import load as load_pack
from eagle_eye import config
from eagle_eye.app.cli import main
from eagle_eye.errors import ConfigError
from eagle_eye.text_file import read_bytes, read_text
from remediation.planner.performance.measured_throughput import read_csv
from remediation.planner.performance.profiled_throughput import read_profile

READERS = (["plan"], ["config", "check"], ["rules", "check"], ["rules", "test"], ["explain"], ["simulate", "--trace"], ["simulate", "--tasks"])
OF_TOML = READERS[:4] + READERS[6:]
MEASURED = "task,gpus,flops\na,8,1e15\n"


def ask(*words: str) -> Result:
    done = CliRunner().invoke(main, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), f"{done.exception!r} at {words}"
    return done


def in_words(done: Result) -> str:
    """On one line."""
    return "".join(done.output.split())


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_a_fifo_is_refused_at_once(command: list[str], tmp_path: Path) -> None:
    """Whoever waits for its writer waits without end."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    saver = threading.Timer(10.0, lambda: fifo.write_text(""))  # a reader that waits fails, and does not hang the tests
    saver.daemon = True
    saver.start()
    done = ask(*command, str(fifo))
    ended, _ = saver.is_alive(), saver.cancel()
    saver.join()
    assert ended, "it has waited"
    assert done.exit_code != 0
    assert "itisnoregularfile:saveitinafilefirst" in in_words(done)


@pytest.mark.parametrize("command", READERS, ids=" ".join)
@pytest.mark.parametrize("odd", ["/dev/zero", "/tmp"])
def test_a_device_and_a_directory_are_refused(command: list[str], odd: str) -> None:
    done = ask(*command, odd)
    assert done.exit_code != 0
    assert odd in in_words(done)


@pytest.mark.parametrize("command", OF_TOML, ids=" ".join)
@pytest.mark.parametrize("content", [b"a = " + b"[" * 200_000, b"a = " + b"9" * 20_000, b"a = 1\nb = \xff\n", b"\0"], ids=["brackets", "digits", "no UTF-8", "NUL"])
def test_what_is_no_toml_is_a_message(command: list[str], content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "odd.toml"
    file.write_bytes(content)
    done = ask(*command, str(file))
    assert done.exit_code != 0
    assert "odd.toml" in in_words(done)


@pytest.mark.parametrize("content", ["timestamp_s,event,node_id\n0,joined," + "a" * 200_000, 'timestamp_s,event,node_id\n0,joined,"' + "a" * 200_000, "x" * 200_000])
def test_what_is_no_trace_is_a_message(content: str, tmp_path: Path) -> None:
    file = tmp_path / "odd.csv"
    file.write_text(content)
    done = ask("simulate", "--trace", str(file))
    assert done.exit_code == 1
    assert "odd.csv,line" in in_words(done)
    assert len(done.output) < 2000, "it does not repeat what it was given"


def test_files_that_a_cluster_file_names_are_read_alike(tmp_path: Path) -> None:
    fifo, odd = tmp_path / "fifo", tmp_path / "odd"
    os.mkfifo(fifo)
    for read in (read_csv, read_profile):
        with pytest.raises(ConfigError, match="it is no regular file"):
            read(fifo)
    odd.write_text(MEASURED + "b,8," + "1" * 200_000)
    with pytest.raises(ConfigError, match=r"odd, line 3: field larger than field limit"):
        read_csv(odd)
    odd.write_text("[" * 200_000)
    with pytest.raises(ConfigError, match="no profile"):
        read_profile(odd)
    odd.write_text(MEASURED)
    assert [each.task for each in read_csv(odd)] == ["a"], "the twin"


def test_text_that_is_no_utf_8_is_named_with_its_byte(tmp_path: Path) -> None:
    file = tmp_path / "latin"
    file.write_bytes(b"x" * 20_000 + b"caf\xe9\n")
    with pytest.raises(OSError, match="byte 20003 is no UTF-8"):
        read_text(file)
    with pytest.raises(ConfigError, match=r"latin: byte 20003 is no UTF-8 .* Start from `eagle-eye config init`"):
        config.load(file)


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"a\r\nb")
    assert (read_bytes(file, 4), read_text(file, 4)) == (b"a\r\nb", "a\nb")
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_bytes(file, 3)


def test_twin_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    """As those of a ConfigMap of Kubernetes are."""
    (tmp_path / "file").write_text("[agent]\nidle = true\n")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert config.load(tmp_path / "link").agent.idle


@pytest.mark.parametrize("how", ["python -c CODE /dev/stdin < {file}", "cat {file} | python -c CODE /dev/stdin", "python -c CODE <(cat {file})", "python -c CODE /proc/self/fd/0 < {file}"])
def test_twin_a_descriptor_that_the_shell_has_opened_is_read(how: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("[agent]\nidle = true\n")
    code = "import sys; from eagle_eye import config; print(config.load(sys.argv[1]).agent.idle)"
    shell = how.replace("python", sys.executable).replace("CODE", f"'{code}'").format(file=file)
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "True\n", done.stderr


def test_twin_a_pack_of_a_site_is_read(tmp_path: Path) -> None:
    pack = tmp_path / "pack.toml"
    pack.write_text("[[rule]]\nname = 'x'\n")
    [problem] = load_pack(pack).problems[:1]
    assert "cannot be read" not in problem.text, "it says what is wrong in it"
