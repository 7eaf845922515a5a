"""Pydantic models of requests and responses, for the OpenAPI document and for typed clients.

`examples.json` has an example of each by its name; `openapi.py` puts them into the document.
"""

import json
import pkgutil
from typing import Any

EXAMPLES: dict[str, Any] = json.loads(pkgutil.get_data(__name__, "examples.json") or b"{}")
CALL_ID: str = EXAMPLES["CallView"]["id"]
ASK_ID: str = EXAMPLES["AskView"]["id"]
