"""Shapes of what the service answers, for the OpenAPI document and for typed clients."""

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, Field

from app.api.schemas import ASK_ID, CALL_ID
from app.core.sessions import Profile

T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    """A page of a list. Ask again with `cursor` = `next_cursor` until that is null."""

    data: list[T] = Field(description="The items of this page.")
    next_cursor: str | None = Field(description="Where the next page starts; null on the last one.")


class AttachmentView(BaseModel):
    """A file that goes along with a result."""

    type: Literal["file"] = Field(description="Always `file`.")
    mime: str = Field(description="Its media type.", examples=["image/png"])
    filename: str | None = Field(description="Its name, if it has one.")
    url: str = Field(description="A data URL, or a route of this service.")


class ResultView(BaseModel):
    """What a tool gave back."""

    title: str = Field(description="A short line for people.", examples=["hello.txt"])
    output: str = Field(description="What the model reads.", examples=["L1: Hello from your Toolcrib workspace."])
    metadata: dict[str, Any] = Field(
        description="Facts for the frontend: `truncated`, `original_size`, `truncated_size` and the tool's own."
    )
    attachments: list[AttachmentView] = Field(description="Files that go along.")
    structured: Any = Field(description="The result as data, where the tool has it.")


class ErrorView(BaseModel):
    """Why a call failed, in words a model can act on."""

    code: str = Field(description="A stable, locale-free name.", examples=["ENOENT"])
    message: str = Field(description="One sentence for the model.")
    retryable: bool = Field(description="Whether the same call may succeed later.")
    details: dict[str, Any] | None = Field(default=None, description="Facts about the failure.")


class CallView(BaseModel):
    """One use of a tool, as it stands."""

    id: str = Field(description="The call's id; ids sort by time.", examples=["call_0006437f8a1b2c3d4e5f6a7b"])
    tool: str = Field(description="The tool's name.", examples=["read_file"])
    session: str = Field(description="The session it runs in.", examples=["default"])
    call_id: str | None = Field(description="The caller's own id.")
    message_id: str | None = Field(description="The model message it came in.")
    parent: str | None = Field(description="The call whose tool made this call.")
    status: Literal["pending", "running", "completed", "error"] = Field(description="Where it is in its life.")
    waiting: Literal["permission", "input", "gate", "queue"] | None = Field(
        description="What it waits for, if anything."
    )
    arguments: dict[str, Any] | None = Field(description="The arguments as they were sent.")
    input: str | None = Field(description="The free-form input as it was sent.")
    result: ResultView | None = Field(description="What the tool gave back; a failed call may have one too.")
    error: ErrorView | None = Field(description="Why it failed, if it did.")
    metadata: dict[str, Any] | None = Field(description="The caller's own facts, given back.")
    principal: str = Field(description="Who owns it.", examples=["admin"])
    sandbox: dict[str, Any] | None = Field(description="The walls it ran behind, for tools that start processes.")
    created_at: str = Field(description="When it was accepted, RFC 3339 UTC.")
    started_at: str | None = Field(description="When the tool started.")
    ended_at: str | None = Field(description="When it ended.")
    duration_ms: float | None = Field(description="How long the tool ran, by the monotonic clock.")


class EventView(BaseModel):
    """Something that happened, in commit order."""

    seq: int = Field(description="The global sequence number: dense, in commit order.")
    type: str = Field(description="What happened.", examples=["call.completed"])
    call: str | None = Field(description="The call it is about.")
    session: str = Field(description="The session it happened in.")
    at: str = Field(description="When, RFC 3339 UTC.")
    data: dict[str, Any] | None = Field(description="What there is to say about it.")


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
    lane: str = Field(description="Whose turn it waits for: `workspace`, `session`, `server:{name}` or `none`.")
    timeout: float = Field(description="Seconds it may run unless the call says otherwise.")
    source: str = Field(description="Where it comes from.", examples=["builtin"])
    server: str | None = Field(description="The MCP server it comes from, if it does.")
    aliases: list[str] = Field(description="Other names it can be called by.")
    annotations: dict[str, Any] = Field(description="Hints for clients, as MCP has them.")
    owner: str | None = Field(description="Whose own it is; null is everybody's.")
    available: bool = Field(description="Whether it can be used now.")
    reason: str | None = Field(description="Why it cannot, if so.")


class ToolLineView(BaseModel):
    """As much of a tool as fits into a small context."""

    name: str = Field(description="What to put into `tool`.", examples=["read_file"])
    description: str = Field(description="What it does, written for a model.")


class SkippedView(BaseModel):
    """An operation that became no tool."""

    operation: str = Field(description="Its name, or its method and path.")
    reason: str = Field(description="Why, in one sentence.")


class ImportView(BaseModel):
    """What became of an API's operations."""

    data: list[ToolView] = Field(description="The tools made of it.")
    skipped: list[SkippedView] = Field(description="The operations that became none.")


class UnloadedView(BaseModel):
    """A file, or a tool in it, that cannot be used."""

    file: str = Field(description="The file's name, or the package's entry point.")
    reason: str = Field(description="Why.")


class ReloadView(BaseModel):
    """What the files of tools gave."""

    loaded: list[str] = Field(description="The tools that were found, by name.")
    failed: list[UnloadedView] = Field(description="What could not be used.")


class KeyView(BaseModel):
    """A key, without the token."""

    id: str = Field(description="The key's id.", examples=["key_0006437f8a1b2c3d4e5f6a7b"])
    principal: str = Field(description="Whose key it is.", examples=["ci"])
    name: str = Field(description="What it is for.")
    scopes: list[str] = Field(description="What it may do.", examples=[["calls:run", "calls:read"]])
    bounds: dict[str, Any] = Field(description="What it is bound to, besides its scopes.")
    created_at: str = Field(description="When it was made.")
    revoked_at: str | None = Field(description="When it was revoked, if it was.")


class NewKeyView(KeyView):
    """A key just made. The token is shown this once and never again."""

    token: str = Field(description="The token to send as `Authorization: Bearer …`.")


class SessionView(BaseModel):
    """The scope calls run in."""

    id: str = Field(description="Its name, unique for its principal.", examples=["feature-1"])
    principal: str = Field(description="Who owns it.", examples=["ci"])
    agent: str | None = Field(description="The agent's name.")
    model: str | None = Field(description="The model that uses the tools.")
    workspace: str | None = Field(description="The folder it works in; null is the service's own workspace.")
    approval: Literal["untrusted", "on-request", "never"] | None = Field(description="The approval preset.")
    rules: list[dict[str, Any]] = Field(description="Its permission rules, in order.")
    network_policy: dict[str, Any] | None = Field(description="Which hosts its tools may reach; secrets by name only.")
    profile: Profile | None = Field(description="Where its processes may write, if less than the operator lets them.")
    env: dict[str, Any] = Field(description="Environment of its processes; secrets by name only.")
    labels: dict[str, str] = Field(description="The caller's own facts.")
    created_at: str = Field(description="When it was made.")
    updated_at: str = Field(description="When it was last changed.")


class FileView(BaseModel):
    """An entry of a folder."""

    path: str = Field(description="From the workspace's root.", examples=["src/main.py"])
    type: Literal["file", "directory", "symlink", "other"] = Field(description="What it is; links are not followed.")
    size: int | None = Field(description="Bytes of a file.")
    modified: str | None = Field(description="When a file was changed last, RFC 3339 UTC.")
    etag: str | None = Field(description="The state of a file, for If-Match.")


class WrittenFileView(FileView):
    """A file that was put."""

    call: str = Field(description="The call that wrote it.")


class TerminalView(BaseModel):
    """A process that goes on in a session between calls."""

    id: int = Field(description="Its number in the session, which tools call session ID.", examples=[38214])
    call: str = Field(description="The call that started it.", examples=[CALL_ID])
    command: str = Field(description="What was started.")
    tty: bool = Field(description="Whether it has a terminal, and can be typed into.")
    sandbox: dict[str, Any] = Field(description="The walls around it.")
    opened_at: str = Field(description="When it was started.")
    used_at: str = Field(description="When a call last typed into it or asked after it.")
    exit_code: int | None = Field(description="How it ended, once it has; 128 and the number for a signal.")


class PlanView(BaseModel):
    """The plan of an agent."""

    explanation: str | None = Field(description="Why it was changed last, if that was said.")
    plan: list[dict[str, Any]] = Field(description="Its steps in order, each with `step` and `status`.")


class SecretView(BaseModel):
    """A secret, without its value."""

    name: str = Field(description="What it is used by.", examples=["MAIL_TOKEN"])
    is_global: bool = Field(alias="global", description="Whether it is everybody's.")
    domains: list[str] = Field(description="Hosts it may be sent to; none means no limit.")
    source: Literal["store", "config"] = Field(description="Whether it is kept here or comes with the configuration.")
    created_at: str | None = Field(description="When it was first kept; null for a configured one.")
    updated_at: str | None = Field(description="When its value was last replaced; null for a configured one.")


class NeedView(BaseModel):
    """What a call wants to do."""

    permission: str = Field(description="What kind of thing.", examples=["read"])
    pattern: str = Field(description="To what.", examples=["deploy/.env"])


class RuleView(NeedView):
    """What is to happen with what a call wants to do."""

    action: Literal["allow", "ask", "deny"] = Field(description="What happens.")


class AnswerView(BaseModel):
    """What somebody said to an ask."""

    decision: Literal["allow_once", "allow_always", "deny"] | None = Field(description="On a permission.")
    message: str | None = Field(description="What the person said to it.")
    rules: list[RuleView] = Field(description="The rules an `allow_always` made.")
    scope: Literal["session", "workspace", "global"] | None = Field(description="Where those rules count.")
    content: dict[str, Any] | None = Field(description="The answers to questions, by their ids.")
    action: Literal["decline", "cancel"] | None = Field(description="How questions were refused.")
    principal: str | None = Field(description="Whose key it came with; null when rules settled it.", examples=["ann"])
    key: str | None = Field(description="The id of that key.")


class AskView(BaseModel):
    """A question that waits for a person, or waited."""

    id: str = Field(description="The ask's id.", examples=[ASK_ID])
    kind: Literal["permission", "question", "elicitation"] = Field(description="What is asked for.")
    status: Literal["open", "answered", "expired"] = Field(description="Whether it can be answered.")
    call: str = Field(description="The call that waits for it.", examples=[CALL_ID])
    tool: str = Field(description="The tool of that call.", examples=["read_file"])
    session: str = Field(description="The session the call runs in.")
    principal: str = Field(description="Who owns the call.", examples=["ci"])
    needs: list[NeedView] = Field(description="What is to be allowed.")
    always: list[RuleView] = Field(description="The rules an `allow_always` makes unless it brings its own.")
    questions: list[dict[str, Any]] = Field(description="What is to be answered.")
    metadata: dict[str, Any] = Field(description="What the tool says about it.")
    answer: AnswerView | None = Field(description="What was said, if anything was.")
    reason: str | None = Field(description="Why it is over without an answer.")
    created_at: str = Field(description="When it was asked.")
    expires_at: str = Field(description="Until when it can be answered.")
    ended_at: str | None = Field(description="When it was answered, or over.")


class KeptRuleView(RuleView):
    """A rule that was written while the service ran."""

    id: str = Field(description="The rule's id.", examples=["rule_06605af302a1c45f08be77d2"])
    scope: Literal["session", "workspace", "global"] = Field(description="Where it counts.")
    session: str | None = Field(description="The session it counts in.")
    workspace: str | None = Field(description="The workspace it counts in; `default` is the service's own.")
    ask: str | None = Field(description="The ask whose answer made it.")
    principal: str = Field(description="For whose calls it counts; `*` is everybody.", examples=["ci"])
    created_by: str | None = Field(description="The id of the key that wrote it.")
    created_at: str = Field(description="When it was written.")


class TicketView(BaseModel):
    """A ticket just bought. It is shown this once."""

    ticket: str = Field(description="What to send as `?ticket=`, once.", examples=["tt_shown-this-once"])
    expires_at: str = Field(description="Until when it can be used.")


class ProbeView(BaseModel):
    """One thing that was tried from behind the walls."""

    name: str = Field(description="What was tried.", examples=["outside_write"])
    ok: bool = Field(description="Whether the walls held, or what must be possible is.")
    detail: str = Field(description="What happened, in one sentence.")


class TrialView(BaseModel):
    """A backend that was tried."""

    backend: Literal["bwrap", "landlock"] = Field(description="Which one.")
    ok: bool = Field(description="Whether it may be used.")
    reason: str | None = Field(description="Why it is not used.")
    said: str = Field(description="What its program said about it.")
    probes: list[ProbeView] = Field(description="Everything that was tried; empty when nothing could be.")
    duration_ms: float = Field(description="How long it took.")


class BwrapView(BaseModel):
    """The program bubblewrap."""

    path: str = Field(description="Where it is.")
    version: str = Field(description="What it says of itself.")


class SandboxView(BaseModel):
    """What stands around processes that models start. The fields from `requested` on are for admins."""

    backend: Literal["bwrap", "landlock", "none"] | None = Field(
        description="What makes the walls; null: nothing does, and no process is started."
    )
    reason: str = Field(description="Why it is this one.")
    profile: Profile = Field(description="Where processes may write; sessions can only narrow it.")
    network: Literal["none", "allowlist", "full"] = Field(
        description="What processes may reach; sessions can only narrow it."
    )
    degraded: bool = Field(description="Whether what lets only listed hosts through is weaker than it should be.")
    unprotected: list[str] = Field(description="What these walls do not keep out, one sentence each.")
    checked_at: str = Field(description="When the self-test was run.")
    requested: str = Field(default="", description="What the settings ask for.", examples=["auto"])
    uid: int | None = Field(default=None, description="Whom processes become; null: the service's own user.")
    limits: dict[str, int] = Field(default={}, description="Of a call (`memory`, `processes`) and of each process.")
    tried: list[TrialView] = Field(default=[], description="Every backend that was tried, with all probes.")
    landlock_abi: int = Field(default=0, description="The newest Landlock interface of this kernel; 0 without.")
    seccomp: bool = Field(default=False, description="Whether system calls can be filtered.")
    user_namespaces: bool | None = Field(
        default=None, description="Whether user namespaces can be entered; null: no walls are asked for."
    )
    bwrap: BwrapView | None = Field(default=None, description="Bubblewrap, if it is installed and walls are asked for.")


class HealthView(BaseModel):
    """How the service is."""

    status: Literal["ok"] = Field(description="It is alive.")
    version: str = Field(description="The service's version.")


class CheckView(BaseModel):
    """One thing that was looked at."""

    name: str = Field(
        description="`serving`, `store_writable`, `store_readable`, `room_for_calls`, `disk_space` or `sandbox`.",
        examples=["store_writable"],
    )
    ok: bool = Field(
        description="Whether it is as it should be. Little disk space or no sandbox does not make it unready."
    )
    message: str = Field(description="How it is, in one sentence.")


class ReadinessView(BaseModel):
    """Whether the service can take calls, and why not."""

    status: Literal["ok", "starting", "stopping", "unready"] = Field(description="`ok` when it can take calls.")
    checks: list[CheckView] | None = Field(
        default=None, description="What was looked at; told to keys that may read calls or metrics."
    )
