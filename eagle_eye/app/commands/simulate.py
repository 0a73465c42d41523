"""`eagle-eye simulate`: years of cluster life in seconds, policy beside policy."""

from pathlib import Path

import click

from eagle_eye.app import options
from eagle_eye.app.printing import print_json
from eagle_eye.app.simulation_run import (
    SimulationRequest,
    check_report_path,
    json_lines_of,
    print_summaries,
    run,
    write_report,
)


@click.command(short_help="years of cluster life in seconds, policy beside policy")
@click.option("--policy", "policies", multiple=True, default=("all",), show_default=True, help="megatron, varuna, bamboo, oobleck, recycle, transom, unicron, ours, or all. Several times.")
@click.option("--trace", "traces", multiple=True, default=("trace-b",), show_default=True, help="trace-a, trace-b, llama3, poisson, switches, llama3+switches; or a CSV file, or several as a.csv+b.csv.")
@click.option("--tasks", default="", help="mix1 to mix5, eight, or a TOML file of tasks. Default: mix4 up to 64 nodes, else eight.")
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Lives of each generated trace.")
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes of generated traces. Default: as published, 10,000 for llama3.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="Days of generated traces. Default: as published, 30 for llama3.")
@click.option("--gpus-per-node", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--unit", type=click.IntRange(min=1), default=1, show_default=True, help="Nodes are handed out by so many.")
@click.option("--spares", type=click.IntRange(min=0), default=0, show_default=True, help="Nodes held back for policies of fixed size.")
@click.option("--without", multiple=True, help="Switch a part of the policies off, e.g. templates. Several times.")
@click.option("--ablation", is_flag=True, help="Also run each policy without each one of its parts.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write a page with plots; it needs no network.")
@options.as_json
def command(html: Path | None, json_lines: bool, **wanted: object) -> None:
    """Run recovery policies through the same faults and print what each earned (weighted FLOP/s that count) and where
    every second of every GPU went. The planner is the one that runs live; nothing here touches a cluster.

    \b
    Examples:
      eagle-eye simulate
      eagle-eye simulate --policy unicron --policy ours --trace trace-a --seeds 20 --html report.html
      eagle-eye simulate --policy ours --ablation --trace llama3 --nodes 1000 --unit 4
      eagle-eye simulate --trace faults.csv --tasks jobs.toml --json
    """
    asked = SimulationRequest(**wanted)  # type: ignore[arg-type]
    if html is not None:
        check_report_path(html)
    outcome = run(asked)
    if json_lines:
        for line in json_lines_of(outcome):
            print_json(line)
    else:
        print_summaries(outcome)
    if html is not None:
        write_report(outcome, asked, html)
        click.echo(f"{html} written", err=True)
