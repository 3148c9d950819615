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

OVERLAPS = """
    () => {
        const boxes = Array.from(document.querySelectorAll(
            "#content :is(#result_list, .lock-cards) tbody :is(td, th)"))
            .filter((each) => each.checkVisibility())
            .map((each) => {
                const range = document.createRange();
                range.selectNodeContents(each);
                return [each, range.getBoundingClientRect()];
            });
        const over = [];
        for (const [one, a] of boxes) {
            for (const [other, b] of boxes) {
                const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                if (one !== other && across > 1 && down > 1) {
                    over.push(`${one.textContent.trim()} / ${other.textContent.trim()}`);
                }
            }
        }
        return over;
    }
"""
"""Cells whose texts run into each other."""

CONTRAST = """
    (element) => {
        const canvas = document.createElement("canvas")
            .getContext("2d", { willReadFrequently: true });
        const paint = (colour) => {
            canvas.fillStyle = colour;
            canvas.fillRect(0, 0, 1, 1);
        };
        const light = () => {
            const [r, g, b] = Array.from(canvas.getImageData(0, 0, 1, 1).data, (byte) => byte / 255)
                .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const below = [];
        for (let each = element; each; each = each.parentElement) {
            below.unshift(getComputedStyle(each).backgroundColor);
        }
        paint("white");
        below.forEach(paint);
        const back = light();
        paint(getComputedStyle(element).color);
        const front = light();
        return (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
    }
"""
"""How well the text of an element can be told from what is behind it (WCAG 2.2)."""


def spilling(page: Page) -> int:
    """Return how many pixels a page is wider than its window."""
    return int(
        page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    )


def faults(page: Page) -> dict[str, Any]:
    """Return the faults in the layout of a page, by kind."""
    found = {
        "spills": max(0, spilling(page)),
        "cut": page.evaluate(CUT),
        "broken": page.evaluate(BROKEN_WORDS),
        "overlap": page.evaluate(OVERLAPS),
    }
    return {kind: value for kind, value in found.items() if value}
