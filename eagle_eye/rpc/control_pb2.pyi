from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromClient(_message.Message):
    __slots__ = ("hello", "heartbeat", "ack", "request")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    ack: Ack
    request: Request
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., request: _Optional[_Union[Request, _Mapping]] = ...) -> None: ...

class FromServer(_message.Message):
    __slots__ = ("welcome", "heartbeat", "command", "reply")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    heartbeat: Heartbeat
    command: Command
    reply: Reply
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., command: _Optional[_Union[Command, _Mapping]] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("role", "node", "job", "incarnation", "pid", "address", "term")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    role: str
    node: str
    job: str
    incarnation: str
    pid: int
    address: str
    term: int
    def __init__(self, role: _Optional[str] = ..., node: _Optional[str] = ..., job: _Optional[str] = ..., incarnation: _Optional[str] = ..., pid: _Optional[int] = ..., address: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("term", "heartbeat_s", "lease_s")
    TERM_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    term: int
    heartbeat_s: float
    lease_s: float
    def __init__(self, term: _Optional[int] = ..., heartbeat_s: _Optional[float] = ..., lease_s: _Optional[float] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("heartbeat_s", "lease_s")
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    heartbeat_s: float
    lease_s: float
    def __init__(self, heartbeat_s: _Optional[float] = ..., lease_s: _Optional[float] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("id", "leader_term", "job", "epoch", "plan", "step", "action", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_TERM_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: int
    leader_term: int
    job: str
    epoch: int
    plan: str
    step: str
    action: str
    arguments: bytes
    def __init__(self, id: _Optional[int] = ..., leader_term: _Optional[int] = ..., job: _Optional[str] = ..., epoch: _Optional[int] = ..., plan: _Optional[str] = ..., step: _Optional[str] = ..., action: _Optional[str] = ..., arguments: _Optional[bytes] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("id", "ok", "error", "kind", "delay_s", "detail")
    ID_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DELAY_S_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    id: int
    ok: bool
    error: str
    kind: str
    delay_s: float
    detail: bytes
    def __init__(self, id: _Optional[int] = ..., ok: _Optional[bool] = ..., error: _Optional[str] = ..., kind: _Optional[str] = ..., delay_s: _Optional[float] = ..., detail: _Optional[bytes] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("id", "kind", "body")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    body: bytes
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., body: _Optional[bytes] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("id", "ok", "error", "kind", "delay_s", "body")
    ID_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DELAY_S_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    id: int
    ok: bool
    error: str
    kind: str
    delay_s: float
    body: bytes
    def __init__(self, id: _Optional[int] = ..., ok: _Optional[bool] = ..., error: _Optional[str] = ..., kind: _Optional[str] = ..., delay_s: _Optional[float] = ..., body: _Optional[bytes] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("plan", "digest", "person", "valid_s", "note")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PERSON_FIELD_NUMBER: _ClassVar[int]
    VALID_S_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    plan: str
    digest: str
    person: str
    valid_s: float
    note: str
    def __init__(self, plan: _Optional[str] = ..., digest: _Optional[str] = ..., person: _Optional[str] = ..., valid_s: _Optional[float] = ..., note: _Optional[str] = ...) -> None: ...

class ReleaseNodeCommand(_message.Message):
    __slots__ = ("node", "person")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PERSON_FIELD_NUMBER: _ClassVar[int]
    node: str
    person: str
    def __init__(self, node: _Optional[str] = ..., person: _Optional[str] = ...) -> None: ...

class SilenceCommand(_message.Message):
    __slots__ = ("id", "person", "job", "node", "cause", "seconds", "reason", "ahead")
    ID_FIELD_NUMBER: _ClassVar[int]
    PERSON_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    id: str
    person: str
    job: str
    node: str
    cause: str
    seconds: float
    reason: str
    ahead: bool
    def __init__(self, id: _Optional[str] = ..., person: _Optional[str] = ..., job: _Optional[str] = ..., node: _Optional[str] = ..., cause: _Optional[str] = ..., seconds: _Optional[float] = ..., reason: _Optional[str] = ..., ahead: _Optional[bool] = ...) -> None: ...

class MaintenanceCommand(_message.Message):
    __slots__ = ("id", "person", "nodes", "jobs", "begins_in_s", "seconds", "reason", "ahead")
    ID_FIELD_NUMBER: _ClassVar[int]
    PERSON_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_IN_S_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    id: str
    person: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    begins_in_s: float
    seconds: float
    reason: str
    ahead: bool
    def __init__(self, id: _Optional[str] = ..., person: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., jobs: _Optional[_Iterable[str]] = ..., begins_in_s: _Optional[float] = ..., seconds: _Optional[float] = ..., reason: _Optional[str] = ..., ahead: _Optional[bool] = ...) -> None: ...

class BreakerCommand(_message.Message):
    __slots__ = ("id", "person")
    ID_FIELD_NUMBER: _ClassVar[int]
    PERSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    person: str
    def __init__(self, id: _Optional[str] = ..., person: _Optional[str] = ...) -> None: ...

class NoteCommand(_message.Message):
    __slots__ = ("incident", "person", "text")
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    PERSON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    incident: str
    person: str
    text: str
    def __init__(self, incident: _Optional[str] = ..., person: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PendingPlansQuery(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: str
    def __init__(self, plan: _Optional[str] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("ok", "error", "kind", "delay_s", "body")
    OK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DELAY_S_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    error: str
    kind: str
    delay_s: float
    body: bytes
    def __init__(self, ok: _Optional[bool] = ..., error: _Optional[str] = ..., kind: _Optional[str] = ..., delay_s: _Optional[float] = ..., body: _Optional[bytes] = ...) -> None: ...
