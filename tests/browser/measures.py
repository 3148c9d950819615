"""What a page looks like, measured in the browser."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

CUT = """
    () => {
        const cut = [];
        const width = document.documentElement.clientWidth;
        for (const each of document.querySelectorAll(
                "#content :is(td, th, a, bdi, time, code, button, input, select, p)")) {
            const box = each.getBoundingClientRect();
            if (!each.checkVisibility() || !box.width || each.closest(".lock-cards thead")) {
                continue;
            }
            let left = 0, right = width;
            for (let out = each.parentElement; out; out = out.parentElement) {
                if (getComputedStyle(out).overflowX !== "visible") {
                    const around = out.getBoundingClientRect();
                    left = Math.max(left, around.left);
                    right = Math.min(right, around.right);
                }
            }
            if (box.left < left - 1 || box.right > right + 1) {
                cut.push(`${each.nodeName}.${each.className}: ${each.textContent.trim()}`);
            }
        }
        return cut;
    }
"""
"""What is not wholly inside the window and whatever scrolls or clips around it."""


def faults(page: Page) -> dict[str, Any]:
    spills = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    found = {"spills": max(0, page.evaluate(spills)), "cut": page.evaluate(CUT)}
    return {kind: value for kind, value in found.items() if value}
