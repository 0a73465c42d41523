"""The commands as a person types them, in a directory of their own and without a server."""

import errno
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from eagle_eye import __version__, config
from eagle_eye.app.cli import OTHER_NAMES, main
from eagle_eye.app.launcher_process import launcher_settings
from eagle_eye.app.launcher_registry import FOLDER, LauncherEntry, registered, remove_leftovers, run_dirs
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config
from eagle_eye.training.ring_buffer import start_time_of
from eagle_eye.types import SCHEMA

Cli = Callable[..., Result]
JOB = "team/gpt/7"


# --- version, help ---------------------------------------------------------------------------------------------------


def test_the_version_of_program_and_records(cli: Cli) -> None:
    assert cli("version").output == f"eagle-eye {__version__} (records of schema {SCHEMA})\n"


def test_the_help_lists_every_command_and_each_shows_an_example(cli: Cli) -> None:
    listed = cli("--help").output
    names = main.list_commands(None)
    assert {"server", "agent", "launch", "run", "demo", "drill", "incidents", "approve", "refuse", "replay", "doctor"} <= set(names)
    for name in set(names) - {"version", "config"}:
        assert name in listed
        helped = cli(name, "--help")
        assert helped.exit_code == 0
        assert f"eagle-eye {name}" in helped.output.partition("Example")[2], name


def test_the_help_shows_what_each_command_says_of_itself_without_importing_it(cli: Cli) -> None:
    listed = " ".join(cli("--help").output.split())
    for name in main.list_commands(None):
        assert f" {name} {main.get_command(None, name).short_help}" in listed, name
    code = "import sys; from eagle_eye.app.cli import main; main(['--help'], standalone_mode=False); print([name for name in sys.modules if 'app.commands.' in name])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.endswith("\n[]\n")


@pytest.mark.parametrize(("typed", "suggested"), [("incident", " Did you mean incidents?"), ("sever", " Did you mean server?"), ("qqq", "")])
def test_an_unknown_command_is_named_with_those_that_are_like_it(cli: Cli, typed: str, suggested: str) -> None:
    result = cli(typed)
    assert result.exit_code == 2
    assert result.output.endswith(f"No such command '{typed}'.{suggested}\n")


def test_a_command_that_people_know_under_another_name_is_found_under_both(cli: Cli) -> None:
    for other, name in OTHER_NAMES.items():
        assert other not in main.list_commands(None)
        assert cli(other, "--help").output.partition("\n")[2] == cli(name, "--help").output.partition("\n")[2]


@pytest.mark.parametrize("words", [("server",), ("agent",), ("run", "--", "true"), ("launch", "--", "true")])
def test_a_state_directory_that_cannot_be_used_is_one_line_with_its_remedy(cli: Cli, words: tuple[str, ...]) -> None:
    Path("file").write_text("")
    result = cli(words[0], "--state-dir", "file/state", "--run-dir", "run", *words[1:])
    assert result.exit_code == 1
    assert re.fullmatch(r"Error: \S+/file/state cannot be made \(\S+/file: File exists\)\. .* --state-dir\.\n", result.output)


def test_a_file_that_cannot_be_used_is_one_line_and_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: OSError) -> Result:
        @click.command()
        def command() -> None:
            raise error

        monkeypatch.setattr(main, "get_command", lambda *_: command)
        return CliRunner().invoke(main, ["incidents"])

    assert fails(PermissionError(errno.EACCES, "Permission denied", "/state/x")).output.startswith("Error: /state/x: Permission denied. Run the command as the user")
    assert fails(OSError(errno.ENOSPC, "No space left on device", "/state/x")).output.endswith("Free some space there, or name another directory with --state-dir.\n")
    assert isinstance(fails(FileNotFoundError(errno.ENOENT, "No such file", "/x")).exception, FileNotFoundError)


@pytest.mark.parametrize("words", [("server", "--http"), ("server", "--listen"), ("launch", "--rdzv"), ("launch", "--listen"), ("agent", "--server")])
def test_an_address_is_checked_before_anything_starts(cli: Cli, words: tuple[str, str]) -> None:
    command, option = words
    for address, problem in (("head", "write it as host:port"), ("head:99999", "the highest port is 65535")):
        result = cli(command, option, address, "true")
        assert result.exit_code == 2
        assert f"Invalid value for '{option}': '{address}' is no address: {problem}" in " ".join(result.output.split())


# --- config ------------------------------------------------------------------------------------------------------------


def test_what_init_prints_is_fine_and_the_same_deployment_as_no_file(cli: Cli) -> None:
    written = cli("config", "init").output
    Path("eagle-eye.toml").write_text(written)
    checked = cli("config", "check")
    assert checked.exit_code == 0, checked.output
    assert "eagle-eye.toml is fine" in checked.output
    assert "mode observe" in checked.output
    loaded = config.load("eagle-eye.toml")
    assert (loaded.server, loaded.stream, loaded.agent) == (config.Config().server, config.Config().stream, config.Config().agent)
    assert all(not line or line.startswith(("#", "[")) or " = " in line for line in written.splitlines())


def test_the_tables_of_the_chapters_may_be_added_to_what_init_prints(cli: Cli) -> None:
    tables = "[[actions.notify.receivers]]\nkind = 'slack'\nurl = 'http://127.0.0.1:9/'\n[[topology.nodes]]\nhosts = 'rack-1-*'\nswitch = 'leaf-1'\n"
    Path("eagle-eye.toml").write_text(cli("config", "init").output + tables)
    checked = cli("config", "check")
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize(
    ("text", "named", "remedy"),
    [
        ("[server]\nlease_s = 'long'", "server.lease_s is 'long'", "config init"),
        ("[server]\nlistn = '127.0.0.1:1'", "no key 'listn' in [server] (did you mean 'listen'?)", "config init"),
        ("[stream]\npartitions = 0", "stream.partitions is 0", "Expected `int` >= 1"),
        ("[stall]\npatience_s = 0", "stall.patience_s is 0", "Expected `float` > 0"),
        ("[[topology.nodes]]\nhosts = 'node[1-'\nswitch = 'leaf-1'", "topology.nodes.hosts: 'node[1-' has a bracket that is not closed", "write it as node[01-16,20]"),
        ("[[topology.nodes]]\nhosts = 'node[1-4]'", "hosts = 'node[1-4]' says nothing of them", "add switch, rack, zone or rails"),
        ("[[topology.nodes]]\nswitch = 'leaf-1'", "missing required field `hosts`", "config init"),
        ("[engine.switches]\n'rack-1-*' = 'leaf-1'", "no option 'switches'", "it accepts"),
        ("[detectors.stall]\nlate_tick = 1", "[detectors.stall]", "it accepts: data_patience_s"),
        ("[detectors.stall]\ndata_patience_s = 'long'", "option 'data_patience_s'", "it accepts float, e.g. 10.0"),
        ("[detectors.nonsense]\n", "no plugin 'nonsense'", 'your own is named "pkg.mod:Name"'),
        ("[collectors.host]\ninterval = 1", "[collectors.host]", "it accepts"),
        ("[guards.blast_radius]\nshare = 'all'", "option 'share'", "it accepts float"),
        ("[actions.notify]\nurl = 7", "[actions.notify]", "it accepts"),
        ("[[actions.notify.receivers]]\nkind = 'slak'\nurl = 'http://x/'", "option 'receivers[0]' of remediation.actions.notify:Notify: kind is 'slak'", "there are: "),
        ("[engine]\nmode = 'bold'", "option 'mode'", "it accepts"),
        ("[engine\n", "not valid TOML", "config init"),
    ],
)
def test_a_wrong_configuration_names_the_key_and_the_remedy(cli: Cli, text: str, named: str, remedy: str) -> None:
    Path("mine.toml").write_text(text)
    result = cli("config", "check", "mine.toml")
    assert result.exit_code == 1
    assert result.output.startswith("Error: mine.toml: ")
    assert named in result.output
    assert remedy in result.output
    assert result.output.count("\n") == 1, "one line"


def test_a_server_refuses_what_check_refuses(cli: Cli, tmp_path: Path) -> None:
    Path("mine.toml").write_text("[detectors.stall]\nstal_s = 1")
    result = cli("server", "--config", "mine.toml", "--state-dir", "state")
    assert result.exit_code == 1
    assert "[detectors.stall]" in result.output
    assert not Path("state").exists(), "nothing was begun"


def test_a_configuration_that_is_not_there_says_how_to_make_one(cli: Cli) -> None:
    result = cli("incidents", "--config", "none.toml")
    assert result.exit_code == 1
    assert "none.toml" in result.output
    assert "eagle-eye config init > none.toml" in result.output


# --- server ------------------------------------------------------------------------------------------------------------


def test_a_server_whose_port_is_taken_names_it_and_the_remedy(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = cli("server", "--state-dir", "state", "--listen", address, "--http", "")
    assert result.exit_code == 1
    (line,) = [line for line in result.output.splitlines() if line.startswith("Error")]
    assert f"cannot listen on {address}: it is in use" in line
    assert "choose another port" in line


@pytest.mark.parametrize("word", ["approve", "refuse", "release"])
def test_a_word_to_a_server_that_is_not_there_says_so(cli: Cli, word: str) -> None:
    with socket.socket() as free:  # bound, but nobody listens
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        result = cli(word, "4f1c9a02", "--server", address)
    assert result.exit_code == 1
    assert address in result.output


# --- doctor, replay, drill, demo, launch -----------------------------------------------------------------------------------


def test_the_doctor_tries_everything_and_says_what_to_do(cli: Cli) -> None:
    result = cli("doctor", "--json", "--state-dir", "state", "--run-dir", "run")
    checks = {check["name"]: check for check in map(json.loads, result.output.splitlines())}
    assert result.exit_code == 0
    assert checks["embedded stream"]["works"]
    assert all(check["remedy"] for check in checks.values() if not check["works"])
    assert "embedded stream" in cli("doctor", "--state-dir", "state", "--run-dir", "run").output


def test_the_doctor_fails_where_nothing_can_be_written(cli: Cli) -> None:
    Path("file").write_text("")
    result = cli("doctor", "--json", "--state-dir", "file/state", "--run-dir", "run")
    check = next(check for check in map(json.loads, result.output.splitlines()) if check["name"] == "state directory")
    assert result.exit_code == 1
    assert not check["works"]
    assert "--state-dir" in check["remedy"]


def test_a_replay_of_nothing_is_refused(cli: Cli) -> None:
    for words in (("replay", "--state-dir", "nowhere"), ("replay", "none.records")):
        result = cli(*words)
        assert result.exit_code == 1
        assert words[-1] in result.output


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """A runtime directory with one running worker: this very process, which a drill had better not hit."""
    run_dir = tmp_path / "run"
    (run_dir / "jobs").mkdir(parents=True)
    worker = {"worker": "7/node-a/0", "slot": 0, "rank": 0, "pid": os.getpid(), "start_time": start_time_of(os.getpid())}
    listing = {"version": 1, "job": JOB, "run": "7", "node": "node-a", "launcher_pid": os.getpid(), "workers": [worker], "state": "running"}
    (run_dir / "jobs" / "7.json").write_text(json.dumps(listing))
    return run_dir


@pytest.mark.parametrize("kind", ["kill", "stop", "hang", "node", "slow-node", "stream"])
def test_a_drill_says_what_it_will_do_and_does_nothing_without_a_yes(cli: Cli, listed: Path, kind: str) -> None:
    result = cli("drill", kind, "--run-dir", str(listed), "--state-dir", "state", typed="n\n")
    assert result.exit_code == 1
    assert result.output.startswith("This will ")
    assert "Really? [y/N]: n\nAborted!" in result.output


def test_a_drill_on_nobody_is_refused(cli: Cli, listed: Path) -> None:
    for words, said in ((("--job", "team/other/1"), "no running worker of team/other/1"), (("--rank", "5"), "no worker of rank 5")):
        result = cli("drill", "kill", "--run-dir", str(listed), "--yes", *words)
        assert result.exit_code == 1
        assert said in result.output


def test_a_drill_finds_a_job_by_the_note_of_its_launcher(cli: Cli, listed: Path) -> None:
    home = Path("state").absolute()
    Path("eagle-eye.toml").write_text('run_dir = "nothing-runs-here"\n')
    with registered(home, JOB, "node-a", listed):
        for words in ((), ("--job", JOB), ("--job", "team/gpt"), ("--job", "gpt"), ("--job", "7")):
            found = cli("drill", "kill", "--state-dir", "state", *words, typed="n\n")
            assert found.output.startswith(f"This will kill -9 one worker: rank 0, 7/node-a/0, pid {os.getpid()}"), words
        elsewhere = cli("drill", "kill", "--state-dir", "state", "--run-dir", "elsewhere", typed="n\n")
        assert "no worker of any job runs here" in elsewhere.output, "who names a run directory means that one"
        unknown = cli("drill", "kill", "--state-dir", "state", "--job", "gtp")
        assert f"no running worker of gtp; here run {JOB}, 1 worker: name one with --job" in unknown.output
    assert "no worker of any job runs here" in cli("drill", "kill", "--state-dir", "state", "--yes").output


def test_the_note_of_a_launcher_that_was_killed_counts_no_more_and_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    recycled = LauncherEntry(job=JOB, node="node-a", run_dir="/gone", pid=os.getpid(), start_time=start_time_of(os.getpid()) - 1)
    noted_down = tmp_path / FOLDER / "7-node-a-1.json"
    noted_down.write_bytes(msgspec.json.encode(recycled))
    (tmp_path / FOLDER / "torn.json").write_text("{")
    with registered(tmp_path, JOB, "node-b", tmp_path / "run"), registered(tmp_path, "team/other/8", "node-b", tmp_path / "run"):
        assert run_dirs(tmp_path) == [tmp_path / "run"]
        remove_leftovers(tmp_path, tmp_path / "run", "node-b", FakeClock())
        assert not noted_down.exists()
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["torn.json"]


@pytest.mark.parametrize("kind", ["kill", "slow-node"])
def test_a_drill_among_the_jobs_of_two_tenants_asks_which(cli: Cli, listed: Path, kind: str) -> None:
    """Their runs have the same id, and so have their workers."""
    other = json.loads((listed / "jobs" / "7.json").read_text()) | {"job": "rival/gpt/7"}
    (listed / "jobs" / "rival.json").write_text(json.dumps(other))
    result = cli("drill", kind, "--run-dir", str(listed), typed="n\n")
    assert result.exit_code == 1
    assert f"several jobs run here (rival/gpt/7, {JOB}): name one with --job" in result.output
    named = cli("drill", kind, "--run-dir", str(listed), "--job", JOB, typed="n\n")
    assert named.output.startswith("This will ")


def test_an_unknown_drill_or_fault_names_those_that_there_are(cli: Cli) -> None:
    drill = cli("drill", "nonsense")
    assert drill.exit_code == 2
    assert "'slow-node'" in drill.output
    demo = cli("demo", "--only", "nonsense")
    assert demo.exit_code == 1
    assert "unknown fault: nonsense" in demo.output
    assert "slow-node" in demo.output


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--nnodes", "two"), "--nnodes 'two'"),
        (("--nnodes", "4:2"), "--nnodes 4:2"),
        (("--job", "gpt"), "--job 'gpt'"),
        (("--nproc-per-node", "0"), "--nproc-per-node 0"),
        (("--heal", "always"), "--heal"),
    ],
)
def test_a_launch_that_cannot_be_names_the_option(cli: Cli, options: tuple[str, str], named: str) -> None:
    result = cli("launch", "--no-server", "--state-dir", "state", "--run-dir", "run", *options, "--", "python", "train.py")
    assert result.exit_code == 1
    assert named in result.output


def test_beside_torch_what_was_named_is_imported_before_the_workers_and_nothing_if_told_so(tmp_path: Path) -> None:
    given = Config(state_dir=str(tmp_path / "state"), run_dir=str(tmp_path / "run"))

    def preloaded(words: str) -> tuple[str, ...]:
        settings = launcher_settings(given, ["train.py"], job="team/gpt", run_id="1", nproc_per_node=1, heal="", checkpoint_dir="", preload=words)
        return settings.preload

    assert "torch" in preloaded("")
    assert preloaded("transformers, my.model") == (*preloaded(""), "transformers", "my.model")
    assert preloaded("none") == ()
