"""How gunicorn serves a site under load."""

wsgi_app = "django.core.wsgi:get_wsgi_application()"
worker_class = "gthread"
backlog = 2048
keepalive = 300
timeout = 300
graceful_timeout = 1
control_socket_disable = True
