"""The admin in a real browser: ``make browser``. Debian's Chromium does the looking."""
