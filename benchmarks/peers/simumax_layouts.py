"""SimuMax (a checkout, v1.2) on layouts of Megatron: reads rows of [model, tp, pp, gpus, micro_batches, seq_len], prints the processor seconds of all."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from pathlib import Path

FOLDER = Path(sys.argv[1])
sys.path.insert(0, str(FOLDER))

from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig  # noqa: E402
from simumax.core.perf_llm import PerfLLM  # noqa: E402

NAMES = {"meta-llama/Meta-Llama-3-8B": "llama3-8b", "meta-llama/Meta-Llama-3-70B": "llama3-70b"}


def peak(model: str, tp: int, pp: int, gpus: int, micro_batches: int, seq_len: int) -> object:
    """What SimuMax says of the memory of one layout."""
    base = json.loads((FOLDER / "configs" / "strategy" / "tp1_pp2_dp4_mbs1.json").read_text(encoding="utf-8"))
    strategy = {**base, "tp_size": tp, "pp_size": pp, "world_size": gpus, "micro_batch_num": micro_batches, "seq_len": seq_len, "enable_recompute": False}
    asked = PerfLLM()
    asked.configure(
        strategy_config=StrategyConfig.init_from_dict(strategy),
        model_config=ModelConfig.init_from_config_file(str(FOLDER / "configs" / "models" / f"{NAMES[model]}.json")),
        system_config=SystemConfig.init_from_config_file(str(FOLDER / "configs" / "system" / "a100_pcie.json")),
    )
    asked.run_estimate()
    return asked.analysis_mem()


def main() -> None:
    """All layouts, in turn; what SimuMax prints is not shown."""
    rows = json.load(sys.stdin)
    with contextlib.redirect_stdout(io.StringIO()):
        peak(*rows[0])
        begin = time.process_time()
        for row in rows[1:]:
            peak(*row)
        seconds = time.process_time() - begin
    print(seconds)


if __name__ == "__main__":
    main()
