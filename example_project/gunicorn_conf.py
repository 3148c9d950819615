"""How gunicorn serves the shop: several processes, each with many threads.

A buyer who waits for a lock occupies a thread but no CPU, so there are many threads.
"""

wsgi_app = "example_project.wsgi"
workers = 3
worker_class = "gthread"
threads = 40
backlog = 1024
keepalive = 30
graceful_timeout = 2
# Newer versions open a control socket in the home directory; older ones ignore this setting.
control_socket_disable = True
