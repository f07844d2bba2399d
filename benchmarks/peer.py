"""Search speed of a public peer, llm-analysis, beside paraplan's: GPT-3 175B on 1,024 A100, the same machine.

    python benchmarks/peer.py [--layouts COUNT]

Installs the peer from the package registry into a temporary environment; its every call predicts one layout.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from search import problem_of

from paraplan.search import SearchSpec, search

PEER = "llm-analysis==0.2.2"

SCRIPT = """
import json, logging, time
logging.disable(logging.CRITICAL)
from llm_analysis.analysis import LLMAnalysis
from llm_analysis.config import ModelConfig, ParallelismConfig, get_gpu_config_by_name

model = ModelConfig("gpt3-175b", num_layers=96, n_head=96, hidden_dim=12288, vocab_size=51200, max_seq_len=2048)
gpu = get_gpu_config_by_name("a100-sxm-80gb")
layouts = [
    (tp, pp, 1024 // (tp * pp), size)
    for tp in (1, 2, 4, 8)
    for pp in (1, 2, 4, 8, 16, 32)
    for size in (1, 2, 4, 8)
    if 1536 % (1024 // (tp * pp) * size) == 0
]
began, done = time.perf_counter(), 0
while done < COUNT:
    for tp, pp, dp, size in layouts:
        degrees = ParallelismConfig(tp_size=tp, pp_size=pp, dp_size=dp, sp_size=tp)
        LLMAnalysis(model, gpu, parallelism_config=degrees, flops_efficiency=0.5).training(
            batch_size_per_gpu=size, global_batch_size=1536, seq_len=2048, total_num_tokens=1e9
        )
        done += 1
print(json.dumps({"layouts": done, "seconds": time.perf_counter() - began}))
"""


def peer_rate(count: int) -> float:
    """Layouts a second of the peer."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = str(Path(folder) / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", PEER], check=True)
        told = subprocess.run(
            [python, "-c", SCRIPT.replace("COUNT", str(count))], check=True, capture_output=True, text=True
        ).stdout
    found = json.loads(told.splitlines()[-1])
    return float(found["layouts"] / found["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a public peer and paraplan on one question.")
    parser.add_argument("--layouts", type=int, default=5000, metavar="COUNT", help="layouts for the peer (5000)")
    given = parser.parse_args()
    problem = problem_of("gpt3-175b", "a100", 1024, 1536, 2048)
    search(problem, SearchSpec())
    began = time.perf_counter()
    found = search(problem, SearchSpec())
    own = found.candidates / (time.perf_counter() - began)
    theirs = peer_rate(given.layouts)
    print(f"{PEER}: {theirs:,.0f} layouts/s, one call each")
    print(f"paraplan: {own:,.0f} layouts/s, all {found.candidates:,} of them ({own / theirs:,.0f} times as many)")


if __name__ == "__main__":
    main()
