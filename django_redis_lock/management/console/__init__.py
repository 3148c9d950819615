"""The commands of ``manage.py locks``, and what they share.

``arguments`` defines the command line. ``selection`` finds the locks; ``terminal`` and ``facts``
present them to people and programs.
"""
