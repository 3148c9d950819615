"""What a page looks like, measured in the browser."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

BROKEN_WORDS = """
    () => {
        const broken = [];
        for (const area of document.querySelectorAll("#content")) {
            const walker = document.createTreeWalker(area, NodeFilter.SHOW_TEXT);
            while (walker.nextNode()) {
                const node = walker.currentNode;
                if (!node.parentElement.checkVisibility()) {
                    continue;
                }
                for (const word of node.data.matchAll(/[\\p{L}\\p{N}_]+/gu)) {
                    const range = document.createRange();
                    range.setStart(node, word.index);
                    range.setEnd(node, word.index + word[0].length);
                    const lines = new Set(
                        Array.from(range.getClientRects(), (rect) => Math.round(rect.top)));
                    if (lines.size > 1 && word[0].length <= 24) {
                        broken.push(word[0]);
                    }
                }
            }
        }
        return broken;
    }
"""
"""The words that begin on one line and end on another; very long ones may."""

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


def spilling(page: Page) -> int:
    return int(
        page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    )


def faults(page: Page) -> dict[str, Any]:
    found = {
        "spills": max(0, spilling(page)),
        "cut": page.evaluate(CUT),
        "broken": page.evaluate(BROKEN_WORDS),
    }
    return {kind: value for kind, value in found.items() if value}
