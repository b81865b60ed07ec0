"""Tests of the dashboard in a real Django project, which serves it beside its admin."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from redbeat.management.schedule import Schedule
from tests.conftest import Make
from tests.deployments import Deployment
from tests.servers import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]

SETTINGS = """
import json
import os

SECRET_KEY = "x" * 50
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "testserver", "inner.example.com"]
INSTALLED_APPS = [f"django.contrib.{name}" for name in (
    "admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
STATIC_URL = "static/"
USE_TZ = True
ROOT_URLCONF = "mysite.urls"
WSGI_APPLICATION = "mysite.wsgi.application"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

CELERY_BROKER_URL = "memory://"
CELERY_REDBEAT_REDIS_URL = os.environ["REDIS_URL"]
globals().update(json.loads(os.environ.get("MORE_SETTINGS", "{}")))
"""

URLS = """
from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/redbeat/", include("redbeat.web.django")),
    path("admin/", admin.site.urls),
]
"""

CELERY = """
import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
app = Celery("mysite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""

ASGI = """
from django.core.asgi import get_asgi_application

application = get_asgi_application()
"""

FILL = """
from django.core.management import call_command
call_command("migrate", verbosity=0)

from django.contrib.auth.models import Permission, User
User.objects.create_superuser("boss", password="secret of boss")
User.objects.create_user("ann", password="secret of ann", is_staff=True)
User.objects.create_user("eve", password="secret of eve")
bob = User.objects.create_user("bob", password="secret of bob", is_staff=True)
bob.user_permissions.add(Permission.objects.get(codename="change_group"))
"""


class Project:
    """A Django project in a directory."""

    def __init__(self, directory: Path, redis_url: str) -> None:
        self.directory = directory
        self.environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "REDIS_URL": redis_url,
            "DJANGO_SETTINGS_MODULE": "mysite.settings",
        }
        files = {
            "__init__": "from .celery import app as celery_app\n",
            "settings": SETTINGS,
            "urls": URLS,
            "celery": CELERY,
            "asgi": ASGI,
            "wsgi": ASGI.replace("asgi", "wsgi"),
        }
        (directory / "mysite").mkdir()
        for name, text in files.items():
            (directory / "mysite" / f"{name}.py").write_text(text)
        self.run(FILL)

    def run(self, program: str, **environ: str) -> str:
        """Run a program with Django set up; return its output."""
        done = subprocess.run(
            [sys.executable, "-c", f"import django\ndjango.setup()\n{program}"],
            cwd=self.directory,
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def serve(self, *command: str) -> tuple[subprocess.Popen[bytes], str]:
        """Start a server, whose port is in place of PORT; return it and its URL."""
        port = free_port()
        server = subprocess.Popen(
            [sys.executable, "-m", *(part.replace("PORT", str(port)) for part in command)],
            cwd=self.directory,
            env=self.environ,
        )
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            try:
                return bool(httpx.get(f"{url}/admin/login/").status_code)
            except httpx.TransportError:
                return False

        wait_until(answers, 60, "an answer of the project")
        return server, url


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, deployment: Deployment) -> Project:
    return Project(tmp_path_factory.mktemp("django"), deployment.url)


@pytest.fixture(scope="module")
def url(project: Project) -> Iterator[str]:
    """The URL of the project, served by Django's own threaded server."""
    server, url = project.serve("django", "runserver", "--noreload", "127.0.0.1:PORT")
    yield url
    server.terminate()
    server.wait(10)


SignIn = Callable[[str], httpx.Client]


@pytest.fixture
def sign_in(url: str) -> Iterator[SignIn]:
    clients = []

    def sign_in(name: str) -> httpx.Client:
        clients.append(signed_in(url, name))
        return clients[-1]

    yield sign_in
    for client in clients:
        client.close()


def signed_in(url: str, name: str) -> httpx.Client:
    """A browser whose user has filled in the login form of the admin."""
    client = httpx.Client(base_url=url)
    page = client.get("/admin/login/").text
    (token,) = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    fields = {"username": name, "password": f"secret of {name}", "csrfmiddlewaretoken": token}
    assert client.post("/admin/login/", data={**fields, "next": "/admin/"}).status_code == 302
    return client


def token_in(page: str) -> dict[str, str]:
    found = re.search(r'name="csrf_token" value="([^"]+)"', page)
    return {"csrf_token": unescape(found[1])} if found else {}


PAUSE = "/admin/redbeat/entry/pause?name=orders"
PAUSE_API = "/admin/redbeat/api/entry/pause?name=orders"


@pytest.mark.usefixtures("schedule")
def test_a_stranger_must_sign_in(url: str, make: Make, schedule: Schedule) -> None:
    make("orders")
    for path in ("", "entry?name=orders", "timeline", "static/redbeat.css", "healthz", "login"):
        answer = httpx.get(f"{url}/admin/redbeat/{path}")
        assert answer.status_code == 302, path
        assert answer.headers["Location"].startswith("/admin/login/?next=/admin/redbeat/"), path
    answer = httpx.get(f"{url}/admin/redbeat/api/entries", auth=("boss", "secret of boss"))
    assert (answer.status_code, "orders" in answer.text) == (403, False)
    assert "not signed in" in answer.json()["error"]["message"]
    for path in ("login", "entry/pause?name=orders"):
        # What the standalone dashboard accepts, and what a proxy would send.
        answer = httpx.post(
            f"{url}/admin/redbeat/{path}",
            data={"token": "x"},
            headers={"Authorization": "Bearer x", "Remote-User": "boss", "X-Forwarded-User": "a"},
        )
        assert answer.status_code == 302
        assert answer.headers["Location"].startswith("/admin/login/")
    assert httpx.post(f"{url}{PAUSE_API}", json={}).status_code == 403
    assert schedule["orders"].enabled


def test_a_user_who_is_not_staff_is_refused(project: Project, url: str, make: Make) -> None:
    make("orders")
    # The admin's login refuses eve, so her session is from elsewhere.
    session = project.run(
        "from django.contrib.auth.models import User; from django.test import Client\n"
        "client = Client(); client.force_login(User.objects.get(username='eve'))\n"
        "print(client.cookies['sessionid'].value)"
    ).strip()
    for path in ("", "entry?name=orders", "api/entries"):
        answer = httpx.get(f"{url}/admin/redbeat/{path}", cookies={"sessionid": session})
        assert (answer.status_code, "orders" in answer.text) == (403, False)


def test_staff_may_look_but_not_change(sign_in: SignIn, make: Make, schedule: Schedule) -> None:
    make("orders")
    ann = sign_in("ann")
    page = ann.get("/admin/redbeat/")
    assert ">ann<" in page.text
    assert "read-only" in page.text
    entry = ann.get("/admin/redbeat/entry?name=orders")
    assert entry.status_code == 200
    assert "Pause" not in entry.text
    answer = ann.post(PAUSE, data={**token_in(page.text), **token_in(entry.text)})
    assert answer.status_code == 403
    assert "You may look at the schedule, but not change it." in answer.text
    answer = ann.post(PAUSE_API, json={})
    assert (answer.status_code, list(answer.json())) == (403, ["error"])
    for method in ("PUT", "PATCH", "DELETE"):
        answer = ann.request(method, "/admin/redbeat/api/entry?name=orders", json={"task": "t"})
        assert answer.status_code == 403
    assert schedule["orders"].enabled


def test_a_superuser_may_change(sign_in: SignIn, make: Make, schedule: Schedule) -> None:
    make("orders")
    boss = sign_in("boss")
    page = boss.get("/admin/redbeat/").text
    entry = boss.get("/admin/redbeat/entry?name=orders").text
    links = re.findall(r'(?:href|src|action|formaction)="(/[^"]*)"', page + entry)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("/admin/redbeat/")] == []
    assert "redbeat_web" in boss.cookies
    answer = boss.post(PAUSE, data={**token_in(entry), "note": "closed"})
    assert answer.status_code == 303
    assert answer.headers["Location"].startswith("/admin/redbeat/entry?name=orders")
    assert "Paused." in boss.get(answer.headers["Location"]).text
    status = schedule["orders"].status
    assert (status.note, (status.reason or "").endswith("by boss")) == ("closed", True)
    answer = boss.post(PAUSE_API.replace("pause", "resume"), json={})
    assert answer.status_code == 200
    assert schedule["orders"].enabled
    path = "/admin/redbeat/api/entry?name=l%C3%A9%2Fon%20%26"
    assert boss.put(path, json={"task": "t", "every": "5m"}).status_code == 201
    assert schedule["lé/on &"].task == "t"
    assert boss.delete(path).status_code == 204


def test_pages_styles_and_timeline_load(sign_in: SignIn, make: Make) -> None:
    make("orders")
    ann = sign_in("ann")
    for path in ("timeline", "beats", "entry?name=orders", "readyz", "api/openapi.json"):
        answer = ann.get(f"/admin/redbeat/{path}")
        assert answer.status_code in (200, 503), path
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer.headers["Cache-Control"] == "no-store"
    (server,) = ann.get("/admin/redbeat/api/openapi.json").json()["servers"]
    assert server == {"url": "/admin/redbeat/api"}
    for name in ("redbeat.css", "charts.css", "redbeat.js", "icon.svg"):
        answer = ann.get(f"/admin/redbeat/static/{name}")
        assert (answer.status_code, len(answer.content) > 100) == (200, True)
    etag = answer.headers["ETag"]
    again = ann.get("/admin/redbeat/static/icon.svg", headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert ann.head("/admin/redbeat/").content == b""
    assert ann.get("/admin/redbeat/nothing").status_code == 404
    assert ann.get("/admin/redbeat/static/../../etc/passwd").status_code == 404


def test_requests_of_other_sites_are_refused(
    sign_in: SignIn, make: Make, schedule: Schedule
) -> None:
    make("orders")
    boss = sign_in("boss")
    boss.get("/admin/redbeat/entry?name=orders")
    other = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert boss.post(PAUSE, data={"note": "forged"}, headers=other).status_code == 400
    assert boss.post(PAUSE, data={"csrf_token": "guessed"}, headers=other).status_code == 400
    assert boss.post(PAUSE_API, json={}, headers=other).status_code == 403
    plain = {"Content-Type": "text/plain"}
    assert boss.post(PAUSE_API, content="{}", headers=plain).status_code == 415
    # A form's token belongs to one browser.
    entry = sign_in("boss").get("/admin/redbeat/entry?name=orders").text
    assert boss.post(PAUSE, data=token_in(entry)).status_code == 400
    assert schedule["orders"].enabled
    strange = boss.get("/admin/redbeat/", headers={"Host": "evil.example"})
    assert strange.status_code == 400
    assert "orders" not in strange.text


def test_the_admin_links_to_it(sign_in: SignIn) -> None:
    for name, word in (("ann", "View"), ("boss", "Change")):
        index = sign_in(name).get("/admin/").text
        assert re.search(r'<a href="/admin/redbeat/"[^>]*>Schedule</a>', index)
        assert re.search(rf'<a href="/admin/redbeat/"[^>]*>{word}</a>', index)
    boss = sign_in("boss")
    assert "Schedule</a>" in boss.get("/admin/auth/user/").text, "the sidebar has it"
    assert boss.get("/admin/auth/").status_code == 200
    assert ">RedBeat" not in httpx.get(str(boss.base_url.join("/admin/login/"))).text


@pytest.mark.long
def test_asgi(project: Project, make: Make, schedule: Schedule) -> None:
    make("orders")
    server, url = project.serve("uvicorn", "mysite.asgi:application", "--port", "PORT")
    try:
        with closing(signed_in(url, "boss")) as boss:
            entry = boss.get("/admin/redbeat/entry?name=orders").text
            assert boss.post(PAUSE, data=token_in(entry)).status_code == 303
            assert not schedule["orders"].enabled
            assert boss.post(PAUSE_API.replace("pause", "resume"), json={}).status_code == 200
            assert boss.get("/admin/redbeat/static/redbeat.css").status_code == 200
    finally:
        server.terminate()
        server.wait(10)


# -- with Django's test client ---------------------------------------------------------------------

#: Calls the dashboard with Django's test client, in another thread than the one with the app.
ASK = """
import sys
from concurrent.futures import ThreadPoolExecutor
from django.contrib.auth.models import User
from django.test import Client

def ask(name, path, method="get", **how):
    client = Client()
    if name:
        client.force_login(User.objects.get(username=name))
    return getattr(client, method)(path, **how)

def code(*args, **how):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask, *args, **how).result().status_code

def problem(*args, **how):
    try:
        ask(*args, **how)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

JSON = {"method": "post", "content_type": "application/json"}
"""


def ask(project: Project, program: str, urls: str = URLS, **settings: Any) -> list[str]:
    """Run a program with other URLs and settings; return the lines that it prints."""
    name = f"urls_{len(list((project.directory / 'mysite').glob('urls_*')))}"
    (project.directory / "mysite" / f"{name}.py").write_text(urls)
    more = json.dumps({"ROOT_URLCONF": f"mysite.{name}", **settings})
    return project.run(ASK + program, MORE_SETTINGS=more).splitlines()


def test_settings_name_the_permissions(project: Project, make: Make, schedule: Schedule) -> None:
    make("orders")
    program = """
for user in ("ann", "bob", "boss", "eve"):
    print(user, code(user, "/admin/redbeat/"), code(user, PAUSE, data="{}", **JSON))
print("Schedule</a>" in ask("ann", "/admin/").text, "Schedule</a>" in ask("bob", "/admin/").text)
"""
    program = f"PAUSE = {PAUSE_API!r}\n{program}"
    change, view = "auth.change_group", "auth.view_user"
    assert ask(project, program, REDBEAT_WEB_CHANGE_PERMISSION=change) == [
        *("ann 200 403", "bob 200 200", "boss 200 200", "eve 403 403", "True True")
    ]
    assert not schedule["orders"].enabled
    assert ask(
        project,
        program,
        REDBEAT_WEB_CHANGE_PERMISSION=change,
        REDBEAT_WEB_VIEW_PERMISSION=view,
    ) == ["ann 403 403", "bob 200 200", "boss 200 200", "eve 403 403", "False True"]
    (text,) = ask(
        project,
        'print(problem("ann", "/admin/redbeat/"))',
        REDBEAT_WEB_CHANGE_PERMISSION="change_group",
    )
    assert text == (
        "ImproperlyConfigured: REDBEAT_WEB_CHANGE_PERMISSION is 'change_group', it must be a "
        "permission such as 'reports.change_report'"
    )


@pytest.mark.long
def test_another_path_and_no_admin(project: Project, make: Make, schedule: Schedule) -> None:
    make("orders")
    urls = """
from django.urls import include, path

urlpatterns = [path("ops/", include([path("schedule/", include("redbeat.web.django"))]))]
"""
    program = """
import re
answer = ask(None, "/ops/schedule/timeline?hours=24")
print(answer.status_code, answer["Location"])
page = ask("boss", "/ops/schedule/entry?name=orders", secure=True).text
links = set(re.findall(r'(?:href|src|action)="(/[^"]*)"', page))
print(len(links) > 5, [link for link in links if not link.startswith("/app/ops/schedule/")])

client = Client(enforce_csrf_checks=True)
client.force_login(User.objects.get(username="boss"))
page = client.get("/ops/schedule/entry?name=orders", secure=True)
print(page.cookies["redbeat_web"]["secure"], page.cookies["redbeat_web"]["samesite"])
token = re.search(r'name="csrf_token" value="([^"]+)"', page.text)[1]
for referrer in ("http://evil.example/", "https://inner.example.com/ops/schedule/"):
    answer = client.post("/ops/schedule/entry/pause?name=orders", {"csrf_token": token},
        secure=True, headers={"Referer": referrer, "Host": "inner.example.com"})
    print(answer.status_code)
print(answer["Location"])
"""
    program = program.replace('/entry/pause?name=orders", {', '/entry/pause?name=orders", data={')
    installed = [f"django.contrib.{name}" for name in ("auth", "contenttypes", "sessions")]
    lines = ask(
        project,
        program,
        urls,
        INSTALLED_APPS=installed,
        LOGIN_URL="/sign-in/",
        FORCE_SCRIPT_NAME="/app",
    )
    assert lines == [
        "302 /sign-in/?next=/app/ops/schedule/timeline%3Fhours%3D24",
        "True []",
        "True Strict",
        "400",
        "303",
        "/app/ops/schedule/entry?name=orders",
    ]
    assert not schedule["orders"].enabled


def test_an_admin_that_takes_its_path(project: Project) -> None:
    first, second = re.findall(r"    path.*\n", URLS)
    urls = URLS.replace(first + second, second + first)
    (text,) = ask(project, 'print(problem("boss", "/admin/"))', urls)
    assert text == (
        "ImproperlyConfigured: Another path in front of the dashboard's takes /admin/redbeat/: in "
        'urlpatterns, put include("redbeat.web.django") before admin.site.urls'
    )


@pytest.mark.long
def test_an_admin_without_it(project: Project) -> None:
    urls = URLS.replace('path("admin/redbeat/", include("redbeat.web.django")),', "")
    program = "import redbeat.web.django; print(code('boss', '/admin/'))"
    assert ask(project, program, urls) == ["200"]


@pytest.mark.long
def test_the_celery_app_of_the_project(project: Project, make: Make) -> None:
    make("orders")
    program = """
from celery import Celery, _state, current_app
from redbeat.web.django import celery_app

print(celery_app().main, code("ann", "/admin/redbeat/entry?name=orders"))
other = Celery("other")
print(current_app.main, celery_app().main, code("ann", "/admin/redbeat/entry?name=orders"))
other.set_default()
print(celery_app().main)
for nothing in (None, Celery("default")):
    _state.set_default_app(nothing)
    print(problem("ann", "/admin/redbeat/"))
"""
    *found, none, bare = ask(project, program)
    assert found == ["mysite 200", "other mysite 200", "other"]
    assert none == bare
    assert none == (
        "ImproperlyConfigured: The dashboard found no Celery app: import it when Django starts, "
        "with 'from .celery import app as celery_app' in the project's __init__.py"
    )


@pytest.mark.long
def test_what_is_missing_is_said(project: Project) -> None:
    middleware = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
    ]
    program = 'print(problem(None, "/admin/redbeat/"))'
    assert ask(
        project, program, URLS, MIDDLEWARE=middleware, SILENCED_SYSTEM_CHECKS=["admin.E408"]
    ) == [
        (
            "ImproperlyConfigured: The dashboard needs to know the user: add "
            "AuthenticationMiddleware to MIDDLEWARE"
        )
    ]
    program = """
import sys
sys.modules["flask_wtf.csrf"] = None
try:
    import redbeat.web.django
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""
    assert ask(project, program) == [
        (
            "ImproperlyConfigured: flask_wtf.csrf is missing; install it with: pip install "
            "'celery-redbeat[web]'"
        )
    ]
