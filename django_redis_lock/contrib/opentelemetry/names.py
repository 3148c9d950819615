"""Names of spans, events, metrics and attributes, which dashboards rely on.

Those that begin with ``db.``, ``error.`` and ``server.`` are from OpenTelemetry's semantic
conventions. There are none for locks.
"""

SCOPE = "django_redis_lock"

WAIT = "lock wait"
HOLD = "lock hold"
SKIPPED = "django_redis_lock.task_skipped"

NAME = "django_redis_lock.name"
ALIAS = "django_redis_lock.alias"
BACKEND = "django_redis_lock.backend"
GROUP = "django_redis_lock.group"
OUTCOME = "django_redis_lock.outcome"
FENCE = "django_redis_lock.fence"
WAITERS = "django_redis_lock.waiters"
TASK = "django_redis_lock.task"
POLICY = "django_redis_lock.policy"
HOLDER_TASK_ID = "django_redis_lock.holder.task_id"
HOLDER_TASK_NAME = "django_redis_lock.holder.task_name"
HOLDER_HOST = "django_redis_lock.holder.host"
HOLDER_PID = "django_redis_lock.holder.pid"
HOLDER_HELD_FOR = "django_redis_lock.holder.held_for"

DB_SYSTEM = "db.system.name"
DB_NAMESPACE = "db.namespace"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
ERROR_TYPE = "error.type"

WAIT_DURATION = "django_redis_lock.wait.duration"
HOLD_DURATION = "django_redis_lock.hold.duration"
LOST = "django_redis_lock.lost"
FORCE_RELEASED = "django_redis_lock.force_released"
FREED = "django_redis_lock.freed"
UNAVAILABLE = "django_redis_lock.unavailable"
TASKS_SKIPPED = "django_redis_lock.tasks.skipped"
HELD = "django_redis_lock.held"
WAITING = "django_redis_lock.waiting"
OLDEST_HOLD = "django_redis_lock.hold.oldest"
OLDEST_WAIT = "django_redis_lock.wait.oldest"
LEASE_USED = "django_redis_lock.lease.used"
