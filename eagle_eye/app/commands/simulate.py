"""`eagle-eye simulate`: compare recovery policies on the same fault traces."""

from pathlib import Path

import click

from eagle_eye.app import options
from eagle_eye.app.printing import print_json


@click.command(short_help="compare recovery policies on years of faults")
@click.option("--policy", "policies", multiple=True, default=("all",), show_default=True, help="megatron, varuna, bamboo, oobleck, recycle, transom, unicron, ours, or all. Repeatable.")
@click.option("--trace", "traces", multiple=True, default=("trace-b",), show_default=True, help="trace-a, trace-b, llama3, poisson, switches, llama3+switches; a CSV file, or several as a.csv+b.csv. Repeatable.")
@click.option("--tasks", default="", help="mix1 to mix5, eight, or a TOML file of tasks. Default: mix4 up to 64 nodes, else eight.")
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Seeds of each generated trace.")
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes of generated traces. Default: as published, 10,000 for llama3.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="Days of generated traces. Default: as published, 30 for llama3.")
@click.option("--gpus-per-node", type=click.IntRange(min=1), default=8, show_default=True, help="GPUs of each node.")
@click.option("--unit", type=click.IntRange(min=1), default=1, show_default=True, help="Nodes are allocated in groups of so many.")
@click.option("--spares", type=click.IntRange(min=0), default=0, show_default=True, help="Spare nodes for policies of fixed size.")
@click.option("--without", multiple=True, help="Switch a part of the policies off, e.g. templates. Repeatable.")
@click.option("--ablation", is_flag=True, help="Also run each policy without each of its parts, one at a time.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write an HTML report with plots; it opens without a network.")
@options.wide
@options.as_json
def command(html: Path | None, wide: bool, json_lines: bool, **request_options: object) -> None:
    """Run recovery policies on the same fault traces and print the WAF of each (weighted FLOP/s of work that counts) and
    how the GPU time was spent. Uses the planner that runs live; does not touch a cluster.

    \b
    Examples:
      eagle-eye simulate
      eagle-eye simulate --policy unicron --policy ours --trace trace-a --seeds 20 --html report.html
      eagle-eye simulate --policy ours --ablation --trace llama3 --nodes 1000 --unit 4
      eagle-eye simulate --trace faults.csv --tasks jobs.toml --json
    """
    from eagle_eye.app.simulation_run import (
        SimulationRequest,
        check_report_path,
        json_lines_of,
        print_summaries,
        run,
        write_report,
    )

    request = SimulationRequest(**request_options)  # type: ignore[arg-type]
    if html is not None:
        check_report_path(html)
    runs = run(request)
    if json_lines:
        for line in json_lines_of(runs):
            print_json(line)
    else:
        print_summaries(runs, wide=wide)
    if html is not None:
        write_report(runs, request, html)
        click.echo(f"{html} written", err=True)
