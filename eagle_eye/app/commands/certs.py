"""`eagle-eye certs init | issue | show`."""

from pathlib import Path

import click
from rich.console import Console

from eagle_eye.access.certificates import CertificateInfo, CertificateKind, Identity, certificate_info, read_public
from eagle_eye.access.stream_keys import StreamKeys
from eagle_eye.app import options
from eagle_eye.app.printing import TableColumn, brief_time, local_time, print_table
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError

DAY_S = 86_400.0
directory = click.option("--dir", "folder", default="", type=click.Path(), help="Directory of the certificate authority. Default: certs under the state directory.")


@click.group(short_help="certificate authority for mutual TLS between servers, nodes and clients")
def command() -> None:
    """Certificates of the control channel. The authority's key (ca.key) stays where it was made.

    \b
    Examples:
      eagle-eye certs init
      eagle-eye certs issue head --kind server --host head.cluster
      eagle-eye certs issue node-7 --kind node
      eagle-eye certs show
    """


@command.command(short_help="create the certificate authority")
@directory
@options.deployment
def init(config: Config, folder: str) -> None:
    """Create ca.pem, which every machine needs, and what stays secret where it was created: ca.key, and stream.key, the root of the keys of the stream.

    \b
    Examples:
      eagle-eye certs init
      eagle-eye certs init --dir /root/eagle-eye-ca
    """
    from eagle_eye.access.certificate_authority import CertificateAuthority

    authority = CertificateAuthority(_folder(config, folder))
    keys = StreamKeys(authority.directory)
    authority.make(SystemClock().now())
    keys.make()
    click.echo(f"made {authority.certificate} (for every machine), {authority.key} and {keys.root_file} (keep both here, and a copy offline)")


@command.command(short_help="create a key and a certificate")
@click.argument("name")
@click.option("--kind", type=click.Choice([str(kind) for kind in CertificateKind]), required=True, help="server; node: its agent and launchers; client: the commands of an operator.")
@click.option("--host", "hosts", multiple=True, help="Name or address under which it is reached; several are fine. Default: NAME. This machine's own are always added.")
@click.option("--tenant", "tenants", multiple=True, help="Of a node: it may run jobs of this tenant (the first part of a job's name) and of no other; several are fine. Default: jobs of all.")
@click.option("--days", type=click.FloatRange(min=0.01), default=365, show_default=True, help="Days until it expires.")
@click.option("--out", default="", type=click.Path(), help="Directory of NAME.pem and NAME.key. Default: the directory of the authority.")
@directory
@options.deployment
def issue(config: Config, name: str, kind: str, hosts: tuple[str, ...], tenants: tuple[str, ...], days: float, out: str, folder: str) -> None:
    """Create NAME.pem and NAME.key. Issuing them again replaces them; new connections use them without a restart.
    Of a node and a server also NAME.stream, with which it signs its records of the stream.

    For a node NAME is the name that its agent and launchers are started with (--node; default: the host name): its
    certificate opens sessions as that node and as no other. With --tenant it does so for the jobs of these tenants alone.

    \b
    Examples:
      eagle-eye certs issue head --kind server --host head.cluster --host 10.0.0.1
      eagle-eye certs issue node-7 --kind node --host 10.0.0.7 --tenant team-a --tenant team-b
      eagle-eye certs issue ada --kind client --days 90
    """
    from eagle_eye.access.certificate_authority import CertificateAuthority, builder_ends

    authority = CertificateAuthority(_folder(config, folder))
    if tenants and kind != CertificateKind.NODE:
        raise ConfigError("--tenant limits which jobs a node may run: it goes with --kind node; `eagle-eye token add --tenant` limits a person")
    identity = Identity(kind=CertificateKind(kind), name=name, tenants=tenants)
    place, now = Path(out).expanduser() if out else authority.directory, SystemClock().now()
    made = authority.issue(identity, hosts, now=now, days=days, out=place)
    click.echo(f"made {made.certificate} and {made.key}; with {authority.certificate} they go into [access] of that machine:")
    click.echo(f'  ca_file = "{authority.certificate.name}"  certificate_file = "{made.certificate.name}"  key_file = "{made.key.name}"')
    if identity.kind is not CertificateKind.CLIENT:
        keys = StreamKeys(authority.directory)
        keys.make()
        signs = keys.issue(identity, ends=builder_ends(now, days), out=place)
        click.echo(f"made {signs}, where the stream is Kafka:")
        click.echo(f'  stream_key_file = "{signs.name}"')


@command.command(short_help="show owners and expiry dates of certificates")
@click.argument("files", nargs=-1, type=click.Path())
@directory
@options.wide
@options.deployment
def show(config: Config, files: tuple[str, ...], folder: str, wide: bool) -> None:
    """Show FILES; without any, all certificates beside the authority and that of the configuration.

    \b
    Examples:
      eagle-eye certs show
      eagle-eye certs show /etc/eagle-eye/node.pem
    """
    own = config.access.certificate_file
    found = [Path(name) for name in files] or [*sorted(_folder(config, folder).glob("*.pem")), *([Path(own).expanduser()] if own else [])]
    if not found:
        click.echo(f"no certificate in {_folder(config, folder)}: create the authority with `eagle-eye certs init`")
        return
    now = SystemClock().now()
    columns = (TableColumn("file", name=True), TableColumn("for", name=True), TableColumn("hosts", prose=True, drop=1), TableColumn("until", brief=brief_time), TableColumn("state", prose=True))
    rows = []
    for path in dict.fromkeys(found):
        facts = certificate_info(read_public(path, "certificate"), str(path))
        rows.append((path.name, _owner(facts), " ".join(facts.hosts), local_time(facts.ends)[:16], _state(facts, now)))
    print_table(Console(), columns, rows, wide=wide)


def _folder(config: Config, given: str) -> Path:
    return Path(given).expanduser() if given else config.state / "certs"


def _owner(facts: CertificateInfo) -> str:
    if facts.authority:
        return "authority"
    return str(facts.identity) if facts.identity else facts.subject


def _state(facts: CertificateInfo, now: float) -> str:
    left = (facts.ends - now) / DAY_S
    if facts.expired(now):
        return f"EXPIRED {-left:.0f} days ago: issue it again"
    return f"{left:.0f} days left" + (": renew it" if facts.ends_soon(now) else "")
