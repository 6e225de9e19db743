import pytest

from tests import needs
from tests.show.web.ask import ask
from tests.show.web.made import make_run

needs.skip_without_packages("starlette", "uvicorn", extra="web")

from steadyrl.show.web.app import create  # noqa: E402 # it needs the packages
from steadyrl.show.web.serve import Guard  # noqa: E402

TOKEN = "t0ken"


@pytest.fixture
def app(tmp_path):
    make_run(tmp_path / "a")
    return Guard(create(tmp_path), "127.0.0.1", 8765, TOKEN)


def test_nothing_is_shown_without_the_token(app):
    for address in ("/", "/run/a", "/run/a/curves", "/static/app.css", "/?token=wrong", "/?token="):
        answer = ask(app, address)
        assert (answer.status, "run" in answer.text) == (403, False), address


def test_the_token_of_the_address_becomes_a_cookie_that_scripts_cannot_read(app):
    answer = ask(app, f"/run/a?token={TOKEN}&x=1")
    assert (answer.status, answer.headers["location"]) == (303, "/run/a?x=1")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert ask(app, "/run/a", cookie=cookie.partition(";")[0]).status == 200


def test_a_redirect_stays_on_this_server(app):
    assert ask(app, f"//evil.example?token={TOKEN}").headers.get("location", "/").startswith("/")
    assert not ask(app, f"/\\evil.example?token={TOKEN}").headers["location"].startswith(("//", "/\\"))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "[::2]", "[:"])
def test_another_name_of_the_server_gets_nothing(app, host):
    assert ask(app, f"/?token={TOKEN}", host=host).status == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "[::1]:8765"])
def test_the_names_of_this_machine_are_served(app, host):
    assert ask(app, "/", host=host, cookie=f"steadyrl-8765={TOKEN}").status == 200


def test_another_origin_gets_nothing_even_with_the_token(app):
    known = {"cookie": f"steadyrl-8765={TOKEN}"}
    assert ask(app, "/run/a/curves", origin="http://evil.example", **known).status == 403
    assert ask(app, "/run/a/curves", origin="null", **known).status == 403
    assert ask(app, "/run/a/curves", origin="http://127.0.0.1:9999", **known).status == 403
    assert ask(app, "/run/a/curves", sec_fetch_site="cross-site", sec_fetch_mode="cors", **known).status == 403
    assert ask(app, "/doctor", "POST", b"x", origin="http://evil.example", **known).status == 403
    assert ask(app, "/run/a/curves", origin="http://127.0.0.1:8765", **known).status == 200


def test_without_a_token_other_names_and_origins_are_still_refused(tmp_path):
    make_run(tmp_path / "a")
    app = Guard(create(tmp_path), "127.0.0.1", 8765, "")
    assert ask(app, "/").status == 200
    assert ask(app, "/", host="evil.example").status == 421
    assert ask(app, "/", origin="http://evil.example").status == 403


def test_every_answer_forbids_scripts_of_others_and_frames(app):
    for address in ("/", f"/?token={TOKEN}", "/nowhere"):
        policy = ask(app, address).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


def test_a_cookie_that_is_none_is_no_token(app):
    assert ask(app, "/", cookie="\x00=;;=").status == 403


OTHERS = (
    'a={"x":1}', "a b=c", "a=b c", "a=b,c", "a=é", "é=a", 'a="x', 'a="x;y"', "a", "=", ";;", "a=b=c", "expires=x",
    "a=[]", "a=<>", "a=(x)", "a=@:/?", "a=\\x", "a=\x7f", "steadyrl-8766=no", "steadyrl-8765=no",
    "x-steadyrl-8765=no", "a=\tb",
)  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
def test_a_cookie_of_another_program_on_this_machine_locks_nobody_out(app, other):
    own = f"steadyrl-8765={TOKEN}"
    for cookie in (f"{other}; {own}", f"{own}; {other}", f"{other};{own};{other}"):
        assert ask(app, "/", cookie=cookie).status == 200, cookie
    assert ask(app, "/", cookie=other).status == 403


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "", "://", "é", "http://x]", "http://a:b:c", "//"])
def test_an_origin_that_is_none_gets_nothing(app, origin):
    assert ask(app, "/", origin=origin, cookie=f"steadyrl-8765={TOKEN}").status == 403


@pytest.mark.parametrize(
    ("address", "own"), [("0.0.0.0", "10.1.2.3"), ("::", "[fd00::1]"), ("::ffff:0.0.0.0", "10.1.2.3")]
)
def test_all_addresses_of_the_machine_are_served_if_all_are_listened_on(tmp_path, address, own):
    every, one = (Guard(create(tmp_path), where, 8765, "") for where in (address, "127.0.0.1"))
    assert (ask(every, "/", host=f"{own}:8765").status, ask(one, "/", host=f"{own}:8765").status) == (200, 421)
    assert ask(every, "/", host="evil.example:8765").status == 421


def test_the_name_that_was_given_for_the_address_is_served(tmp_path):
    app = Guard(create(tmp_path), "10.1.2.3", 8765, "", host="MyBox")
    assert [ask(app, "/", host=host).status for host in ("mybox:8765", "10.1.2.3:8765", "other:8765")] == [
        200,
        200,
        421,
    ]


def test_an_address_that_is_too_long_is_refused_with_and_without_a_token(tmp_path):
    for token in (TOKEN, ""):
        app = Guard(create(tmp_path), "127.0.0.1", 8765, token)
        for address in (f"/?q={'x' * 20_000}", f"/run/{'x' * 20_000}"):
            assert ask(app, address, cookie=f"steadyrl-8765={TOKEN}").status == 414
