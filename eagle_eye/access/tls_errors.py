"""Why a connection could not be made secure, explained: gRPC itself mostly says that a socket was closed."""

import socket
import ssl

from .credentials import Credentials

TIMEOUT_S = 2.0
TELLTALES = ("andshake", "ocket closed", "onnection reset", "onnection dropped")
"""Parts of gRPC's details where one side may speak TLS and the other does not, or refuses what it was shown."""
EXPIRED = 10
"""X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""
MISMATCHES = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH."""


def explain(address: str, credentials: Credentials | None, details: str) -> str:
    """What is wrong between us and `address`, after gRPC gave `details`; `details` if nothing more is known. Blocks."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not any(telltale in details for telltale in TELLTALES):
        return details
    try:
        with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as plain:
            plain.settimeout(TIMEOUT_S)
            found = _with(plain, address, host.strip("[]"), credentials) if credentials else _without(plain, address)
            return found or details
    except OSError:
        return details


def _without(plain: socket.socket, address: str) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only: does it speak TLS at all
    try:
        with context.wrap_socket(plain):
            pass
    except ssl.SSLError:
        return ""
    return f"{address} speaks TLS and we have no certificate: set access.ca_file, access.certificate_file and access.key_file"


def _with(plain: socket.socket, address: str, host: str, credentials: Credentials) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(credentials.authority)
    context.load_cert_chain(credentials.certificate, credentials.key)
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(plain, server_hostname=host) as secure:
            if secure.recv(1):
                return ""  # it greets us: whatever it was, it is over
    except ssl.SSLCertVerificationError as error:
        return _unverified(error, address, host, credentials)
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
            return f"{address} speaks no TLS: it was started without the files of [access], or is another program's port"
    except TimeoutError:
        return ""
    return f"{address} refuses the certificate {credentials.certificate}: its own authority is another, or its clock says that it has expired"


def _unverified(error: ssl.SSLCertVerificationError, address: str, host: str, credentials: Credentials) -> str:
    if error.verify_code == EXPIRED:
        return f"the certificate that {address} shows has expired: renew it there with `eagle-eye certs issue`"
    if error.verify_code in MISMATCHES:
        return f"the certificate that {address} shows is not for {host}: issue it with --host {host}"
    return f"the certificate that {address} shows was not signed by our authority {credentials.authority} ({error.verify_message})"
