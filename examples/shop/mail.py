"""A stand-in for a mail service: it keeps one mail for each message id, in the folder of SHOP_OUTBOX."""

from __future__ import annotations

import os
from pathlib import Path


def send(message_id: str, *, to: str, text: str) -> None:
    """Send a mail. The same id again is the same mail."""
    outbox = Path(os.environ.get("SHOP_OUTBOX", "outbox"))
    outbox.mkdir(exist_ok=True)
    (outbox / f"{message_id}.txt").write_text(f"To: {to}\n\n{text}\n", encoding="utf-8")
