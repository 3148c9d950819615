"""The parts of a run, each on an empty server."""

from time import perf_counter, sleep
from typing import Any

from redis import Redis

from benchmarks.bench import crew, warm
from benchmarks.contenders import Ours
from benchmarks.frame.processes import cpu_seconds, peak_memory
from benchmarks.frame.server import commands, connections, grown, settled_memory
from benchmarks.frame.workers import Crew
from benchmarks.scenarios.memory import hold_many
from benchmarks.scenarios.processor import used
from benchmarks.scenarios.proxy import CountingProxy, Traffic
from benchmarks.scenarios.traffic import pairs
from benchmarks.sizing import seats
from benchmarks.sizing.plan import Plan
from benchmarks.sizing.replay import play
from example_project.embedded import EmbeddedServer

Row = dict[str, Any]


class Sizing:
    """A server under measurement, and a client that asks how it is doing."""

    def __init__(self, server: EmbeddedServer, admin: Redis, plan: Plan) -> None:
        self._url = f"{server.url()}?socket_timeout=30&max_connections=2000"
        self._port = server.port
        self._admin = admin
        self._plan = plan

    def weigh(self) -> Row:
        """Measure the memory of the server that a held lock takes."""
        count = self._plan.weighed
        with self._crew() as worker:
            worker.call(warm)
            self._admin.flushall()
            before = settled_memory(self._admin)
            worker.call(hold_many, count)
            return {"bytes": (settled_memory(self._admin) - before) / count}

    def replay(self) -> Row:
        """Send pairs until the server's processor is busy."""
        with CountingProxy(self._port) as proxy:
            url = self._url.replace(f":{self._port}/", f":{proxy.port}/")
            with crew(Ours.slug, url) as worker:
                worker.call(warm)
                proxy.traffic = Traffic()
                worker.call(pairs, "pair", self._plan.recorded)
                requests = list(map(bytes, proxy.traffic.requests))
        watch = Watch(self._admin, [])
        answered = play(self._port, requests, self._plan.connections, self._plan.rush)
        seen = watch.end()
        rate = answered / 2
        return {"rate": rate, "server": seen["server"], "microseconds": seen["processor"] / rate}

    def rush(self, processes: int) -> Row:
        """Renew as fast as so many processes can."""
        with self._crew(processes) as workers:
            for number, worker in enumerate(workers.workers):
                worker.call(seats.hold_batch, number * seats.BATCH)
            watch = Watch(self._admin, workers.together(seats.pid))
            rate = sum(workers.together(seats.renew_all, self._plan.rush))
            seen = watch.end()
        return {"processes": processes, "rate": rate, **_shares(seen, rate)}

    def hold(self, locks: int, processes: int) -> Row:
        """Watch what it takes to hold so many locks, renewed."""
        plan, each = self._plan, locks // processes
        period = plan.lease / 3
        with self._crew(processes) as workers:
            for number, worker in enumerate(workers.workers):
                worker.start(seats.hold_renewed, number * each, each, plan.lease)
            for worker in workers.workers:
                worker.result()
            pids = workers.together(seats.pid)
            sleep(period)
            watch = Watch(self._admin, pids)
            sleep(plan.periods * period)
            seen = watch.end()
            lost = sum(workers.together(seats.lost))
        return {
            "locks": locks,
            "processes": processes,
            "renewals": seen["renewals"],
            **_shares(seen, seen["renewals"]),
            "received": seen["received"],
            "sent": seen["sent"],
            "lost": lost,
        }

    def wait(self, kind: str, count: int) -> Row:
        """Watch a process in which so many callers wait."""
        queue = seats.wait_in_threads if kind == "threads" else seats.wait_in_tasks
        with self._crew() as holder, self._crew() as waiting:
            holder.call(seats.hold_for_waiters, -(-count // seats.EACH))
            waiting.call(warm)
            waiting.call(seats.warm_admin)
            pids = waiting.together(seats.pid)
            memory = peak_memory(pids)
            connected, _ = connections(self._admin)
            waiting.call(queue, count)
            watch = Watch(self._admin, pids)
            sleep(self._plan.idle)
            seen = watch.end()
            return {
                "waiters": count,
                "kind": kind,
                "listening": connections(self._admin)[1],
                "connections": connections(self._admin)[0] - connected,
                "commands": seen["commands"],
                "server": seen["server"],
                "clients": seen["clients"],
                "kilobytes": 1024 * (peak_memory(pids) - memory) / count,
                "bytes": self._queued() / count,
            }

    def _queued(self) -> int:
        """Return the memory of all queues."""
        queues = self._admin.scan_iter("lock-queue:*", count=1000)
        return sum(self._admin.memory_usage(queue, samples=0) for queue in queues)

    def _crew(self, size: int = 1) -> Crew:
        self._admin.flushall()
        return crew(Ours.slug, self._url, size)


class Watch:
    """What the server and some processes use from now on, per second.

    Processor time is in microseconds for the server and in seconds for the processes.
    """

    def __init__(self, admin: Redis, pids: list[int]) -> None:
        self._admin, self._pids = admin, pids
        self._began = perf_counter()
        self._before, self._commands = self._look(), commands(admin)

    def end(self) -> dict[str, float]:
        """Return the shares of a processor in percent, and the rest per second."""
        elapsed = perf_counter() - self._began
        done = grown(self._commands, commands(self._admin))
        found = {key: (value - self._before[key]) / elapsed for key, value in self._look().items()}
        return {
            **found,
            "server": found["processor"] / 10_000,
            "clients": 100 * found["clients"],
            "renewals": done.get("pexpire", 0) / elapsed,
            "commands": sum(done.values()) / elapsed,
        }

    def _look(self) -> dict[str, float]:
        stats = self._admin.info("stats")
        return {
            "processor": used(self._admin),
            "clients": cpu_seconds(self._pids),
            "received": float(stats["total_net_input_bytes"]),
            "sent": float(stats["total_net_output_bytes"]),
        }


def _shares(seen: dict[str, float], rate: float) -> Row:
    return {
        "server": seen["server"],
        "clients": seen["clients"],
        "microseconds": seen["processor"] / rate if rate else None,
        "client_microseconds": 10_000 * seen["clients"] / rate if rate else None,
    }
