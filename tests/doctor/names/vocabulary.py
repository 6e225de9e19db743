"""The names of docs/doctor/quantities.md: of quantities, of families of them, and of settings."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "doctor" / "quantities.md"
VOCABULARY = frozenset(re.findall(r"^\| `([\w/]+)` \|", PAGE.read_text(), re.MULTILINE))
