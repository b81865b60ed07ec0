"""Mounts the dashboard as a view of a Django project, behind the login of that project.

Start the example with ``python -m examples.mounted_django``, and open
http://127.0.0.1:8000/schedule/. Your project needs only the view; the rest of this file is a small
example project.
"""

from __future__ import annotations

import os
from io import BytesIO
from typing import Any

import django
from celery import Celery
from django.conf import settings
from django.contrib.auth import authenticate, login
from django.contrib.auth.decorators import user_passes_test
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import re_path
from django.views.decorators.csrf import csrf_exempt
from waitress import serve  # type: ignore[import-untyped]
from werkzeug.wrappers import Response

from redbeat.web.site import dashboard, mounted

celery = Celery("proj", broker=os.environ.get("REDIS_URL", "redis://localhost"))
SECRET_KEY = os.environ.get("SECRET_KEY", "change me")

schedule = dashboard(celery, secret_key=SECRET_KEY)


# The dashboard has its own protection against forged requests.
@csrf_exempt
@user_passes_test(lambda user: user.is_staff, login_url="/login")
def serve_schedule(request: HttpRequest) -> HttpResponse:
    """Serve the dashboard to staff users."""
    environ = mounted(request.META, "/schedule", request.user.get_username())
    environ["wsgi.input"] = BytesIO(request.body)
    response = Response.from_app(schedule, environ, buffered=True)
    answer = HttpResponse(response.get_data(), status=response.status_code)
    for name, value in response.headers:
        if name == "Set-Cookie":
            answer.cookies.load(value)
        else:
            answer[name] = value
    return answer


# -- example project -------------------------------------------------------------------------------


@csrf_exempt
def sign_in(request: HttpRequest) -> HttpResponse:
    """Sign a user in."""
    user = authenticate(
        request, username=request.POST.get("name"), password=request.POST.get("password")
    )
    if user is None:
        return HttpResponse(
            '<form method="post"><input name="name"><input name="password"><button>'
        )
    login(request, user)
    return HttpResponseRedirect("/schedule/")


urlpatterns = [re_path("^schedule/", serve_schedule), re_path("^login$", sign_in)]


def project() -> Any:
    """Return the WSGI application of a project with the users ann and bob."""
    settings.configure(
        ALLOWED_HOSTS=["127.0.0.1"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": "file:x?mode=memory&cache=shared",
            }
        },
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.middleware.clickjacking.XFrameOptionsMiddleware",
        ],
        ROOT_URLCONF=__name__,
        SECRET_KEY=SECRET_KEY,
        SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    )
    django.setup()
    call_command("migrate", verbosity=0)
    from django.contrib.auth.models import User  # noqa: PLC0415 - needs the set-up

    User.objects.create_user("ann", password="secret of ann", is_staff=True)
    User.objects.create_user("bob", password="secret of bob")
    return get_wsgi_application()


if __name__ == "__main__":
    serve(project(), host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))
