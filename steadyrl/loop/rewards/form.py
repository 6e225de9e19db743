"""Which rewards look at the written form alone, never at what an answer finds or does."""

from __future__ import annotations

FORM_ONLY = frozenset({"length", "boolean_format", "structure"})
