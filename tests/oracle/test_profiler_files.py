"""Files that torch.profiler writes are read as torch itself counts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, _memory_profiler, profile

from everybyte.basics.errors import BadInput
from everybyte.measure.profiles.read import ORDER, read_profile


@pytest.fixture(scope="module")
def profiled() -> Any:
    """Two steps of a small network on the CPU."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 16))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(32, 64)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True) as found:
        for _ in range(2):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return found


def test_categories_stand_in_torchs_order() -> None:
    """The columns of a timeline are those of torch's own table."""
    known = _memory_profiler._CATEGORY_TO_INDEX
    assert tuple("unknown" if one is None else one.name.lower() for one in sorted(known, key=lambda one: known[one])) == ORDER


@pytest.mark.filterwarnings("ignore")
def test_timelines(profiled: Any, tmp_path: Path) -> None:
    """The coalesced timeline and the raw one, plain and compressed, have one peak with one share a category; parameters count to the byte."""
    found = []
    for name in ("a.json", "a.json.gz", "a.raw.json.gz"):
        profiled.export_memory_timeline(str(tmp_path / name), "cpu")
        (one,) = read_profile(tmp_path / name)
        assert sum(one.at_peak.values()) == one.allocated_peak
        found.append((one.allocated_peak, one.at_peak))
    assert found[0] == found[1] == found[2]
    weights = 4 * (64 * 128 + 128 + 128 * 16 + 16)
    assert found[0][1]["optimizer_state"] >= 2 * weights
    assert found[0][1]["parameter"] >= weights


def test_chrome_trace(profiled: Any, tmp_path: Path) -> None:
    """Memory events of a chrome trace give the peak of the device that they name; a trace without them is refused."""
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    (one,) = read_profile(tmp_path / "trace.json")
    assert one.device == "cpu"
    assert one.allocated_peak >= one.allocated_now
    assert one.events > 10
    (tmp_path / "bare.json").write_text('{"traceEvents": [{"name": "aten::mm"}]}')
    with pytest.raises(BadInput, match="profile_memory=True"):
        read_profile(tmp_path / "bare.json")
