"""Buffers of DeepEP, which exchanges the tokens of experts: made with cudaMalloc and NVSHMEM, outside torch's allocator.

Read in DeepEP 1.2.1 and its legacy form at dd758ca: csrc/legacy/config.hpp get_nvl_buffer_size_hint, get_rdma_buffer_size_hint; deep_ep/buffers/legacy.py
get_dispatch_config; Megatron-LM core/transformer/moe/fused_a2a.py get_buffer.
"""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.basics.errors import BadInput
from everybyte.basics.units import MiB, round_up
from everybyte.ledger.build import Line, plain

SOURCE = "DeepEP csrc/legacy/config.hpp get_nvl_buffer_size_hint, get_rdma_buffer_size_hint; deep_ep/buffers/legacy.py Buffer.get_dispatch_config"
CHANNELS, NODE, WORKSPACE = 10, 8, 32 * MiB
"""Half of Buffer.num_sms = 20; LEGACY_NUM_MAX_NVL_PEERS; LEGACY_NUM_WORKSPACE_BYTES."""
META = 8 + 128 * (8 + 4 + 4)
"""A token's source, 128 expert ids (int64) with their weights (fp32), and 128 scales (fp32)."""
IN_NODE = {2: 256, 4: 256, 8: 256, 16: 288, 24: 288, 32: 288, 48: 288, 64: 288, 96: 480, 128: 560, 144: 720, 160: 720}
"""Ranks -> tokens of a chunk that a peer of the node has room for (num_max_nvl_chunked_recv_tokens)."""
BETWEEN = {16: (20, 12), 96: (12, 8), 128: (12, 8), 144: (12, 8), 160: (12, 8)}
"""Ranks -> (dispatch, combine) tokens that are sent at once between nodes; 8 for the others. Room for 128 is rounded up to a multiple."""


def deepep_lines(hidden: int, ranks: int, path: str = "train.mesh.ep") -> Iterator[Line]:
    """Buffers of one rank for hidden states of `hidden` numbers in 16 bit; `ranks` of the group that exchanges tokens (ep·etp).

    Raises BadInput at `path` for a number of ranks that DeepEP has no configuration for.
    """
    if ranks not in IN_NODE:
        raise BadInput(path, f"DeepEP exchanges among {', '.join(map(str, IN_NODE))} ranks, not among {ranks}")
    peers, nodes, token = min(ranks, NODE), max(ranks // NODE, 1), 2 * hidden + META
    size = round_up(CHANNELS * peers * ((2 * nodes + 3) * 4 + IN_NODE[ranks] * token), 128)
    words = {"c": CHANNELS, "peers": peers, "nodes": nodes, "room": IN_NODE[ranks], "h": hidden, "meta": META}
    pad = size - CHANNELS * peers * ((2 * nodes + 3) * 4 + IN_NODE[ranks] * token)
    text = plain("c·peers·((2·nodes + 3)·4 + room·(2·h + meta)) + pad", **words, pad=pad)
    yield Line("deepep/nvlink", "context", size, text, SOURCE, "formula")
    yield Line("deepep/workspace", "context", WORKSPACE, plain("workspace", workspace=WORKSPACE), "DeepEP LEGACY_NUM_WORKSPACE_BYTES", "formula")
    if ranks > NODE:
        room = max(round_up(128, sent) for sent in BETWEEN.get(ranks, (8, 8)))
        exact = CHANNELS * nodes * 2 * ((NODE * 2 + 2) * 4 + room * (token + 16))
        size = round_up(exact, 128)
        words = {"c": CHANNELS, "nodes": nodes, "node": NODE, "room": room, "h": hidden, "meta": META, "pad": size - exact}
        text = plain("c·nodes·2·((node·2 + 2)·4 + room·(2·h + meta + 16)) + pad", **words)
        yield Line("nvshmem/rdma", "context", size, text, SOURCE, "formula")
