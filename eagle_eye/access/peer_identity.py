"""Who is at the other end of a connection, by the certificate that was shown."""

from collections.abc import Mapping, Sequence

from .certificates import CertificateKind, Identity


def identity_of(context: Mapping[str, Sequence[bytes]]) -> Identity | None:
    """From gRPC's authentication context; None where the certificate is none of `eagle-eye certs`."""
    uris = (uri.decode(errors="replace") for uri in context.get("peer_uri", ()))
    return next((identity for uri in uris if (identity := Identity.of(uri))), None)


def objection(identity: Identity | None, node: str, what: str) -> str:
    """Why this certificate may not open a session for a process of `node`; '' if it may. `what` names the process."""
    if identity is None:
        return f"the certificate names no node: the {what} needs one of `eagle-eye certs issue {node} --kind node`"
    if identity.kind is not CertificateKind.NODE or identity.name != node:
        return f"the certificate of {identity} may not speak as the {what}: it needs one of `eagle-eye certs issue {node} --kind node`"
    return ""
