import sys

import pytest


@pytest.fixture
def users_module(tmp_path, monkeypatch):
    """Write a module of a user's rewards; return what writes it."""

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return name

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]
