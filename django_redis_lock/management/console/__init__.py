"""The commands of ``manage.py locks``, a module each, and what they share.

``arguments`` defines the command line. ``selection`` finds the locks; ``terminal``, ``durations``
and ``facts`` present them to people and programs.
"""
