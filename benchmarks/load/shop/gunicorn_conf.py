"""How gunicorn serves the shop under load; the numbers come on the command line."""

worker_class = "gthread"
backlog = 2048
keepalive = 300
timeout = 300
graceful_timeout = 1
control_socket_disable = True
