"""Pictures of the page, kept to be looked at; here only that each is there and is no empty sheet."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING

import pytest
import shared_jobs as jobs
from visitor import Visitor

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

TORCHTITAN = {
    "name": "Llama-3.1-70B, torchtitan, 64 GPUs",
    "model": "meta-llama/Meta-Llama-3.1-70B",
    "hardware": {"gpu": "h100-80gb", "gpus": 64, "gpus_per_node": 8},
    "train": {
        "framework": "torchtitan",
        "micro_batch": 1,
        "seq_len": 8192,
        "precision": "bf16-mixed",
        "mesh": {"tp": 8, "sp": True},
        "sharding": "fsdp2",
        "compile": True,
        "recompute": {"policy": "full"},
    },
}
NEEDLESS = re.compile(r'.*Dropping "fit-y"|Failed to load resource')
"""Vega-Lite says the first of every picture whose height is counted in rows, also where only the width was asked to fit; the second is a search for
what fits that took too long on a machine that has other things to do."""
STATES = {
    "start": [jobs.LORA],
    "vllm": [jobs.VLLM],
    "70b": [TORCHTITAN],
    "405b": [jobs.MEGATRON],
    "compare": [jobs.LORA, jobs.TOO_LARGE],
    "several": [jobs.SEVERAL],
    "too large": [jobs.TOO_LARGE],
}
DEVICES = {
    "desktop": {"viewport": {"width": 1400, "height": 1000}},
    "tablet": {"viewport": {"width": 820, "height": 1180}, "device_scale_factor": 2, "has_touch": True},
    "phone": {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True},
}
LANGUAGES = {"en": re.compile("fit"), "zh": re.compile("放")}
"""What the hints of sliders say when they know how far it goes."""
USUAL = {("start", "desktop", "en"), ("compare", "phone", "en"), ("several", "tablet", "zh")}
"""Each device, each language, with one job and with two; all are in the long run. Other tests look at every state."""
CASES = [pytest.param(*case, marks=[] if case in USUAL else [pytest.mark.long]) for case in product(STATES, DEVICES, LANGUAGES)]


@pytest.mark.parametrize(("state", "device", "language"), CASES)
def test_screenshots(browser: Browser, server: str, screenshots: Path, state: str, device: str, language: str) -> None:
    """Each state on each device, in each language, light and dark: the whole page as a PNG file, without an error on the console."""
    context = browser.new_context(**DEVICES[device], locale=language)  # type: ignore[arg-type]  # names of its arguments
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: message.type in ("error", "warning") and not NEEDLESS.match(message.text) and errors.append(message.text))
    visitor = Visitor(page, server)
    visitor.open(*STATES[state])
    page.locator(".verdict .word").first.wait_for()
    if language == "en":
        visitor.settle()
    visitor.drawn()
    page.locator(".knob .hint", has_text=LANGUAGES[language]).first.wait_for()
    name = f"{state.replace(' ', '-')}-{device}-{language}"
    for scheme in ("light", "dark"):
        times = visitor.times_drawn
        if scheme == "dark":
            page.emulate_media(color_scheme="dark")
            visitor.drawn(times + 1)
        place = screenshots / f"{name}-{scheme}.png"
        page.screenshot(path=screenshots / f"{name}-{scheme}-screen.png", animations="disabled")
        page.screenshot(path=place, full_page=True, animations="disabled", style="#mini { display: none !important; } #ask { max-height: none !important; }")
        assert place.stat().st_size > 40_000
    assert errors == []
    context.close()
