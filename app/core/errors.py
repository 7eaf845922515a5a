"""Every way a call can end badly, drawn as one tree.

    CallError                an answer: the model reads it and may try again
    ├── UnknownTool          no tool of that name is registered
    ├── ToolUnavailable      the tool exists, but cannot run now
    ├── InvalidArgs          the arguments do not fit the tool's schema
    ├── PermissionDenied     a rule or a person said no
    │   └── DoomLoop         no to the same call with the same result again and again
    ├── AskExpired           nobody answered in time
    ├── Declined             a person would not answer
    ├── HookDenied           a hook said no
    ├── OutsideWorkspace     the path leads out of the session's workspace
    ├── BinaryFile           the file is not text
    ├── PatchMismatch        a patch does not fit the files it is for
    ├── EditMismatch         the text to be replaced is not there, or not only once
    ├── FileFailed           the file system said no: ENOENT, EACCES, EISDIR …
    ├── SandboxUnavailable   nothing here keeps a process inside its walls, so none is started
    ├── ResourceLimit        a process took more memory or started more processes than it may
    ├── TooLarge             more than the tool may take or give
    ├── ProgramFailed        a program ended with a code that is no success: ExitCode:N
    ├── HttpFailed           a service answered with a status that is no success: HttpStatus:N
    ├── NetworkError         a service cannot be reached, or may not be
    │   ├── NetworkTimeout   it did not answer in time
    │   └── DNSError         its name has no address
    ├── McpFailed            an MCP server says that a call failed: McpError
    ├── McpDisconnected      the connection to an MCP server ended while it had the call
    ├── TimedOut             the tool did not finish in its time
    ├── Overloaded           no room within the waiting time
    ├── Canceled             somebody stopped the call
    ├── Interrupted          the service ended while the call was running
    └── Internal             our own bug; the log has the details

    Refusal                  not an answer: there was no room for the call, nothing was recorded
    ├── TooManyCalls         the key has as many calls under way, or made in a minute, as it may have
    └── TooBusy              the service has; its code is `Overloaded`

    StoreError               not an answer: the memory itself failed, nothing was accepted
    ├── StoreUnavailable     full disk, I/O error, locked database
    ├── VaultLocked          the key file of the secrets is missing, broken or open to others
    ├── SealBroken           what is sealed was changed, or sealed with another key
    └── SchemaTooNew         the database belongs to a newer Toolcrib

    Misconfigured            not an answer either: a setting cannot be followed, and the service does not start

Any other exception that leaves a tool is our own bug: it is logged and the
call ends `Internal`. Codes are locale-free; each message is one sentence the
model can act on.
"""

import errno
import os
from typing import Any, ClassVar

from app.core.results import Result


class CallError(Exception):
    """A way for a call to end. `result` carries what output there was."""

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
    """The file system's own answer; the code is the errno's name."""

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
    """The code tells how the program ended; the result has what it said."""

    def __init__(self, status: int, message: str, *, result: Result | None = None) -> None:
        super().__init__(message, details={"exit_code": status}, result=result)
        self.code = f"ExitCode:{status}"


class HttpFailed(CallError):
    """The code tells the status; 408, 429 and 5xx may be tried again."""

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
    """A call was not let in. Nothing is recorded of it; the same request may come again after so many seconds."""

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
    """The memory failed; whatever was asked of it did not happen."""


class StoreUnavailable(StoreError):
    pass


class VaultLocked(StoreError):
    pass


class SealBroken(StoreError):
    pass


class SchemaTooNew(StoreError):
    pass


class Misconfigured(Exception):
    """A setting that cannot be followed; the sentence says what to do."""
