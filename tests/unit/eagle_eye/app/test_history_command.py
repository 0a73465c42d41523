"""`eagle-eye history`."""

import base64
import csv
import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from eagle_eye import wire
from eagle_eye.app.cli import main
from eagle_eye.dead_letters import dead_letter
from eagle_eye.history.object_store import ObjectStore
from eagle_eye.history.partition_writer import PartitionWriter
from eagle_eye.stream import DEAD_LETTERS, OBSERVATIONS, Message
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import Batch, Block, Kind, Reading

T0 = 1_763_625_600.0
"""2025-11-20T08:00 UTC"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, ["history", *arguments, "--state-dir", "state"])


def record(tmp_path, entity="node-a", metric="cpu_percent"):
    schemas, messages = wire.Schemas(), []
    for second in range(31):
        reading = Reading(source="host", kind=Kind.NODE, entities=(entity,), names=(metric,), matrix=np.array([[second]], dtype=np.float32), time=T0 + second)
        schema = schemas.schema_of(reading)
        batch = Batch(node="node-a", incarnation="b", job="t/j/r", number=second, time=T0 + second, blocks=(Block(schema_id=schema.id, reading=reading),))
        for value in (wire.encode(schema), wire.encode(batch)):
            messages.append(Message(OBSERVATIONS, 0, len(messages), "t/j/r", value, T0 + second))
    PartitionWriter(ObjectStore.of(tmp_path / "state/history"), 0, file_s=30.0).take(messages)


def test_it_lists_metrics_and_entities(run) -> None:
    assert "node/host" in run("metrics").output
    assert "cpu_percent" in run("metrics", "node").output
    assert "node-a" in run("entities", "node", "--until", "2025-11-20T08:01", "--last", "5m").output


def test_numbers_go_to_the_terminal_and_into_files(run, tmp_path) -> None:
    window = ("--table", "node", "--since", "2025-11-20T08:00", "--until", "2025-11-20T08:01")
    shown = list(csv.DictReader(io.StringIO(run("export", "cpu_percent", *window, "--every", "10s").stdout)))
    assert [(row["entity"], float(row["cpu_percent"])) for row in shown] == [("node-a", 4.5), ("node-a", 14.5), ("node-a", 24.5)]
    done = run("export", "cpu_percent", *window, "-o", "numbers.parquet")
    assert "30 rows in numbers.parquet" in done.output
    assert pq.read_table(tmp_path / "numbers.parquet")["cpu_percent"].to_pylist() == list(range(30))


@pytest.mark.parametrize("output", [(), ("-o", "numbers.csv")])
def test_a_name_that_a_spreadsheet_would_run_is_a_text_in_it(tmp_path, monkeypatch, output) -> None:
    monkeypatch.chdir(tmp_path)
    record(tmp_path, "=cmd|' /C calc'!A0", "@SUM(1+1)")
    words = ["history", "export", "@SUM(1+1)", "--table", "node", "--since", "2025-11-20T08:00", "--until", "2025-11-20T08:01", "--state-dir", "state", *output]
    done = CliRunner().invoke(main, words)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "numbers.csv").read_text() if output else done.stdout)))
    assert {row["entity"] for row in rows} == {"'=cmd|' /C calc'!A0"}
    assert [float(row["'@SUM(1+1)"]) for row in rows] == list(range(30)), "numbers stay numbers"


@pytest.mark.parametrize(("job", "rows"), [("t/j/r", 30), ("t/j", 30), ("t", 30), ("t/j/", 0), ("t/another", 0), ("t/j/r2", 0)])
def test_a_job_is_named_with_its_run_or_without_and_who_is_not_there_is_said(run, job, rows) -> None:
    done = run("export", "cpu_percent", "--table", "node", "--since", "2025-11-20T08:00", "--until", "2025-11-20T08:01", "--job", job, "-o", "n.csv")
    assert f"{rows} rows in n.csv" in done.output
    assert ("`eagle-eye history entities node` lists the entities that have samples" in done.output) is (rows == 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("export", "cpu", "--table", "node", "--since", "2025-11-20T08:00", "--until", "2025-11-20T08:01"), "no metric 'cpu'"),
        (("export", "cpu_percent", "--table", "gpu"), "nothing of 'gpu'"),
        (("export", "cpu_percent", "--table", "node", "--since", "yesterday"), "is not a time"),
        (("export", "cpu_percent", "--table", "node", "--last", "soon"), "is not a duration"),
        (("export", "cpu_percent", "--table", "node", "-o", "numbers.xlsx"), "*.csv or *.parquet"),
        (("metrics", "gpus"), "no table 'gpus'"),
    ],
)
def test_what_cannot_be_answered_is_told_with_what_can(run, arguments, says) -> None:
    result = run(*arguments)
    assert result.exit_code != 0
    assert says in result.output
    assert "Traceback" not in result.output


def test_records_that_could_not_be_read_are_listed_and_written_to_a_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        return CliRunner().invoke(main, ["history", "bad-records", "--state-dir", "state", *arguments]).output

    assert run() == "every record could be read\n"
    with EmbeddedStream(tmp_path / "state/stream") as stream:
        stream.append(DEAD_LETTERS, [dead_letter(Message(OBSERVATIONS, 0, 41, "t/j/r", b"\xffgarbage", T0), "a record of ours begins with b'EE'")])
    listed = run("--wide")
    assert "t/j/r" in listed
    assert "eagle-eye.observations/0" in listed
    assert "a record of ours begins with b'EE'" in listed
    assert run("-o", "bad.jsonl") == "1 records in bad.jsonl\n"
    [line] = (tmp_path / "bad.jsonl").read_text().splitlines()
    assert base64.b64decode(json.loads(line)["record"]) == b"\xffgarbage"
