"""calculon (a checkout) on layouts of Megatron, on one core: step times of layouts that were measured, and its search of a cluster. Prints one line of JSON."""

from __future__ import annotations

import json
import logging
import random
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
sys.path.insert(0, str(FOLDER))

from calculon.llm import Llm, OptimalExecution, System  # noqa: E402

SYSTEM = "a100_80g.json"
ENOUGH_S = 10
"""Seconds of searching after which the time of one execution is known."""


def read(*parts: str) -> Any:
    """A file of the checkout."""
    return json.loads(FOLDER.joinpath(*parts).read_text(encoding="utf-8"))


def seconds_of(model: str, execution: dict[str, Any]) -> float:
    """Of one step, as predicted."""
    asked = Llm(Llm.Application(read("models", f"{model}.json")), logging.getLogger("one"))
    asked.compile(System(read("systems", SYSTEM)), Llm.Execution.from_json(execution))
    asked.run(System(read("systems", SYSTEM)))
    return float(asked.get_total_time())


def search(model: str, gpus: int, batch: int) -> dict[str, Any]:
    """As `calculon llm-optimal-execution` searches, for what Megatron runs: how many executions there are, and the time of those of some meshes in random
    order. All of them take many minutes."""
    app, system = Llm.Application(read("models", f"{model}.json")), System(read("systems", SYSTEM))
    meshes = []
    for tp in Llm.get_all_tensor_parallelisms(gpus, app.hidden, app.attn_heads):
        for pp in Llm.get_all_pipeline_parallelisms(gpus, tp, app.num_blocks):
            dp = Llm.get_data_parallelism(gpus, tp, pp)
            if OptimalExecution.get_batch_size(dp, batch) == batch:
                meshes += [(tp, pp, dp, v, mode) for v in Llm.get_valid_pipeline_interleavings(app.num_blocks, pp) for mode in ("full", "attn_only", "none")]

    def ask(tp: int, pp: int, dp: int, virtual: int, mode: str, *, counts: bool) -> int:
        asked = (counts, 50, False, gpus, batch, "float16", app, system, tp, pp, dp, virtual, batch, mode, dp > 1, "rs_ag", [True])
        return int(OptimalExecution.search(*asked, False, False, True)[1])

    total = sum(ask(*mesh, counts=True) for mesh in meshes)
    random.Random(16).shuffle(meshes)
    begin, tried = time.process_time(), 0
    while meshes and time.process_time() - begin < ENOUGH_S:
        tried += ask(*meshes.pop(), counts=False)
    return {"total": total, "each": (time.process_time() - begin) / tried}


def main() -> None:
    """Reads [measured layouts, searches]."""
    layouts, searches = json.load(sys.stdin)
    steps = [seconds_of(model, read("validation", "seqsel", "tab5", f"{name}.json")) for model, name in layouts]
    print(json.dumps({"steps": steps, "searches": [search(*one) for one in searches]}))


if __name__ == "__main__":
    main()
