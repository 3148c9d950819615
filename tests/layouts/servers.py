"""Real servers in the layouts that locks can be kept on: Sentinel with replicas, and Cluster.

    with Cluster() as cluster, override_settings(**cluster.locks()):
        with lock("product:42"):
            cluster.failover()

All of them die with this process, as an ``EmbeddedServer`` does.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import redis
from redis.exceptions import RedisError, ResponseError

from example_project.embedded import EmbeddedServer

BACKEND = "django_redis_lock.backends.redis.RedisLockBackend"
SLOTS = 16384
PATIENCE = 60.0
"""Seconds after which servers that are to agree on something are taken not to."""


class Layout:
    servers: list[EmbeddedServer]
    """Every server that keeps data, running or killed."""
    sentinels: Sequence[EmbeddedServer] = ()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the servers and wait until they agree on their roles."""
        try:
            for server in self.servers:
                server.start()
            self._arrange()
            agree(self._settled)
        except BaseException:
            self.stop()
            raise

    def _arrange(self) -> None:
        raise NotImplementedError

    def _settled(self) -> bool:
        raise NotImplementedError

    def stop(self) -> None:
        with contextlib.ExitStack() as stack:
            for server in (*self.sentinels, *self.servers):
                stack.callback(server.stop)

    def settle(self) -> None:
        """Wait until all that run agree who is master of what, and every replica is in step."""
        agree(self._settled)

    @property
    def urls(self) -> list[str]:
        return [server.url() for server in self.servers]

    def running(self) -> list[EmbeddedServer]:
        return [server for server in self.servers if role(server)]

    def masters(self) -> list[EmbeddedServer]:
        """Return the servers that answer and report that they are masters."""
        return [server for server in self.servers if role(server) == "master"]

    def by_port(self, port: int) -> EmbeddedServer:
        return next(server for server in self.servers if server.port == port)

    def flush(self) -> None:
        for server in self.masters():
            with client(server) as one:
                one.flushall()
                one.script_flush()


class Cluster(Layout):
    """A cluster of masters with a replica each; ``urls`` are those of all nodes."""

    def __init__(
        self,
        masters: int = 3,
        replicas: int = 1,
        *config: str,
        node_timeout: float = 3.0,
        binary: str | Path | None = None,
    ) -> None:
        self._masters = masters
        options = (
            *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
            *("--cluster-node-timeout", str(round(node_timeout * 1000))),
            *("--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"),
        )
        self.servers = [
            EmbeddedServer(*options, *config, binary=binary)
            for _ in range(masters * (1 + replicas))
        ]

    def locks(self, alias: str = "default", **entry: Any) -> dict[str, Any]:
        """Return the settings that make an alias of LOCKS use this cluster."""
        return {"LOCKS": {alias: {"BACKEND": BACKEND, "LOCATION": self.urls, **entry}}}

    def _arrange(self) -> None:
        first, *others = self.servers
        masters, replicas = self.servers[: self._masters], self.servers[self._masters :]
        for number, server in enumerate(self.servers):
            with client(server) as one:
                one.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
                if number < self._masters:
                    begin, end = (SLOTS * n // self._masters for n in (number, number + 1))
                    one.execute_command("CLUSTER ADDSLOTSRANGE", begin, end - 1)
        with client(first) as one:
            for server in others:
                one.execute_command("CLUSTER MEET", "127.0.0.1", server.port)
        agree(lambda: all(len(nodes(server)) == len(self.servers) for server in self.servers))
        for number, server in enumerate(replicas):
            master = node_id(masters[number % self._masters])
            agree(lambda server=server, master=master: _replicate(server, master))

    def _settled(self) -> bool:
        running, masters = self.running(), {server.port for server in self.masters()}
        views = [_view(server) for server in running]
        return (
            all(view == views[0] for view in views)
            and {port for _, _, port in views[0]} == masters
            and sum(end - begin + 1 for begin, end, _ in views[0]) == SLOTS
            and all(_is_well(server) for server in running)
        )

    def master_of(self, slot: int) -> EmbeddedServer:
        """Return the master that serves a slot, as the masters see it."""
        for server in self.masters():
            for begin, end, port in _view(server):
                if begin <= slot <= end:
                    return self.by_port(port)
        return None

    def _replica_of(self, master: EmbeddedServer) -> EmbeddedServer | None:
        """Return a replica that is in step, if there is one."""
        identity = node_id(master)
        for fields in nodes(master):
            if fields[3] == identity and "fail" not in fields[2]:
                replica = self.by_port(int(fields[1].partition("@")[0].rpartition(":")[2]))
                if _is_well(replica):
                    return replica
        return None

    def failover(self, slot: int = 0) -> EmbeddedServer:
        """Have a replica take over from the master of a slot in good order; return it."""
        master = self.master_of(slot)
        agree(lambda: self._replica_of(master))
        replica = self._replica_of(master)
        with client(replica) as one:
            one.execute_command("CLUSTER FAILOVER")
        return self.promoted(slot, master)

    def promoted(self, slot: int, former: EmbeddedServer) -> EmbeddedServer:
        agree(lambda: self.master_of(slot) not in (None, former))
        self.settle()
        return self.master_of(slot)

    def move_slot(self, slot: int, to: EmbeddedServer) -> None:
        """Move a slot with its keys to another master, as a resharding does, key by key."""
        source = self.master_of(slot)
        with client(source) as from_, client(to) as into:
            into.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", node_id(source))
            from_.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", node_id(to))
            while keys := from_.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
                from_.execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 10_000, "KEYS", *keys)
            for one in (into, from_):
                one.execute_command("CLUSTER SETSLOT", slot, "NODE", node_id(to))


class Sentinel(Layout):
    """A master with replicas and three sentinels that watch it; ``urls`` are the data servers'."""

    def __init__(self, replicas: int = 2, *, down_after: float = 3.0) -> None:
        # One of its own, for django-redis keeps its pools by it for as long as the process lives.
        self.service = f"locks-{secrets.token_hex(4)}"
        self.servers = [
            EmbeddedServer("--repl-diskless-sync-delay", "0") for _ in range(1 + replicas)
        ]
        self.sentinels = [_SentinelServer(self, down_after) for _ in range(3)]

    def caches(self, alias: str = "locks", db: int = 0) -> dict[str, Any]:
        options = {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "SENTINELS": [("127.0.0.1", server.port) for server in self.sentinels],
            "SENTINEL_KWARGS": {"socket_timeout": 2, "socket_connect_timeout": 2},
            "SOCKET_TIMEOUT": 5,
            "SOCKET_CONNECT_TIMEOUT": 5,
        }
        location = f"redis://{self.service}/{db}"
        return {
            alias: {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": location,
                "OPTIONS": options,
            }
        }

    def locks(self, alias: str = "default", **entry: Any) -> dict[str, Any]:
        """Return the settings that make an alias of LOCKS use this layout, CACHES included."""
        other = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
        return {
            "DJANGO_REDIS_CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "CACHES": {**other, **self.caches()},
            "LOCKS": {alias: {"BACKEND": BACKEND, "LOCATION": "locks", **entry}},
        }

    def _arrange(self) -> None:
        master, *replicas = self.servers
        for server in replicas:
            with client(server) as one:
                one.execute_command("REPLICAOF", "127.0.0.1", master.port)
        for sentinel in self.sentinels:
            sentinel.start()

    def _settled(self) -> bool:
        seen = [self._seen_by(sentinel) for sentinel in self.sentinels]
        master, running = self.by_port(seen[0][0]), self.running()
        others = [server for server in running if server is not master]
        return (
            master in running
            and all(one == (master.port, len(self.sentinels) - 1) for one in seen)
            and role(master) == "master"
            and all(_is_well(server) for server in others)
            and all(self._knows(sentinel, others) for sentinel in self.sentinels)
        )

    def _seen_by(self, sentinel: EmbeddedServer) -> tuple[int, int]:
        with client(sentinel) as one:
            told = one.sentinel_master(self.service)
            return told["port"], told["num-other-sentinels"]

    def _knows(self, sentinel: EmbeddedServer, replicas: list[EmbeddedServer]) -> bool:
        with client(sentinel) as one:
            seen = {
                told["port"]
                for told in one.sentinel_slaves(self.service)
                if "down" not in told["flags"] and told["master-link-status"] == "ok"
            }
        return {server.port for server in replicas} <= seen

    @property
    def master(self) -> EmbeddedServer:
        """The master, as the first sentinel sees it."""
        port, _ = self._seen_by(self.sentinels[0])
        return self.by_port(port)

    def replicas(self) -> list[EmbeddedServer]:
        """Return the running servers that are not the master."""
        return [server for server in self.servers if role(server) == "slave"]

    def failover(self) -> EmbeddedServer:
        """Have the sentinels promote a replica in good order; return it."""
        before = self.master
        with client(self.sentinels[0]) as one:
            agree(lambda: _fails_over(one, self.service))
        return self.promoted(before)

    def promoted(self, former: EmbeddedServer) -> EmbeddedServer:
        agree(lambda: self.master is not former and role(self.master) == "master")
        self.settle()
        return self.master


class _SentinelServer(EmbeddedServer):
    def __init__(self, layout: Sentinel, down_after: float) -> None:
        super().__init__()
        self._layout = layout
        self._down_after = round(down_after * 1000)

    def _command(self, binary: Path) -> list[str]:
        service = self._layout.service
        file = self.directory / "sentinel.conf"  # which it writes down its own findings in
        file.write_text(
            f"bind 127.0.0.1\nport {self.port}\nunixsocket {self.unix_socket}\n"
            f"dir {self.directory}\nsentinel resolve-hostnames no\n"
            f"sentinel monitor {service} 127.0.0.1 {self._layout.servers[0].port} 2\n"
            f"sentinel down-after-milliseconds {service} {self._down_after}\n"
            f"sentinel failover-timeout {service} 10000\nsentinel parallel-syncs {service} 8\n"
        )
        return [str(binary), str(file), "--sentinel"]


def client(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis(
        port=server.port, decode_responses=True, socket_timeout=5, single_connection_client=True
    )


def role(server: EmbeddedServer) -> str:
    """Return a server's role: ``master`` or ``slave``; empty if it does not answer."""
    try:
        with client(server) as one:
            return str(one.execute_command("ROLE")[0])
    except (RedisError, OSError):
        return ""


def nodes(server: EmbeddedServer) -> list[list[str]]:
    """Return a node's view of the cluster: the fields of CLUSTER NODES."""
    with redis.Redis(port=server.port, socket_timeout=5) as one:
        one.set_response_callback("CLUSTER NODES", lambda answer, **_: answer)
        answer = one.execute_command("CLUSTER NODES").decode()
    return [line.split(" ") for line in answer.splitlines()]


def node_id(server: EmbeddedServer) -> str:
    with client(server) as one:
        return str(one.execute_command("CLUSTER MYID"))


def agree(condition: Callable[[], Any]) -> None:
    """Wait until servers agree, which takes some gossip."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(RedisError, OSError):
            if condition():
                return
        assert time.monotonic() < deadline, f"the servers never agreed: {condition}"
        time.sleep(0.02)


def _view(server: EmbeddedServer) -> list[tuple[int, int, int]]:
    """Return which master's port serves which slots, as one node sees it."""
    with client(server) as one:
        one.set_response_callback("CLUSTER SLOTS", lambda answer, **_: answer)
        answer = one.execute_command("CLUSTER SLOTS")
    return sorted((begin, end, master[1]) for begin, end, master, *_ in answer)


def _is_well(server: EmbeddedServer) -> bool:
    """Return whether a server is in step with its master, and its cluster whole if it has one."""
    with client(server) as one:
        told = one.info("replication")
        clustered = one.info("cluster")["cluster_enabled"]
        return (told["role"] == "master" or told["master_link_status"] == "up") and (
            not clustered or one.execute_command("CLUSTER INFO").get("cluster_state") == "ok"
        )


def _replicate(server: EmbeddedServer, master: str) -> bool:
    with client(server) as one:
        return bool(one.execute_command("CLUSTER REPLICATE", master))


def _fails_over(one: redis.Redis, service: str) -> bool:
    try:
        one.execute_command("SENTINEL", "FAILOVER", service)
    except ResponseError as error:
        return "INPROG" in str(error)
    return True
