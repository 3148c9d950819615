"""What ``manage.py locks`` does, one module for each of its commands and one for each tool.

``arguments`` says what can be asked for; ``listing``, ``showing``, ``releasing``, ``events`` and
``doctor`` do it; ``selection`` finds the locks, and ``terminal``, ``table``, ``durations`` and
``facts`` say it to people and programs.
"""
