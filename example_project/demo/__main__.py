"""Start everything, run the steps, print the tables, and keep serving."""

import argparse
import logging
import signal
import sys
import threading
from types import FrameType

from rich.console import Console

from example_project.demo.hints import closing_commands
from example_project.demo.services import Services, running
from example_project.embedded import EmbeddedServerError
from example_project.service import ServiceError

ADMIN = "admin"
PIPE_WIDTH = 120


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description=__doc__)
    parser.add_argument(
        "--once", action="store_true", help="exit with 0 when every figure is right, else with 1"
    )
    parser.add_argument(
        "--sale", action="store_true", help="only start the shop, with a product to sell"
    )
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, _terminate)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    try:
        console.print("Starting Valkey, the shop and a Celery worker ...")
        with running() as services:
            right = wanted.sale or _run_steps(console, services)
            if wanted.sale:
                _add_product()
            if not wanted.once:
                _serve(console, services)
            return 0 if right else 1
    except (ServiceError, EmbeddedServerError) as error:
        console.print(f"The demo failed: {error}", style="bold red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted; everything it started has ended.")
        return 128 + signal.SIGINT


def _run_steps(console: Console, services: Services) -> bool:
    # Only now: these need Django to be set up.
    from example_project.demo import report, steps

    # The tables show what the locks would log.
    logging.getLogger("django_redis_lock").addHandler(logging.NullHandler())
    figures: list[report.Figure] = []
    sightings: list[report.Sighting] = []
    for title, step in (
        ("1. Flash sale: 300 buyers at once for 100 units", steps.flash_sale),
        ("2. Duplicates: one import sent 20 times at once", steps.duplicates),
        ("3. A worker process is killed in the middle of an import", steps.killed_worker),
        ("4. A chord with a duplicate in it", steps.chord_with_duplicate),
        ("5. A worker process hangs, and an operator force-releases its lock", steps.stuck_task),
        ("6. Two tenants share a supplier who allows three calls at once", steps.over_the_limit),
    ):
        console.print(title, style="bold", highlight=False)
        with steps.progress_bars(console) as bars:
            more_figures, more_sightings = step(services, bars)
        figures += more_figures
        sightings += more_sightings
    for title, found in (
        ("7. What is left", steps.nothing_left()),
        ("8. What Prometheus would scrape", steps.metrics(services)),
    ):
        console.print(title, style="bold", highlight=False)
        for figure in found:
            console.print(f"  {figure.what}: {figure.got}", highlight=False)
        figures += found
    report.print_figures(console, figures)
    report.print_holders(console, sightings)
    return all(figure.ok for figure in figures)


def _add_product() -> None:
    from example_project.shop.models import Product

    Product.objects.create(name="Headphones", slug="headphones", stock=100, price="79.00")


def _serve(console: Console, services: Services) -> None:
    """Print the addresses and wait for Ctrl-C or for a service to end."""
    from django.contrib.auth import get_user_model

    from example_project.shop.models import Product

    get_user_model().objects.create_superuser(ADMIN, password=ADMIN)
    on_sale = Product.objects.get(slug="headphones")
    console.print(f"Shop    {services.address}", highlight=False)
    console.print(f"Sale    {services.address}sale/{on_sale.pk}/", highlight=False)
    console.print(
        f"Admin   {services.address}admin/ (user {ADMIN}, password {ADMIN})", highlight=False
    )
    acquired, waited = (
        services.metric(f"django_redis_lock_{name}")
        for name in ("acquired_total", "wait_seconds_sum")
    )
    console.print(
        f"Metrics {services.address}metrics ({acquired:,.0f} locks acquired, "
        f"{waited:,.0f} s waited in all)",
        highlight=False,
    )
    console.print(f"Valkey  {services.server.url()}", highlight=False)
    for label, command in closing_commands(services.server):
        console.print(f"{label:<8}{command}", highlight=False, soft_wrap=True)
    console.print("Ctrl-C stops everything.")
    try:
        while not threading.Event().wait(1):
            services.web.check()
            services.worker.check()
    except KeyboardInterrupt:
        console.print("Stopping ...")


def _terminate(signum: int, frame: FrameType | None) -> None:
    # An exception, so that everything is stopped on the way out.
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
