"""The dashboard in a Django project: ``path("admin/redbeat/", include("redbeat.web.django"))``.

The project's own login and permissions decide who may use it. Requests go through Django to the
Flask application, in the same process.
"""

from __future__ import annotations

from functools import cache, wraps
from http.cookies import SimpleCookie
from io import BytesIO
from typing import Any

from celery import Celery, _state
from django.apps import apps
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, get_script_prefix, path, resolve, reverse
from django.utils.crypto import salted_hmac
from django.views.decorators.csrf import csrf_exempt

from redbeat.settings import CHANGE, VIEW

try:
    from werkzeug.wrappers import Response

    from .site import dashboard
except ImportError as error:
    raise ImproperlyConfigured(
        f"{error.name} is missing; install it with: pip install 'celery-redbeat[web]'"
    ) from error


def celery_app() -> Celery:
    """The project's Celery app: the first that was created, or one that called ``set_default()``.

    ``celery.current_app`` would be the last one in the thread that created it.
    """
    default = _state.default_app
    # Celery makes an app of this name when a program asks for one and has none.
    if default is None or default.main == "default":
        raise ImproperlyConfigured(
            "The dashboard found no Celery app: import it when Django starts, with "
            "'from .celery import app as celery_app' in the project's __init__.py"
        )
    return default


@cache
def site(app: Celery, secret: str, read_only: bool) -> Any:
    key = salted_hmac(__name__, "sessions", secret, algorithm="sha256").digest()
    return dashboard(app, key, read_only)


def has_permission(user: Any, setting: str, otherwise: bool) -> bool:
    """Whether the user has the permission named in ``setting``; ``otherwise`` if it is not set."""
    name = getattr(settings, setting, None)
    if name is None:
        return otherwise
    if not isinstance(name, str) or name.count(".") != 1:
        raise ImproperlyConfigured(
            f"{setting} is {name!r}, it must be a permission such as 'reports.change_report'"
        )
    return bool(user.has_perm(name))


def may_change(user: Any) -> bool:
    return user.is_active and user.is_staff and has_permission(user, CHANGE, user.is_superuser)


def may_view(user: Any) -> bool:
    return (
        user.is_active and user.is_staff and (has_permission(user, VIEW, True) or may_change(user))
    )


def login_url() -> str:
    """The admin's login, which every staff user knows, or the project's if it has no admin."""
    try:
        return str(resolve_url("admin:login"))
    except NoReverseMatch:
        return str(resolve_url(settings.LOGIN_URL))


def _bytes(text: str) -> str:
    """Encode a part of a URL as WSGI demands: each byte is a character."""
    return text.encode().decode("latin-1")


def environ_of(request: HttpRequest, below: str) -> dict[str, Any]:
    """The WSGI environment of a request for the path ``below`` the dashboard's own.

    The host and the scheme are those that Django has checked or has been told to trust. Also
    works under ASGI, whose requests have no WSGI environment.
    """
    return {
        **{name: value for name, value in request.META.items() if isinstance(value, str)},
        "SCRIPT_NAME": _bytes(request.path.removesuffix(below).rstrip("/")),
        "PATH_INFO": "/" + _bytes(below.lstrip("/")),
        "HTTP_HOST": request.get_host(),
        "CONTENT_LENGTH": str(len(request.body)),
        "wsgi.url_scheme": request.scheme,
        "wsgi.input": BytesIO(request.body),
        "REMOTE_USER": request.user.get_username() if may_view(request.user) else "",
    }


# The dashboard refuses forged requests itself: its forms have tokens of their own.
@csrf_exempt
def serve(request: HttpRequest, below: str = "") -> HttpResponse:
    """Pass a request to the dashboard if the user may look at the schedule."""
    if not hasattr(request, "user"):
        raise ImproperlyConfigured(
            "The dashboard needs to know the user: add AuthenticationMiddleware to MIDDLEWARE"
        )
    # A program gets the API's own refusal, as JSON.
    if not may_view(request.user) and not below.startswith("api/"):
        if request.user.is_authenticated:
            raise PermissionDenied
        return redirect_to_login(request.get_full_path(), login_url())
    flask = site(celery_app(), settings.SECRET_KEY, not may_change(request.user))
    answer = Response.from_app(flask, environ_of(request, below), buffered=True)
    response = HttpResponse(answer.get_data(), status=answer.status_code)
    for name, value in answer.headers:
        if name == "Set-Cookie":
            response.cookies.update(SimpleCookie(value))
        else:
            response[name] = value
    return response


app_name = "redbeat"
urlpatterns = [path("", serve, name="index"), path("<path:below>", serve)]


# -- the link in the admin -------------------------------------------------------------------------


def _row(request: HttpRequest) -> dict[str, Any] | None:
    """The dashboard as one more application of the admin, None if it is not for this user."""
    if not may_view(request.user):
        return None
    try:
        url = reverse("redbeat:index")
    except NoReverseMatch:  # it is mounted in another URLconf, or below a path with parameters
        return None
    if resolve("/" + url.removeprefix(get_script_prefix())).func is not serve:
        raise ImproperlyConfigured(
            f"Another path in front of the dashboard's takes {url}: in urlpatterns, put "
            'include("redbeat.web.django") before admin.site.urls'
        )
    change = may_change(request.user)
    schedule = {
        "name": "Schedule",
        "object_name": "Schedule",
        "admin_url": url,
        "add_url": None,
        "view_only": not change,
        "perms": {"add": False, "change": change, "delete": False, "view": True},
    }
    return {
        "name": "RedBeat",
        "app_label": "redbeat",
        "app_url": url,
        "has_module_perms": True,
        "models": [schedule],
    }


def link_in(admin_site: Any) -> None:
    """Add the dashboard to the applications on the index and in the sidebar of an admin site.

    There is no model to register, and a template could replace the project's own.
    """
    get_app_list = admin_site.get_app_list

    @wraps(get_app_list)
    def with_dashboard(request: HttpRequest, app_label: str | None = None) -> list[Any]:
        if app_label is not None:
            return list(get_app_list(request, app_label))
        row = _row(request)
        return [*get_app_list(request), *([row] if row else [])]

    admin_site.get_app_list = with_dashboard


if apps.is_installed("django.contrib.admin"):
    link_in(admin.site)
