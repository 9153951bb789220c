"""Megatron-LM: what layers keep, what ranks hold, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from everybyte import estimate, headline
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.engines.megatron.kernels import handle_workspace, versions_of
from everybyte.engines.megatron.layers.block import TransformerLayer
from everybyte.engines.megatron.sizes import Dense, Heads, Latent, Mixture, Sizes, Split, padded
from everybyte.engines.megatron.style import Style
from everybyte.job import Train
from everybyte.layers.network import write
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Batch, Dim, Point

MiB = 2**20
N, H = 4096, 1024
HEADS = Heads(16, 16, 64, rope=False, bias=False, out_bias=False)
EXPERT = Dense(512, "silu", gated=True, bias=False)
GPT: dict[str, Any] = {
    "family": "gpt",
    "layers": 16,
    "hidden": 512,
    "ffn": 2048,
    "heads": 8,
    "kv_heads": 8,
    "head_dim": 64,
    "vocab": 50257,
    "max_positions": 1024,
}


def job(**train: Any) -> dict[str, Any]:
    """A job on eight GPUs."""
    base = {"framework": "megatron", "micro_batch": 4, "seq_len": 1024, "grad_accum": 8}
    return {"model": {"shape": GPT}, "hardware": {"gpu": "H100-SXM5-80GB", "gpus": 8}, "train": base | train}


def kept(sizes: Sizes, split: Split, style: Style) -> int:
    """Bytes that a layer keeps of a micro-batch of 4,096 tokens."""
    setup = Setup()
    found = write(TransformerLayer(sizes, split, style), setup, (split.tokens, Dim("h", sizes.hidden)), setup.weights, keep_gradients=False)
    return found.tally.kept_size.at(Point(Batch(1, N, N)))


def mixture(style: Style, split: Split = Split(), shared: int = 0) -> int:  # noqa: B008 - a constant
    """What experts add to a layer whose dense part keeps nothing but its two norms' inputs: the layer with them less the layer with one of width 0."""
    routed = Sizes(H, HEADS, Mixture(8, 2, EXPERT, shared), "rms")
    return kept(routed, split, style) - kept(Sizes(H, HEADS, Dense(0, "silu", gated=True, bias=False), "rms"), split, style)


def test_routed_tokens() -> None:
    """Router 14 bytes a token and expert and 12 a choice; each routed token's input, gate, up and their product; nothing that the dispatcher copies."""
    routed = 2 * N
    assert mixture(Style(permute_fused=True)) == 14 * N * 8 + 12 * routed + routed * (2 * H + 2 * 3 * 512)


def test_deterministic_unpermuting_keeps_its_source() -> None:
    """`index_add_` keeps the experts' results; the fused kernel and `scatter_add_` do not."""
    assert mixture(Style(deterministic=True)) - mixture(Style()) == 2 * N * 2 * H
    assert mixture(Style(deterministic=True, permute_fused=True)) == mixture(Style())


def test_a_shared_expert_sees_every_token() -> None:
    """Gate, up and their product of all tokens; its input is the norm's result, which is kept anyway."""
    assert mixture(Style(), shared=256) - mixture(Style()) == 2 * N * 3 * 256


def test_expert_tensor_parallelism_gathers_tokens_and_divides_widths() -> None:
    """With etp = tp = 2 a rank's experts see both ranks' tokens at half the width."""
    split = Split(2, True, 1, 1, 2)
    assert mixture(Style(), split) == 14 * N // 2 * 8 + 12 * N + 2 * N * (2 * H + 2 * 3 * 256)


def test_latent_attention_keeps_values_inside_what_made_them() -> None:
    """Latents before and after their norms, queries and keys for all heads, what the up-projection made; values are a part of it."""
    latent = Latent(16, 256, 128, 32, 16, 32)
    sizes = Sizes(H, latent, Dense(0, "silu", gated=True, bias=False), "rms")
    norms = 2 * (4 * N * H + 4 * N)
    latents = 2 * N * (2 * 256 + 2 * 128 + 16) + 2 * 4 * N
    heads = 2 * N * 16 * (2 * 48 + 64 + 32) + 4 * N * 16
    assert kept(sizes, Split(), Style()) == norms + latents + heads


def test_up_projection_that_runs_again_drops_heads() -> None:
    """`mla_up_proj` leaves the latents, `layernorm` the norms' inputs without their statistics, `moe_act` what goes into the activation."""
    latent = Latent(16, 256, 128, 32, 16, 32)
    sizes = Sizes(H, latent, Mixture(8, 2, EXPERT), "rms")
    whole = kept(sizes, Split(), Style())
    assert whole - kept(sizes, Split(), Style(recompute=("mla_up_proj",))) == 2 * N * 16 * (2 * 48 + 64)
    assert whole - kept(sizes, Split(), Style(recompute=("layernorm",))) == 2 * (2 * N * H + 4 * N)
    assert whole - kept(sizes, Split(), Style(recompute=("moe_act",))) == 2 * N * 2 * 512


def test_flash_attention_two_is_copied() -> None:
    """Transformer Engine copies the result of FlashAttention 2: one context more than cuDNN."""
    sizes = Sizes(H, HEADS, Dense(4096, "gelu", gated=False, bias=False), "layer")
    assert kept(sizes, Split(), Style(attention="flash2")) - kept(sizes, Split(), Style()) == 2 * N * H


def test_fp8_products_keep_one_byte() -> None:
    """Inputs of products are kept in one byte; the context is in 16 bits for attention's backward as well."""
    sizes = Sizes(H, HEADS, Dense(4096, "gelu", gated=False, bias=False), "layer")
    style = Style()
    assert kept(sizes, Split(), style) - kept(sizes, Split(), replace(style, fp8=True)) == 2 * N * H - N * H + N * 4096


def test_states_of_a_dense_model() -> None:
    """18 bytes a parameter with DDP; 6 and 12 over the ranks with the distributed optimizer."""
    for sharding, divided in (("ddp", 1), ("distributed-optimizer", 8)):
        rank = estimate(job(sharding=sharding)).ranks[0]
        rows = [e for e in rank.ledger if e.category in ("parameter", "gradient", "optimizer_state") and "between_steps" in e.phases]
        params = estimate(job()).model.params + 512 * (padded(50257, 1) - 50257)
        dummies = sum(e.bytes for e in rows if e.id.startswith("buffers/"))
        assert sum(e.bytes for e in rows) - dummies == pytest.approx(params * (6 + 12 / divided), rel=1e-3)


def test_ranks_of_a_pipeline() -> None:
    """One kind a stage: the first has the embedding and most in flight, the last the head and the loss."""
    found = estimate(job(mesh={"pp": 4}))
    assert [rank.label for rank in found.ranks] == ["pp0 (embedding)", "pp1", "pp2", "pp3 (head)"]
    assert [rank.gpus for rank in found.ranks] == [2, 2, 2, 2]
    flying = [sum(e.bytes for e in rank.ledger if e.id.startswith("in flight/") and "forward" in e.phases) for rank in found.ranks]
    assert flying[0] > flying[1] > flying[2] > flying[3] == 0
    assert found.ranks[-1].peak_phase == "loss"


def test_tied_weights_are_there_twice() -> None:
    """The last of several stages holds a copy of a tied embedding."""
    for mesh, copies in (({"pp": 1}, 1), ({"pp": 2}, 2)):
        ranks = estimate(job(mesh=mesh)).ranks
        tables = [e.bytes for rank in ranks for e in rank.ledger if e.id.startswith("weights/") and e.id.endswith(("word_embeddings", "output_layer"))]
        assert len(tables) == copies
        assert len({size // MiB for size in tables}) == 1


def test_half_precision_gradients_are_widened_for_the_step() -> None:
    """With fp16 an fp32 copy of the gradients lives from the step to the next zero_grad, and not while micro-batches run."""
    rank = estimate(job(precision="fp16-master")).ranks[0]
    wide = [e for e in rank.ledger if e.id.startswith("wide gradients/")]
    assert {phase for e in wide for phase in e.phases} == {"optimizer", "between_steps"}


def test_workspaces() -> None:
    """CUBLAS_WORKSPACE_CONFIG is pairs of KiB and counts; without it PyTorch's default, which changed for Blackwell in 2.12."""
    assert handle_workspace("8.0", ":4096:8") == 32 * MiB
    assert handle_workspace("8.0", ":4096:2:16:8") == handle_workspace("8.0", "") == 8 * MiB + 128 * 1024
    assert handle_workspace("10.0", "", widens_blackwell=False) == handle_workspace("8.0", "")
    assert not versions_of(Train(version="Megatron-LM 0.16, torch 2.11")).torch.has("wide_blackwell_workspaces")
    assert versions_of(Train(version="golden dev, Megatron-LM d98e8a64dd")).torch.has("wide_blackwell_workspaces")


@pytest.mark.parametrize(
    ("train", "path"),
    [
        ({"attention": "flex"}, "train.attention"),
        ({"recompute": {"policy": "selective", "modules": ["router"]}}, "train.recompute.modules"),
        ({"extra": {"rotary-percent": 2}}, "train.extra.rotary-percent"),
        ({"extra": {"moe-token-dispatcher-type": "smoke"}}, "train.extra.moe-token-dispatcher-type"),
        ({"offload": {"activations": "cpu"}}, "train.offload.activations"),
        ({"optimizer": {"name": "lion"}}, "train.optimizer.name"),
        ({"sharding": "fsdp2"}, "train.sharding"),
        ({"mesh": {"tp": 16}}, "train.mesh"),
    ],
)
def test_refusals(train: dict[str, Any], path: str) -> None:
    """What is not modelled, or cannot be, is refused with its key."""
    with pytest.raises((Unsupported, BadInput)) as found:
        headline(job(**train))
    assert found.value.path.startswith(path)
