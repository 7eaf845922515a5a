"""Responses about calls, tools, keys, sessions, files, asks, rules and the sandbox."""

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, Field

from app.api.schemas import ASK_ID, CALL_ID
from app.core.sessions import Profile

T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    """A page of a list. Request the next one with `cursor` = `next_cursor` until that is null."""

    data: list[T] = Field(description="The items of this page.")
    next_cursor: str | None = Field(description="Where the next page starts; null on the last one.")


class AttachmentView(BaseModel):
    """A file attached to a result."""

    type: Literal["file"] = Field(description="Always `file`.")
    mime: str = Field(description="Its media type.", examples=["image/png"])
    filename: str | None = Field(description="Its name, if it has one.")
    url: str = Field(description="A data URL, or a route of this service.")


class ResultView(BaseModel):
    """The result of a tool."""

    title: str = Field(description="A short line for people.", examples=["hello.txt"])
    output: str = Field(description="What the model reads.", examples=["L1: Hello from your Toolcrib workspace."])
    metadata: dict[str, Any] = Field(
        description="Facts for the frontend: `truncated`, `original_size`, `truncated_size` and the tool's own."
    )
    attachments: list[AttachmentView] = Field(description="Attached files.")
    structured: Any = Field(description="The result as data, where the tool has it.")


class ErrorView(BaseModel):
    """Why a call failed, in a sentence the model can act on."""

    code: str = Field(description="A stable, locale-free name.", examples=["ENOENT"])
    message: str = Field(description="One sentence for the model.")
    retryable: bool = Field(description="Whether the same call may succeed later.")
    details: dict[str, Any] | None = Field(default=None, description="Facts about the failure.")


class CallView(BaseModel):
    """One call of a tool in its current state."""

    id: str = Field(description="The call's id; ids sort by time.", examples=["call_0006437f8a1b2c3d4e5f6a7b"])
    tool: str = Field(description="The tool's name.", examples=["read_file"])
    session: str = Field(description="The session it runs in.", examples=["default"])
    call_id: str | None = Field(description="The caller's own id.")
    message_id: str | None = Field(description="The model message it came in.")
    parent: str | None = Field(description="The call whose tool made this call.")
    status: Literal["pending", "running", "completed", "error"] = Field(description="Its state.")
    waiting: Literal["permission", "input", "gate", "queue"] | None = Field(
        description="What it waits for, if anything."
    )
    arguments: dict[str, Any] | None = Field(description="The arguments as they were sent.")
    input: str | None = Field(description="The free-form input as it was sent.")
    result: ResultView | None = Field(description="The tool's result; a failed call may have one too.")
    error: ErrorView | None = Field(description="Why it failed, if it did.")
    metadata: dict[str, Any] | None = Field(description="The caller's own data, returned as sent.")
    principal: str = Field(description="Its owner.", examples=["admin"])
    sandbox: dict[str, Any] | None = Field(description="The sandbox it ran in, for tools that start processes.")
    created_at: str = Field(description="When it was accepted, RFC 3339 UTC.")
    started_at: str | None = Field(description="When the tool started.")
    ended_at: str | None = Field(description="When it ended.")
    duration_ms: float | None = Field(description="How long the tool ran, by the monotonic clock.")


class EventView(BaseModel):
    """An event, in commit order."""

    seq: int = Field(description="The global sequence number: dense, in commit order.")
    type: str = Field(description="What happened.", examples=["call.completed"])
    call: str | None = Field(description="The call it is about.")
    session: str = Field(description="The session it happened in.")
    at: str = Field(description="When, RFC 3339 UTC.")
    data: dict[str, Any] | None = Field(description="The event's data.")


class ToolView(BaseModel):
    """A tool an agent can use."""

    name: str = Field(description="What to put into `tool`.", examples=["read_file"])
    title: str = Field(description="A short name for people.")
    description: str = Field(description="What it does, written for a model.")
    parameters: dict[str, Any] = Field(description="JSON Schema of its arguments.")
    output_schema: dict[str, Any] | None = Field(description="JSON Schema of `structured` in its results, if known.")
    takes: Literal["arguments", "input"] = Field(description="Which field of a call it reads.")
    grammar: str | None = Field(description="Lark grammar of the text, for a tool that takes `input`.")
    effect: Literal["read", "write"] = Field(description="`write` may change something and runs alone in its lane.")
    lane: str = Field(description="What it is serialized with: `workspace`, `session`, `server:{name}` or `none`.")
    timeout: float = Field(description="Seconds it may run unless the call sets another limit.")
    source: str = Field(description="Where it comes from.", examples=["builtin"])
    server: str | None = Field(description="The MCP server it comes from, if any.")
    aliases: list[str] = Field(description="Other names it can be called by.")
    annotations: dict[str, Any] = Field(description="MCP tool annotations.")
    owner: str | None = Field(description="Its owner; null: global.")
    available: bool = Field(description="Whether it can be used now.")
    reason: str | None = Field(description="Why it cannot, if so.")


class ToolLineView(BaseModel):
    """The short form of a tool, for a small context."""

    name: str = Field(description="What to put into `tool`.", examples=["read_file"])
    description: str = Field(description="What it does, written for a model.")


class SkippedView(BaseModel):
    """An operation that was skipped."""

    operation: str = Field(description="Its name, or its method and path.")
    reason: str = Field(description="Why, in one sentence.")


class ImportView(BaseModel):
    """The result of an import."""

    data: list[ToolView] = Field(description="The imported tools.")
    skipped: list[SkippedView] = Field(description="The skipped operations.")


class UnloadedView(BaseModel):
    """A tool file that could not be loaded, or a tool in it."""

    file: str = Field(description="The file's name, or the package's entry point.")
    reason: str = Field(description="Why.")


class ReloadView(BaseModel):
    """The result of loading the tool files."""

    loaded: list[str] = Field(description="The names of the loaded tools.")
    failed: list[UnloadedView] = Field(description="What could not be loaded.")


class KeyView(BaseModel):
    """A key, without the token."""

    id: str = Field(description="The key's id.", examples=["key_0006437f8a1b2c3d4e5f6a7b"])
    principal: str = Field(description="Its principal.", examples=["ci"])
    name: str = Field(description="What it is for.")
    scopes: list[str] = Field(description="What it may do.", examples=[["calls:run", "calls:read"]])
    bounds: dict[str, Any] = Field(description="Its bounds, besides its scopes.")
    created_at: str = Field(description="When it was created.")
    revoked_at: str | None = Field(description="When it was revoked, if it was.")


class NewKeyView(KeyView):
    """A new key. The token is in this response only."""

    token: str = Field(description="The token to send as `Authorization: Bearer …`.")


class SessionView(BaseModel):
    """A session, in which calls run."""

    id: str = Field(description="Its name, unique for its principal.", examples=["feature-1"])
    principal: str = Field(description="Its owner.", examples=["ci"])
    agent: str | None = Field(description="The agent's name.")
    model: str | None = Field(description="The model that uses the tools.")
    workspace: str | None = Field(description="The folder it works in; null is the service's own workspace.")
    approval: Literal["untrusted", "on-request", "never"] | None = Field(description="The approval preset.")
    rules: list[dict[str, Any]] = Field(description="Its permission rules, in order.")
    network_policy: dict[str, Any] | None = Field(description="Which hosts its tools may reach; secrets by name only.")
    profile: Profile | None = Field(description="Where its processes may write, if less than the operator allows.")
    env: dict[str, Any] = Field(description="Environment of its processes; secrets by name only.")
    labels: dict[str, str] = Field(description="The caller's own data.")
    created_at: str = Field(description="When it was created.")
    updated_at: str = Field(description="When it was last changed.")


class FileView(BaseModel):
    """An entry of a folder."""

    path: str = Field(description="The path from the workspace's root.", examples=["src/main.py"])
    type: Literal["file", "directory", "symlink", "other"] = Field(description="What it is; links are not followed.")
    size: int | None = Field(description="Bytes of a file.")
    modified: str | None = Field(description="When a file was changed last, RFC 3339 UTC.")
    etag: str | None = Field(description="The state of a file, for If-Match.")


class WrittenFileView(FileView):
    """A file that was written."""

    call: str = Field(description="The call that wrote it.")


class TerminalView(BaseModel):
    """A process that runs in a session between calls."""

    id: int = Field(description="Its number in the session, which tools call session ID.", examples=[38214])
    call: str = Field(description="The call that started it.", examples=[CALL_ID])
    command: str = Field(description="The command.")
    tty: bool = Field(description="Whether it has a tty, and takes input.")
    sandbox: dict[str, Any] = Field(description="The sandbox it runs in.")
    opened_at: str = Field(description="When it was started.")
    used_at: str = Field(description="When a call last used it.")
    exit_code: int | None = Field(description="Its exit code, once it has exited; 128 plus the number for a signal.")


class PlanView(BaseModel):
    """The plan of an agent."""

    explanation: str | None = Field(description="The reason of the last change, if the agent gave one.")
    plan: list[dict[str, Any]] = Field(description="Its steps in order, each with `step` and `status`.")


class SecretView(BaseModel):
    """A secret, without its value."""

    name: str = Field(description="The name it is referred to by.", examples=["MAIL_TOKEN"])
    is_global: bool = Field(alias="global", description="Whether it is global.")
    domains: list[str] = Field(description="Hosts it may be sent to; none means no limit.")
    source: Literal["store", "config"] = Field(description="Whether it is stored here or defined in the configuration.")
    created_at: str | None = Field(description="When it was first stored; null for a configured one.")
    updated_at: str | None = Field(description="When its value was last replaced; null for a configured one.")


class NeedView(BaseModel):
    """A permission that a call needs."""

    permission: str = Field(description="The permission.", examples=["read"])
    pattern: str = Field(description="To what.", examples=["deploy/.env"])


class RuleView(NeedView):
    """A permission rule."""

    action: Literal["allow", "ask", "deny"] = Field(description="What happens.")


class AnswerView(BaseModel):
    """The answer to an ask."""

    decision: Literal["allow_once", "allow_always", "deny"] | None = Field(description="The answer to a permission.")
    message: str | None = Field(description="The person's message.")
    rules: list[RuleView] = Field(description="The rules that `allow_always` made.")
    scope: Literal["session", "workspace", "global"] | None = Field(description="Where those rules apply.")
    content: dict[str, Any] | None = Field(description="The answers to questions, by their ids.")
    action: Literal["decline", "cancel"] | None = Field(description="How questions were refused.")
    principal: str | None = Field(description="The key's principal; null when rules answered it.", examples=["ann"])
    key: str | None = Field(description="The id of that key.")


class AskView(BaseModel):
    """A question that waits for a person, or waited."""

    id: str = Field(description="The ask's id.", examples=[ASK_ID])
    kind: Literal["permission", "question", "elicitation"] = Field(description="The kind of ask.")
    status: Literal["open", "answered", "expired"] = Field(description="Whether it can be answered.")
    call: str = Field(description="The call that waits for it.", examples=[CALL_ID])
    tool: str = Field(description="The tool of that call.", examples=["read_file"])
    session: str = Field(description="The session the call runs in.")
    principal: str = Field(description="The call's owner.", examples=["ci"])
    needs: list[NeedView] = Field(description="The permissions to allow.")
    always: list[RuleView] = Field(description="The rules that `allow_always` makes unless the answer has others.")
    questions: list[dict[str, Any]] = Field(description="The questions to answer.")
    metadata: dict[str, Any] = Field(description="The tool's data about it.")
    answer: AnswerView | None = Field(description="The answer, if there is one.")
    reason: str | None = Field(description="Why it ended without an answer.")
    created_at: str = Field(description="When it was created.")
    expires_at: str = Field(description="Until when it can be answered.")
    ended_at: str | None = Field(description="When it was answered or ended.")


class KeptRuleView(RuleView):
    """A stored rule."""

    id: str = Field(description="The rule's id.", examples=["rule_06605af302a1c45f08be77d2"])
    scope: Literal["session", "workspace", "global"] = Field(description="Where it applies.")
    session: str | None = Field(description="The session it applies to.")
    workspace: str | None = Field(description="The workspace it applies to; `default` is the service's own.")
    ask: str | None = Field(description="The ask whose answer made it.")
    principal: str = Field(description="The principal whose calls it applies to; `*`: all.", examples=["ci"])
    created_by: str | None = Field(description="The id of the key that wrote it.")
    created_at: str = Field(description="When it was written.")


class TicketView(BaseModel):
    """A new ticket."""

    ticket: str = Field(description="What to send as `?ticket=`, once.", examples=["tt_shown-this-once"])
    expires_at: str = Field(description="Until when it can be used.")


class ProbeView(BaseModel):
    """One probe that was run inside the sandbox."""

    name: str = Field(description="What was tried.", examples=["outside_write"])
    ok: bool = Field(description="Whether the sandbox behaved as required.")
    detail: str = Field(description="What happened, in one sentence.")


class TrialView(BaseModel):
    """A backend that was tried."""

    backend: Literal["bwrap", "landlock"] = Field(description="Its name.")
    ok: bool = Field(description="Whether it may be used.")
    reason: str | None = Field(description="Why it is not used.")
    said: str = Field(description="Its program's output.")
    probes: list[ProbeView] = Field(description="All probes; empty when none could be run.")
    duration_ms: float = Field(description="How long it took.")


class BwrapView(BaseModel):
    """The bubblewrap program."""

    path: str = Field(description="Its path.")
    version: str = Field(description="Its version.")


class SandboxView(BaseModel):
    """The sandbox of processes that tools start. The fields from `requested` on are for admins."""

    backend: Literal["bwrap", "landlock", "none"] | None = Field(
        description="The backend; null: none works, and no process is started."
    )
    reason: str = Field(description="Why it is this one.")
    profile: Profile = Field(description="Where processes may write; sessions can only narrow it.")
    network: Literal["none", "allowlist", "full"] = Field(
        description="What processes may reach; sessions can only narrow it."
    )
    degraded: bool = Field(description="Whether the network allowlist is enforced less strictly than it should be.")
    unprotected: list[str] = Field(description="What this sandbox does not protect against, one sentence each.")
    checked_at: str = Field(description="When the self-test was run.")
    requested: str = Field(default="", description="The backend in the settings.", examples=["auto"])
    uid: int | None = Field(default=None, description="The user id of processes; null: the service's own user.")
    limits: dict[str, int] = Field(default={}, description="Of a call (`memory`, `processes`) and of each process.")
    tried: list[TrialView] = Field(default=[], description="Every backend that was tried, with all probes.")
    landlock_abi: int = Field(default=0, description="The newest Landlock interface of this kernel; 0 without.")
    seccomp: bool = Field(default=False, description="Whether system calls can be filtered.")
    user_namespaces: bool | None = Field(
        default=None, description="Whether user namespaces work; null: the settings want no sandbox."
    )
    bwrap: BwrapView | None = Field(
        default=None, description="Bubblewrap, if installed and the settings want a sandbox."
    )


class HealthView(BaseModel):
    """The health of the service."""

    status: Literal["ok"] = Field(description="It is alive.")
    version: str = Field(description="The service's version.")


class CheckView(BaseModel):
    """One check."""

    name: str = Field(
        description="`serving`, `store_writable`, `store_readable`, `room_for_calls`, `disk_space` or `sandbox`.",
        examples=["store_writable"],
    )
    ok: bool = Field(
        description="Whether it passed. Little disk space or no sandbox does not make the service unready."
    )
    message: str = Field(description="The result, in one sentence.")


class ReadinessView(BaseModel):
    """Whether the service accepts calls, and why not."""

    status: Literal["ok", "starting", "stopping", "unready"] = Field(description="`ok` when it accepts calls.")
    checks: list[CheckView] | None = Field(
        default=None, description="The checks, for keys that may read calls or metrics."
    )
