"""Examples for the OpenAPI document: one call and what belongs to it, as the service would show them."""

from typing import Any

CALL_ID = "call_06605af1f1f7394295dc6875"

RESULT: dict[str, Any] = {
    "title": "hello.txt",
    "output": "L1: Hello from your Toolcrib workspace.\nL2: Agents see this folder and nothing outside it.",
    "metadata": {"lines": 2, "has_more": False, "truncated": False, "original_size": 90, "truncated_size": 90},
    "attachments": [],
    "structured": None,
}
ERROR: dict[str, Any] = {
    "code": "ENOENT",
    "message": "helo.txt does not exist. Did you mean hello.txt?",
    "retryable": False,
    "details": {"path": "helo.txt"},
}
ATTACHMENT: dict[str, Any] = {
    "type": "file",
    "mime": "image/png",
    "filename": "chart.png",
    "url": "data:image/png;base64,iVBORw0KGgo=",
}
CALL: dict[str, Any] = {
    "id": CALL_ID,
    "tool": "read_file",
    "session": "default",
    "call_id": "toolu_01",
    "message_id": "msg_01",
    "parent": None,
    "status": "completed",
    "waiting": None,
    "arguments": {"file_path": "hello.txt"},
    "input": None,
    "result": RESULT,
    "error": None,
    "metadata": None,
    "principal": "admin",
    "sandbox": None,
    "created_at": "2026-11-16T01:46:22.753593Z",
    "started_at": "2026-11-16T01:46:22.753593Z",
    "ended_at": "2026-11-16T01:46:22.756237Z",
    "duration_ms": 1.995,
}
POSTED_ERROR: dict[str, Any] = {"code": "ENOENT", "message": "There is no weather station in Atlantis."}
POSTED_RESULT: dict[str, Any] = {"output": "12 °C, rain", "structured": {"celsius": 12, "rain": True}}
EVENT: dict[str, Any] = {
    "seq": 3,
    "type": "call.completed",
    "call": CALL_ID,
    "session": "default",
    "at": "2026-11-16T01:46:22.756247Z",
    "data": {
        "tool": "read_file",
        "call_id": "toolu_01",
        "message_id": "msg_01",
        "result": RESULT,
        "error": None,
        "duration_ms": 1.995,
    },
}
TOOL: dict[str, Any] = {
    "name": "read_file",
    "title": "Read file",
    "description": "Read a text file.",
    "parameters": {"type": "object", "properties": {"file_path": {"type": "string"}}, "required": ["file_path"]},
    "output_schema": None,
    "takes": "arguments",
    "grammar": None,
    "effect": "read",
    "lane": "workspace",
    "timeout": 120.0,
    "source": "builtin",
    "server": None,
    "aliases": [],
    "annotations": {},
    "owner": None,
    "available": True,
    "reason": None,
}
RULE: dict[str, Any] = {"permission": "edit", "pattern": "*", "action": "ask"}
BOUNDS: dict[str, Any] = {
    "sessions": ["ci-*"],
    "tools": ["read_file", "mcp__docs__*"],
    "rules": [RULE],
    "calls_per_minute": 600,
}
NETWORK_POLICY: dict[str, Any] = {
    "type": "allowlist",
    "allowed_domains": ["packages.example.org", "*.github.com"],
    "domain_secrets": [{"domain": "api.example.com", "name": "API_KEY"}],
}
SESSION_REQUEST: dict[str, Any] = {
    "id": "feature-1",
    "agent": "builder",
    "rules": [RULE],
    "network_policy": {"type": "disabled"},
    "profile": "read-only",
    "env": {"LANG": "C.UTF-8"},
    "labels": {"team": "blue"},
}
SESSION: dict[str, Any] = {
    "id": "feature-1",
    "principal": "ci",
    "agent": "builder",
    "model": None,
    "workspace": "/var/lib/toolcrib/workspaces/ci/feature-1",
    "approval": None,
    "rules": [RULE],
    "network_policy": {"type": "disabled"},
    "profile": "read-only",
    "env": {"LANG": "C.UTF-8"},
    "labels": {"team": "blue"},
    "created_at": "2026-11-16T01:50:41.000000Z",
    "updated_at": "2026-11-16T01:50:41.000000Z",
}
SIZE: dict[str, Any] = {"rows": 40, "columns": 132}
TERMINAL: dict[str, Any] = {
    "id": 38214,
    "call": CALL_ID,
    "command": "npm run dev",
    "tty": True,
    "sandbox": {"backend": "bwrap", "profile": "workspace-write", "network": "none"},
    "opened_at": "2026-11-16T01:52:11.000000Z",
    "used_at": "2026-11-16T01:53:40.000000Z",
    "exit_code": None,
}
PLAN: dict[str, Any] = {"explanation": None, "plan": [{"step": "Read the tests", "status": "in_progress"}]}
TOOL_LINE: dict[str, Any] = {"name": "read_file", "description": "Read a text file."}
_CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
HTTP_TOOL: dict[str, Any] = {
    "kind": "http",
    "name": "get_weather",
    "description": "Tell the weather of a city.",
    "parameters": _CITY,
    "url": "https://api.example.com/weather/{city}",
    "headers": {"Authorization": {"secret": "WEATHER_TOKEN", "form": "bearer"}},
}
CLIENT_TOOL: dict[str, Any] = {
    "kind": "client",
    "name": "show_map",
    "description": "Show a city on the user's screen.",
    "parameters": _CITY,
}
IMPORT: dict[str, Any] = {
    "document": {
        "openapi": "3.1.0",
        "info": {"title": "Pets", "version": "1"},
        "servers": [{"url": "https://pets.example.com"}],
        "paths": {"/pets": {"get": {"operationId": "list_pets", "responses": {"200": {"description": "All pets."}}}}},
    },
    "prefix": "shop_",
    "exclude": ["delete*"],
}
SKIPPED: dict[str, Any] = {"operation": "uploadFile", "reason": "Its body is no JSON."}
IMPORTED: dict[str, Any] = {"data": [TOOL], "skipped": [SKIPPED]}
UNLOADED: dict[str, Any] = {"file": "weather.py", "reason": "SyntaxError: invalid syntax (weather.py, line 3)"}
RELOADED: dict[str, Any] = {"loaded": ["get_time"], "failed": [UNLOADED]}
KEY: dict[str, Any] = {
    "id": "key_06605b0157b4e805efe6d4af",
    "principal": "ci",
    "name": "nightly build",
    "scopes": ["calls:read", "calls:run"],
    "bounds": {
        "sessions": [],
        "workspaces": [],
        "tools": ["read_file", "mcp__docs__*"],
        "rules": [RULE],
        "approval": None,
        "on_ask": None,
        "calls_per_minute": 600,
        "concurrent_calls": None,
        "streams": None,
    },
    "created_at": "2026-11-16T01:50:41.000000Z",
    "revoked_at": None,
}
NEW_KEY: dict[str, Any] = KEY | {"token": "tk_shown-this-once"}
SECRET: dict[str, Any] = {
    "name": "MAIL_TOKEN",
    "global": False,
    "domains": ["api.example.com"],
    "source": "store",
    "created_at": "2026-11-16T01:52:03.118000Z",
    "updated_at": "2026-11-16T01:52:03.118000Z",
}
SECRET_REQUEST: dict[str, Any] = {"value": "never-shown-again", "domains": ["api.example.com"]}
ASK_ID = "ask_06605af1f1f8b1c07e3f5a19"
NEED: dict[str, Any] = {"permission": "read", "pattern": "deploy/.env"}
ALLOW_RULE: dict[str, Any] = {"permission": "read", "pattern": "deploy/*", "action": "allow"}
ANSWER: dict[str, Any] = {
    "decision": "allow_always",
    "message": None,
    "rules": [ALLOW_RULE],
    "scope": "session",
    "content": None,
    "action": None,
    "principal": "ann",
    "key": "key_06605b0157b4e805efe6d4af",
}
ASK: dict[str, Any] = {
    "id": ASK_ID,
    "kind": "permission",
    "status": "answered",
    "call": CALL_ID,
    "tool": "read_file",
    "session": "default",
    "principal": "ci",
    "needs": [NEED],
    "always": [NEED | {"action": "allow"}],
    "questions": [],
    "metadata": {},
    "answer": ANSWER,
    "reason": None,
    "created_at": "2026-11-16T01:46:22.781404Z",
    "expires_at": "2026-11-16T01:51:22.781404Z",
    "ended_at": "2026-11-16T01:46:40.230112Z",
}
DECISION: dict[str, Any] = {"decision": "allow_always", "rule": {"pattern": "deploy/*"}, "scope": "session"}
CONTENT: dict[str, Any] = {"content": {"colour": "Blue", "extras": ["Bells", "a whistle, but a small one"]}}
REFUSAL: dict[str, Any] = {"action": "decline", "message": "Please find that out yourself."}
RULE_REQUEST: dict[str, Any] = {"permission": "read", "pattern": "deploy/*", "action": "allow", "scope": "global"}
KEPT_RULE: dict[str, Any] = {
    "id": "rule_06605af302a1c45f08be77d2",
    **ALLOW_RULE,
    "scope": "session",
    "session": "default",
    "workspace": None,
    "ask": ASK_ID,
    "principal": "ci",
    "created_by": "key_06605b0157b4e805efe6d4af",
    "created_at": "2026-11-16T01:46:40.230112Z",
}
TICKET: dict[str, Any] = {"ticket": "tt_shown-this-once", "expires_at": "2026-11-16T01:51:11.000000Z"}
PROBE: dict[str, Any] = {"name": "tcp", "ok": False, "detail": "TCP gets out: tcp v4, tcp v6."}
TRIAL: dict[str, Any] = {
    "backend": "bwrap",
    "ok": False,
    "reason": "The backend bwrap does not work here: its process said nothing and ended with the code 1.",
    "said": "bwrap: No permissions to create new namespace",
    "probes": [],
    "duration_ms": 21.7,
}
BWRAP: dict[str, Any] = {"path": "/usr/bin/bwrap", "version": "bubblewrap 0.8.0"}
SANDBOX: dict[str, Any] = {
    "backend": "landlock",
    "reason": "The backend landlock passed its self-test.",
    "profile": "workspace-write",
    "network": "none",
    "degraded": False,
    "unprotected": ["Processes see the names and arguments of all processes on this machine."],
    "checked_at": "2026-11-16T01:50:41.000000Z",
    "requested": "auto",
    "uid": 61100,
    "limits": {"memory": 2147483648, "processes": 256, "FSIZE": 1073741824},
    "tried": [TRIAL],
    "landlock_abi": 7,
    "seccomp": True,
    "user_namespaces": False,
    "bwrap": BWRAP,
}
HEALTH: dict[str, Any] = {"status": "ok", "version": "0.1.0"}
CHECK: dict[str, Any] = {
    "name": "store_writable",
    "ok": False,
    "message": "The database cannot be written: database or disk is full.",
}
READINESS: dict[str, Any] = {
    "status": "unready",
    "checks": [
        {"name": "serving", "ok": True, "message": "The service takes calls."},
        CHECK,
        {"name": "store_readable", "ok": True, "message": "Records can be read."},
        {"name": "room_for_calls", "ok": True, "message": "3 of at most 4096 calls are under way."},
        {"name": "disk_space", "ok": False, "message": "0 MB are free where the records are kept."},
    ],
}
BATCH: dict[str, Any] = {
    "calls": [
        {"tool": "list_dir", "arguments": {"dir_path": "."}},
        {"tool": "read_file", "arguments": {"file_path": "hello.txt"}},
    ]
}
FILE: dict[str, Any] = {
    "path": "hello.txt",
    "type": "file",
    "size": 83,
    "modified": "2026-11-16T01:46:22.756247Z",
    "etag": "0f3a5b7c9d1e2f405162738495a6b7c8",
}
WRITTEN_FILE: dict[str, Any] = FILE | {"call": CALL_ID}
