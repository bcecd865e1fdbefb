"""`longlag play`: the next port if one is in use, the address where no browser is, and who may ask."""

import http.client
import json
import socket
from threading import Thread

import pytest
from typer.testing import CliRunner

from longlag.cli import app
from longlag.play import Playground

TYPED = '@cell(gates="a")\ndef mine(a):\n    return tanh(a)'


@pytest.fixture(scope="module")
def server():
    with Playground(0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def post(server, body, **headers):
    own = {"Origin": server.address.rstrip("/")} | headers
    status, text = ask(server, "POST", "/cell", body, **own)
    return status, json.loads(text)


def test_a_port_in_use_is_passed_over():
    with Playground(0) as first, Playground(first.server_port) as second:
        assert first.server_port < second.server_port <= first.server_port + 20


def test_a_port_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"Playground: port must be an int of 0\.\.65535, got 70000"):
        Playground(70000)


def test_the_server_listens_on_loopback_only(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.socket.family == socket.AF_INET


def test_a_cell_is_answered_with_its_code_or_the_message(server):
    status, told = post(server, TYPED)
    assert status == 200
    assert "export function step" in told["source"]
    status, told = post(server, "nonsense")
    assert (status, list(told)) == (200, ["error"])
    assert told["error"].startswith("from_text: text must be @cell")


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://example.com"}, {"Origin": "null"}, {"Host": "example.com"}], ids=str
)
def test_other_sites_are_refused(server, headers):
    status, told = post(server, TYPED, **headers)
    assert status == 403
    assert "own page" in told["error"]


def test_requests_without_an_origin_may_read_and_not_post(server):
    assert ask(server, "GET", "/")[0] == 200
    assert ask(server, "POST", "/cell", TYPED)[0] == 403


@pytest.mark.parametrize(("size", "status"), [(20_000, 200), (20_001, 413)])
def test_long_texts_are_refused(server, size, status):
    assert post(server, "x" * size)[0] == status


@pytest.mark.parametrize(("method", "path"), [("GET", "/../pyproject.toml"), ("GET", "/cell"), ("POST", "/")])
def test_there_is_nothing_else(server, method, path):
    assert ask(server, method, path, "", Origin=server.address.rstrip("/"))[0] == 404


@pytest.mark.parametrize(("error", "printed"), [(ConnectionResetError(), False), (RuntimeError("broken"), True)])
def test_a_browser_that_closes_its_connection_is_no_error(server, capsys, error, printed):
    try:
        raise error
    except Exception:
        server.handle_error(None, ("127.0.0.1", 1))
    assert ("Traceback" in capsys.readouterr().err) is printed


def play(monkeypatch, browser, *options):
    """What the command prints, with a browser that opens or not, ended by Control-C."""
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or browser)

    def stop(server):
        raise KeyboardInterrupt

    monkeypatch.setattr(Playground, "serve_forever", stop)
    return CliRunner().invoke(app, ["play", "--port", "0", *options], prog_name="longlag"), opened


def test_the_command_opens_a_browser_and_says_where(monkeypatch):
    done, opened = play(monkeypatch, True)
    assert len(opened) == 1
    assert done.stdout == f"the playground is at {opened[0]} (Control-C ends it)\n"
    assert "the playground is closed" in done.stderr


def test_without_a_browser_the_address_is_printed(monkeypatch):
    done, opened = play(monkeypatch, False)
    assert f"no browser found: open {opened[0]} in one" in done.stdout
    done, opened = play(monkeypatch, True, "--no-browser")
    assert opened == []
    assert "the playground is at http://127.0.0.1:" in done.stdout
