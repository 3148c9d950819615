#!/usr/bin/env python
"""Django's command line for the shop."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # Python put this file's directory here, where celery.py would shadow the real Celery.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
