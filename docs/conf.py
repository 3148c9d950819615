"""How Sphinx builds the documentation: ``make docs``."""

import django
from django.conf import settings

import django_redis_lock

# autodoc imports the package, which reads its settings from Django. No server is asked.
settings.configure(INSTALLED_APPS=["django_redis_lock"], USE_TZ=True)
django.setup()

project = "django-redis-lock"
author = "The django-redis-lock developers"
project_copyright = author
release = version = django_redis_lock.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Names of ours have to be found; those of Python, Django and Celery would take a download of their
# inventories, and the documentation is built without a network. Private names occur in signatures.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!django_redis_lock).*"),
    (r"py:.*", r"django_redis_lock\.(primitives|protocol|support|celery)\.\w+\..*"),
    (r"py:class", r"django_redis_lock\.fencing\.Row"),  # a type variable
]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = f"django-redis-lock {release}"
