"""How a client reaches the brokers: options for kafka-python out of `[stream.kafka]`, and why it cannot if it cannot."""

import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from eagle_eye.access.addresses import is_loopback
from eagle_eye.config import KafkaConfig
from eagle_eye.errors import ConfigError

PASSWORD_VARIABLE = "EAGLE_EYE_KAFKA_PASSWORD"  # noqa: S105 (a name, no password)
REACH_S = 2.0
"""How long the search for a reason tries each broker."""
_PROTOCOLS = {"plaintext": "PLAINTEXT", "tls": "SSL", "sasl": "SASL_PLAINTEXT", "sasl_tls": "SASL_SSL"}
_PORT = 9092


class Broker(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def brokers_of(config: KafkaConfig) -> tuple[Broker, ...]:
    """The addresses in `stream.kafka.brokers`. Raises ConfigError naming the one that is none.

    >>> brokers_of(KafkaConfig(brokers="a:1,b"))
    (Broker(host='a', port=1), Broker(host='b', port=9092))
    """
    return tuple(_address(part.strip()) for part in config.brokers.split(",") if part.strip())


def _address(text: str) -> Broker:
    host, colon, port = text.rpartition(":")
    if not colon:
        return Broker(text, _PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"stream.kafka.brokers names {text!r}; write host:port, several with commas: kafka-1:9092,kafka-2:9092"
        )
    return Broker(host.strip("[]"), int(port))


def client_options(config: KafkaConfig, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What every client of kafka-python needs to connect. Raises ConfigError for a file or password that is not there."""
    _refuse_plaintext(config)
    options: dict[str, Any] = {
        "bootstrap_servers": [str(broker) for broker in brokers_of(config)],
        "security_protocol": _PROTOCOLS[config.security],
        "request_timeout_ms": int(config.timeout_s * 1000),
        "reconnect_backoff_max_ms": 1000,
        "socket_connection_setup_timeout_ms": int(config.timeout_s * 1000),
    }
    if config.security in ("tls", "sasl_tls"):
        options["ssl_context"] = _client_context(config)
    if config.security in ("sasl", "sasl_tls"):
        options["sasl_mechanism"] = config.mechanism
        options["sasl_plain_username"], options["sasl_plain_password"] = _credentials(config, environment)
    return options


def _refuse_plaintext(config: KafkaConfig) -> None:
    far = [str(broker) for broker in brokers_of(config) if not is_loopback(f"{broker.host}:{broker.port}")]
    if config.security == "plaintext" and far and not config.insecure:
        raise ConfigError(
            f"stream.kafka.security is plaintext, and {', '.join(far)} is on another machine: whoever is on the way could read and write "
            "records; set it to tls, sasl_tls or sasl, or stream.kafka.insecure = true on a network that you trust wholly"
        )


def tls_context(config: KafkaConfig) -> ssl.SSLContext:
    """TLS 1.2 or newer; the broker's certificate and name are checked, ours is shown if there is one."""
    context = ssl.create_default_context(cafile=_file("ca_file", config.ca_file))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.certificate_file:
        certificate, key = _file("certificate_file", config.certificate_file), _file("key_file", config.key_file)
        try:
            context.load_cert_chain(str(certificate), key)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"stream.kafka.certificate_file {certificate} and key_file {key} do not fit together ({error}): "
                "give the PEM of one certificate and of its own key"
            ) from error
    return context


def _client_context(config: KafkaConfig) -> ssl.SSLContext:
    from .kafka_sockets import HandshakeSocket

    context = tls_context(config)
    context.sslsocket_class = HandshakeSocket
    return context


def _file(key: str, path: str) -> str | None:
    if path and not Path(path).is_file():
        raise ConfigError(f"stream.kafka.{key} is {path}, and there is no such file: write the path of a PEM file")
    return path or None


def _credentials(config: KafkaConfig, environment: Mapping[str, str]) -> tuple[str, str]:
    if not config.user:
        raise ConfigError(f"stream.kafka.security is {config.security!r}, so stream.kafka.user must be set")
    if config.password_file:
        try:
            return config.user, Path(config.password_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"stream.kafka.password_file {config.password_file}: {error.strerror}") from error
    password = environment.get(PASSWORD_VARIABLE, "")
    if not password:
        raise ConfigError(
            f"stream.kafka.user is {config.user}, but there is no password: set stream.kafka.password_file "
            f"or the variable {PASSWORD_VARIABLE}"
        )
    return config.user, password


def why_unreachable(config: KafkaConfig) -> str:
    """The reason why no broker can be reached, and the remedy; empty if at least one takes a connection.

    kafka-python tries again until its time is over and then only reports that: this one look finds the reason.
    """
    reasons = []
    for broker in brokers_of(config):
        reason = _try(broker, config)
        if not reason:
            return ""
        reasons.append(reason)
    return "; ".join(reasons)


def _try(broker: Broker, config: KafkaConfig) -> str:
    """Why this broker cannot be reached; empty if it can."""
    patience, connected = min(REACH_S, config.timeout_s), False
    try:
        with socket.create_connection(broker, timeout=patience) as plain:
            connected = True
            if config.security in ("tls", "sasl_tls"):
                with tls_context(config).wrap_socket(plain, server_hostname=broker.host) as encrypted:
                    _ask_for_rejection(encrypted)
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {broker} is refused ({error.verify_message}): {_remedy(error)}"
    except ssl.SSLError as error:
        return _tls_failed(broker, config, error)
    except socket.gaierror as error:
        return f"{broker.host} is no known host ({error.strerror}): correct stream.kafka.brokers"
    except TimeoutError:
        if connected:
            return f"{broker} takes the connection, but no TLS handshake within {patience:g} s: does this port speak TLS? Correct stream.kafka.brokers or security"
        return f"{broker} does not answer within {patience:g} s: is the broker up, and does a firewall let this host through?"
    except OSError as error:
        return f"{broker} takes no connection ({error.strerror or error}): start the broker, or correct stream.kafka.brokers"
    return ""


def _ask_for_rejection(encrypted: ssl.SSLSocket) -> None:
    """A broker that refuses our certificate (TLS 1.3) says so only after the handshake: wait for a moment."""
    encrypted.settimeout(0.2)
    try:
        received = encrypted.recv(1)
    except TimeoutError:
        return
    if not received:
        raise ssl.SSLError("the connection was closed after the handshake")


def _tls_failed(broker: Broker, config: KafkaConfig, error: ssl.SSLError) -> str:
    ours = config.certificate_file or "none, stream.kafka.certificate_file is empty"
    met = getattr(error, "reason", "") or error.args[-1]
    return (
        f"{broker} ends the TLS handshake ({met}): does that port speak TLS, and is our certificate "
        f"({ours}) still valid and signed by an authority that the broker trusts?"
    )


def _remedy(error: ssl.SSLCertVerificationError) -> str:
    message = error.verify_message
    if "expired" in message:
        return "renew it on the broker"
    if "mismatch" in message or "not valid for" in message:
        return "name the broker in stream.kafka.brokers as its certificate does"
    return "set stream.kafka.ca_file to the PEM of the authority that signed it"
