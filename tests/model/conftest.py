"""The machine's own assertions tell what they compare, as those of tests do."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(*(f"tests.model.{name}" for name in ("checks", "machine", "people", "stage", "workers")))
