"""The tree of all errors.

    CallError                ends a call: the model reads it and may try again
    ├── UnknownTool          no tool of that name is registered
    ├── ToolUnavailable      the tool exists, but cannot run now
    ├── InvalidArgs          the arguments do not fit the tool's schema
    ├── PermissionDenied     a rule or a person denied it
    │   └── DoomLoop         the same call with the same result was repeated too often
    ├── AskExpired           no person answered in time
    ├── Declined             a person declined to answer
    ├── HookDenied           a hook denied it
    ├── OutsideWorkspace     the path is outside the session's workspace
    ├── BinaryFile           the file is not text
    ├── PatchMismatch        a patch does not match its files
    ├── EditMismatch         the text to replace was not found, or not only once
    ├── FileFailed           an error of the file system: ENOENT, EACCES, EISDIR …
    ├── SandboxUnavailable   no sandbox backend works, so no process is started
    ├── ResourceLimit        a process exceeded its memory or process limit
    ├── TooLarge             input or output exceeds a limit
    ├── ProgramFailed        a program failed: ExitCode:N
    ├── HttpFailed           an HTTP request failed: HttpStatus:N
    ├── NetworkError         a host cannot be reached, or is not allowed
    │   ├── NetworkTimeout   the host did not respond in time
    │   └── DNSError         the host name has no address
    ├── McpFailed            an MCP server reports that a call failed: McpError
    ├── McpDisconnected      the connection to an MCP server ended during the call
    ├── TimedOut             the tool exceeded its timeout
    ├── Overloaded           no capacity within the queue timeout
    ├── Canceled             a client canceled the call
    ├── Interrupted          the service stopped while the call was running
    └── Internal             a bug of the service; the log has the details

    Refusal                  not a result: the call was not accepted, nothing was stored
    ├── TooManyCalls         the key has reached its limit of calls
    ├── TooBusy              the service has; the code is `Overloaded`
    ├── Stopping             the service is shutting down
    └── NotRecorded          the call could not be stored

    StoreError               not a result: the database failed, nothing was accepted
    ├── StoreUnavailable     full disk, I/O error, locked database
    ├── VaultLocked          the key file of the secrets is missing, invalid or accessible to other users
    ├── SealBroken           encrypted data was changed, or encrypted with another key
    └── SchemaTooNew         the database belongs to a newer Toolcrib

    Misconfigured            a setting is invalid, and the service does not start

Any other exception of a tool is a bug: it is logged and the call ends with
`Internal`. Codes are locale-free; each message is one sentence the model can act on.
"""

import errno
import os
from typing import Any, ClassVar

from app.core.results import Result


class CallError(Exception):
    """An error that ends a call. `result` has the output up to then."""

    code: str = "Internal"
    retryable: bool = False

    def __init__(self, message: str, *, details: dict[str, Any] | None = None, result: Result | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.result = result

    def as_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"code": self.code, "message": self.message, "retryable": self.retryable}
        return body | {"details": self.details} if self.details else body


class UnknownTool(CallError):
    code = "UnknownTool"


class ToolUnavailable(CallError):
    code = "ToolUnavailable"
    retryable = True


class InvalidArgs(CallError):
    code = "InvalidArgs"


class PermissionDenied(CallError):
    code = "PermissionDenied"


class DoomLoop(PermissionDenied):
    code = "DoomLoop"


class AskExpired(CallError):
    code = "AskExpired"


class Declined(CallError):
    code = "Declined"


class HookDenied(CallError):
    code = "HookDenied"


class OutsideWorkspace(CallError):
    code = "OutsideWorkspace"


class BinaryFile(CallError):
    code = "BinaryFile"


class PatchMismatch(CallError):
    code = "PatchMismatch"


class EditMismatch(CallError):
    code = "EditMismatch"


class FileFailed(CallError):
    """An error of the file system; the code is the name of the errno."""

    def __init__(self, number: int, path: str, message: str | None = None) -> None:
        super().__init__(message or f"{path}: {os.strerror(number)}.", details={"path": path})
        self.code = errno.errorcode.get(number, f"E{number}")


class SandboxUnavailable(CallError):
    code = "SandboxUnavailable"


class ResourceLimit(CallError):
    code = "ResourceLimit"


class TooLarge(CallError):
    code = "TooLarge"


class ProgramFailed(CallError):
    """The code has the exit status; the result has the output."""

    def __init__(self, status: int, message: str, *, result: Result | None = None) -> None:
        super().__init__(message, details={"exit_code": status}, result=result)
        self.code = f"ExitCode:{status}"


class HttpFailed(CallError):
    """The code has the status; 408, 429 and 5xx may be retried."""

    def __init__(self, status: int, message: str, *, result: Result | None = None) -> None:
        super().__init__(message, details={"status": status}, result=result)
        self.code = f"HttpStatus:{status}"
        self.retryable = status in (408, 429) or status >= 500


class NetworkError(CallError):
    code = "NetworkError"
    retryable = True


class NetworkTimeout(NetworkError):
    code = "NetworkTimeout"


class DNSError(NetworkError):
    code = "DNSError"


class McpFailed(CallError):
    code = "McpError"


class McpDisconnected(CallError):
    code = "McpDisconnected"


class TimedOut(CallError):
    code = "Timeout"
    retryable = True


class Overloaded(CallError):
    code = "Overloaded"
    retryable = True


class Canceled(CallError):
    code = "Canceled"


class Interrupted(CallError):
    code = "Interrupted"


class Internal(CallError):
    code = "Internal"


class Refusal(Exception):
    """A call was not accepted and not stored; the client may retry after `retry_after` seconds."""

    code: ClassVar[str]

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyCalls(Refusal):
    code = "TooManyCalls"


class TooBusy(Refusal):
    code = "Overloaded"


class Stopping(Refusal):
    code = "Stopping"


class NotRecorded(Refusal):
    code = "NotRecorded"


class StoreError(Exception):
    """The database failed; the operation did not happen."""


class StoreUnavailable(StoreError):
    pass


class VaultLocked(StoreError):
    pass


class SealBroken(StoreError):
    pass


class SchemaTooNew(StoreError):
    pass


class Misconfigured(Exception):
    """An invalid setting; the message says what to do."""
