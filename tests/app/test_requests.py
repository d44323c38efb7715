"""Wrong, odd, large and foreign requests get a status of 4xx and one sentence."""

import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

import pynade
from pynade import app, datasets
from pynade.app.server import ASKED, PAGE, SENT

HUGE = [10**400, -(10**30), 1e308, "9" * 400, "1e999", "nan", "inf", "\0", "\ud800", "", "Gentoo", "ж" * 600]
scalars = st.none() | st.booleans() | st.integers(-3, 9000) | st.floats(allow_nan=False) | st.text(max_size=8)
scalars = scalars | st.sampled_from(HUGE)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
)
LIKELY = {
    "species": ["Gentoo", "Emperor"],
    "island": ["Dream"],
    "bill_length_mm": [44.4, "39.1", -5, 1e9],
    "year": [2007, "2008", 7],
}
LIKELY |= {
    "flipper_length_mm": [200, 190.5, 10**9, "180"],
    "sex": ["male"],
    "x3": [0, 1, 2],
    "x40": ["1"],
    "nobody": [1],
}
columns = st.sampled_from(sorted(LIKELY))
known = st.lists(columns, max_size=3).flatmap(
    lambda names: st.fixed_dictionaries({name: st.sampled_from(LIKELY[name]) | scalars for name in names})
)
PARTS = {  # usual and odd values of every argument
    "asked": st.lists(columns, min_size=1, max_size=2),
    "given": known,
    "n": st.integers(1, 30),
    "start": st.integers(0, 400),
    "lowest": st.booleans(),
    "seed": st.integers(0, 9),
    "row": st.none() | st.integers(-1, 2000),
    "hole": st.lists(st.integers(-1, 64), max_size=12),
}
TAKEN = {"conditional": ["asked", "given"], "spread": ["asked", "given"], "rows": ["start", "n", "lowest"]}
TAKEN |= {"samples": ["n", "given", "seed"], "image": ["row", "hole", "seed"]}


@st.composite
def questions(draw):
    """An endpoint and a body for it, in which one value in eight is odd."""
    name = draw(st.sampled_from(sorted(ASKED)))
    body = {key: draw(PARTS[key] if draw(st.integers(0, 7)) else values) for key in TAKEN[name]}
    return name, body | ({"other": 1} if draw(st.integers(0, 15)) == 0 else {})


cells = st.sampled_from(
    [
        "Gentoo",
        "Dream",
        "45.1",
        "15",
        "1e400",
        "2007",
        "",
        "?",
        "male",
        '"',
        '"a,b"',
        "x\r",
        "\0",
        "2007-13-45",
        "é",
    ]
)
USUAL = [
    ["Gentoo", "Adelie", "Emperor"],
    ["Dream", ""],
    ["45.1", "?"],
    ["15", "-3"],
    ["220", "9999999"],
    ["", "5000"],
    ["male"],
]
USUAL += [["2007", "1"]]
full = st.tuples(*(st.sampled_from(some) | cells for some in USUAL)).map(list)
tables = st.lists(full | st.lists(cells, min_size=1, max_size=9), min_size=1, max_size=4) | st.lists(
    full, min_size=1
)
OFTEN = settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def right_or_refused(answer):
    """An answer, or a refusal in one sentence."""
    found = json.loads(answer.text)
    if answer.status_code == 200:
        assert "error" not in found
        return
    assert 400 <= answer.status_code < 500, answer.text
    assert list(found) == ["error"]
    assert "\n" not in found["error"]
    assert "Traceback" not in found["error"]


def post(client, path, raw, kind="application/json"):
    return client.post(path, content=raw, headers={"content-type": kind})


@OFTEN
@given(questions())
@example(("conditional", {"asked": ["species"], "given": {"year": 10**400}}))
@example(("conditional", {"asked": ["species"], "given": {"sex": True}}))
def test_odd_questions(penguins, question):
    name, body = question
    right_or_refused(post(penguins, f"/api/{name}", json.dumps(body)))


@OFTEN
@given(questions())
def test_odd_questions_about_images(digits, question):
    name, body = question
    right_or_refused(post(digits, f"/api/{name}", json.dumps(body)))


@OFTEN
@given(
    st.sampled_from(sorted(SENT)),
    tables,
    st.booleans(),
    st.sampled_from(["", "", "", "?draws=2", "?draws=x", "?draws=99"]),
)
def test_odd_tables(penguins, name, rows, header, options):
    names = [",".join(datasets.penguins("polars").columns)] if header else []
    text = "\n".join([*names, *(",".join(row) for row in rows)])
    right_or_refused(post(penguins, f"/api/{name}{options}", text.encode(), "text/csv"))


@OFTEN
@given(
    st.sampled_from(sorted(SENT)),
    st.dictionaries(
        st.sampled_from(["rows", "columns", "x"]),
        values
        | st.lists(
            st.dictionaries(st.sampled_from(datasets.penguins("polars").columns), scalars, min_size=6),
            max_size=2,
        ),
        max_size=2,
    ),
)
def test_odd_json_tables(penguins, name, body):
    right_or_refused(post(penguins, f"/api/{name}", json.dumps(body)))


@OFTEN
@given(
    st.sampled_from(["/", "/api/conditional", "/api/score", "/api/model", "/nothing"]),
    st.binary(max_size=40),
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"]),
    st.sampled_from(["application/json", "text/csv", "x", ""]),
)
@example("/api/conditional", b"[" * 100_000, "POST", "application/json")
@example("/api/conditional", b'{"asked": NaN}', "POST", "application/json")
def test_odd_bytes_and_methods(penguins, path, raw, method, kind):
    answer = penguins.request(method, path, content=raw, headers={"content-type": kind})
    if method == "HEAD" or (path, method) == ("/", "GET"):
        assert answer.status_code < 500
    else:
        right_or_refused(answer)


def test_the_page_is_here_and_nothing_else(penguins):
    for path, (_, kind) in PAGE.items():
        answer = penguins.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in answer.text
    places = [
        "/../pyproject.toml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/page/index.html",
        "/static",
    ]
    for path in places:
        right_or_refused(answer := penguins.get(path))
        assert answer.status_code == 404


def test_headers_are_strict(penguins):
    for answer in (
        penguins.get("/"),
        penguins.get("/api/model"),
        penguins.get("/nothing"),
        post(penguins, "/api/rows", b"x"),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "[", "", "evil:127.0.0.1"]
)
def test_other_hosts_are_refused(penguins, host):
    answer = penguins.get("/api/model", headers={"host": host})
    assert answer.status_code in (400, 403)
    right_or_refused(answer)


@pytest.mark.parametrize("host", ["localhost:8350", "127.0.0.1", "[::1]:80"])
def test_names_of_loopback_are_answered(penguins, host):
    assert penguins.get("/api/model", headers={"host": host, "origin": f"http://{host}"}).status_code == 200


def test_pages_of_other_sites_are_refused(penguins):
    others = ({"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"})
    for headers in (*others, {"sec-fetch-site": "same-site"}):
        assert penguins.post("/api/rows", json={}, headers=headers).status_code == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        for path in ("/api/rows", "/api/score"):  # (the only kinds that a page may send without asking)
            assert post(penguins, path, b"{}", kind).status_code == 400
    assert penguins.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link to it


def test_a_token_is_needed_elsewhere(client, model):
    one = client("penguins", base_url="http://example.org", token="secret", hosts=None)
    for path in ("/", "/app.js", "/api/model", "/?token=wrong", "/api/model?token=secret"):
        assert one.get(path).status_code == 401
        assert (
            one.get(
                path, headers={"authorization": "Bearer wrong", "cookie": b"pynade_token=\xe9; \\a=;"}
            ).status_code
            == 401
        )
    assert one.get("/api/model", headers={"authorization": "Bearer secret"}).status_code == 200
    answer = one.get("/?token=secret")
    assert answer.headers["location"] == "/"
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "samesite=strict" in answer.headers["set-cookie"].lower()
    assert one.get("/api/model").status_code == 200  # by the cookie
    with pytest.raises(ValueError, match="needs a token"):
        app.create(model, hosts=None)


def test_limits(client, runs):
    one = client("penguins", limits=app.Limits(rows=3, bytes=2000))
    text = datasets.penguins("polars").head(5).write_csv().encode()
    assert "3 rows at most" in post(one, "/api/score", text, "text/csv").json()["error"]
    assert post(one, "/api/score", b"a" * 2001, "text/csv").status_code == 413

    def parts():
        yield from [b"a" * 1500] * 2

    assert one.post("/api/score", content=parts(), headers={"content-type": "text/csv"}).status_code == 413
    wide = client("penguins")
    assert post(wide, "/api/score", b"," * 20_000 + b"\n1", "text/csv").status_code == 413
    slow = client("penguins", limits=app.Limits(seconds=1e-9))
    answer = post(slow, "/api/score", text, "text/csv")
    assert answer.status_code == 413
    assert "at a time" in answer.json()["error"]
    found = slow.post("/api/rows", json={}).json()
    assert found["scored"] < 344  # as many as fit
    assert found["badge"]["text"] == "exact for 1 ordering"
    ours, rows = pynade.load(runs / "penguins"), datasets.penguins("polars")
    log_p = ours.score_samples(rows[[line["row"] for line in found["rows"]]], orderings=1)
    assert log_p == pytest.approx([line["log_prob"] for line in found["rows"]])
    assert (
        len(found["notes"]) == 2
    )  # neither the spread over orderings nor the surprise of cells is affordable
    assert all(line["spread"] is None and "surprise" not in line for line in found["rows"])
    assert "surprise" not in found["code"]
    assert "spread" not in found["code"]
    answer = slow.post("/api/conditional", json={"asked": ["species", "body_mass_g"]})
    assert answer.status_code == 413
    assert "ask about one" in answer.json()["error"]


def test_a_slow_or_broken_sender_holds_no_place(model):
    application = app.create(model, limits=app.Limits(seconds=0.2, concurrent=1, waiting=0))

    def post_without_end(after):
        """The status of a request whose body never comes, and what comes after its beginning."""
        sent, parts = [], [{"type": "http.request", "body": b"{", "more_body": True}, *after]

        async def receive():
            return parts.pop(0) if parts else await anyio.sleep_forever()

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/api/conditional", "query_string": b""}
        scope |= {"headers": [(b"host", b"localhost")], "http_version": "1.1"}
        anyio.run(application, scope, receive, send)
        return sent[0]["status"]

    assert post_without_end([]) == 408
    assert post_without_end([{"type": "http.disconnect"}]) == 400
    with TestClient(application, base_url="http://localhost") as one:
        assert one.post("/api/conditional", json={"asked": ["species"]}).status_code == 200


def test_too_many_requests_at_once_are_refused(model, monkeypatch):
    go, inside = threading.Event(), threading.Event()

    def wait(explorer, asked, given):
        inside.set()
        go.wait()
        return {}

    monkeypatch.setitem(ASKED, "conditional", wait)
    application = app.create(model, limits=app.Limits(concurrent=1, waiting=0))
    body, statuses = {"asked": ["species"], "given": {}}, []
    with TestClient(application, base_url="http://127.0.0.1") as one:

        def first():
            statuses.append(one.post("/api/conditional", json=body).status_code)

        thread = threading.Thread(target=first)
        thread.start()
        inside.wait()
        answer = one.post("/api/conditional", json=body)
        go.set()
        thread.join()
    assert statuses == [200]
    assert answer.status_code == 429
    right_or_refused(answer)


def test_the_command_refuses_in_one_sentence(tmp_path):
    code = "import sys; sys.modules['starlette'] = None; from pynade.cli.main import main; main()"
    words = [sys.executable, "-c", code, "explore"]
    done = subprocess.run([*words, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'pynade[app]'" in done.stderr
    assert "Traceback" not in done.stderr
    done = subprocess.run([*words, "--help"], capture_output=True, text=True, check=False)
    assert "pip install 'pynade[app]'" in done.stdout


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_command_serves_until_it_is_interrupted(runs, host):
    words = [sys.executable, "-m", "pynade.cli.main", "explore", str(runs / "penguins"), "--port", "0"]
    with subprocess.Popen([*words, "--host", host], stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().split()[0]
        assert ("?token=" in address) == (host == "0.0.0.0")
        page, _, token = address.partition("?token=")
        asked = urllib.request.Request(f"{page}api/model", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked) as answer:
            assert json.loads(answer.read())["model"] == "TabularNADE"
        if token:
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"{page}api/model")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
