import logging

import pytest

from steadyrl.core.errors import ConfigError
from steadyrl.environments.code.sandbox import choose, jails, landlock
from steadyrl.environments.code.sandbox.choose import SandboxSettings, open_sandbox, probe
from steadyrl.environments.code.sandbox.jails import Limits
from steadyrl.environments.code.sandbox.outcome import Returned


@pytest.fixture
def no_jail(monkeypatch):
    monkeypatch.setattr(choose, "probe", lambda jail: "not on this machine")


def test_without_a_jail_code_is_refused_and_the_way_out_is_named(no_jail):
    with pytest.raises(ConfigError, match="bubblewrap: not on this machine; landlock: not on this machine") as error:
        open_sandbox(SandboxSettings())
    assert "allow_weak = true" in str(error.value)


def test_resource_limits_alone_must_be_asked_for_and_say_what_they_do_not_stop(no_jail, caplog):
    with caplog.at_level(logging.WARNING):
        pool = open_sandbox(SandboxSettings(allow_weak=True))
    with pool:
        assert pool.jail == "weak"
        assert pool.run("def f(x):\n    return x + 1", "f", [(1,)]).results == (Returned(2),)
        assert pool.run("def f(x):\n    return 'x' * 10**10", "f", [(1,)]).results[0].type_name == "MemoryError"
    for harm in jails.NOT_STOPPED["weak"]:
        assert harm in caplog.text


def test_the_best_jail_that_holds_is_taken(monkeypatch):
    monkeypatch.setattr(choose, "probe", lambda jail: "" if jail == "landlock" else "no")
    assert open_sandbox(SandboxSettings(allow_weak=True)).jail == "landlock"
    monkeypatch.setattr(choose, "probe", lambda jail: "")
    assert open_sandbox(SandboxSettings()).jail == "bubblewrap"
    assert open_sandbox(SandboxSettings(jail="landlock")).jail == "landlock"


def test_the_probe_finds_out_that_resource_limits_are_no_jail(monkeypatch):
    # Only what harms nobody is tried where nothing stops it.
    harmless = (
        choose._ESCAPES.replace("signal.SIGSTOP", "0").replace("os.fork()", "1").replace("os.execv(path, [path])", "1")
    )
    monkeypatch.setattr(choose, "_ESCAPES", harmless)
    found = probe.__wrapped__("weak")
    for way in ("read", "removed", "listed", "connected", "datagram", "signalled"):
        assert way in found


def test_landlock_is_asked_for_on_linux_only(monkeypatch):
    def called(*_):
        raise AssertionError("a raw system call")

    monkeypatch.setattr(landlock, "_call", called)
    monkeypatch.setattr(landlock.sys, "platform", "darwin")
    assert landlock.version() == 0
    assert jails.missing("landlock") == "the kernel offers no Landlock"


def test_a_jail_whose_program_is_missing_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert jails.missing("bubblewrap") == "bwrap is not installed"


def test_bubblewrap_is_started_from_where_it_was_found(tmp_path, monkeypatch):
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))  # which the environment of a worker does not have
    assert jails.missing("bubblewrap") == ""
    assert jails.command("bubblewrap", Limits(), 3)[0] == str(program)
