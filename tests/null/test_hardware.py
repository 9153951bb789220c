"""Which GPUs and instances hold a job, and what a machine can do."""

from __future__ import annotations

import json

import pytest

from everybyte.basics.errors import BadInput
from everybyte.catalog.gpus import all_gpus, find_gpu
from everybyte.catalog.instances import all_instances
from everybyte.catalog.names import read_table
from everybyte.cli.app import run
from everybyte.estimator import estimate
from everybyte.job import Job, read_job
from everybyte.plan.hardware.holding import fewest, vendors_of
from everybyte.plan.hardware.machine import on_machine, read_machine, with_verdict
from everybyte.plan.hardware.offers import CLUSTERED, offers
from everybyte.plan.hardware.owned import break_even
from everybyte.plan.hardware.survey import survey
from everybyte.plan.hardware.tiers import METHODS, models, tiers

LORA = {"model": "Qwen/Qwen2.5-7B", "train": {"framework": "trl", "micro_batch": 1, "seq_len": 2048, "adapter": {"kind": "lora", "rank": 16}}}
SERVER = {"model": "Qwen/Qwen3-32B", "serve": {"engine": "vllm", "context": 32768}}
SPLIT = {"model": "Qwen/Qwen3-30B-A3B", "serve": {"engine": "llama.cpp", "context": 8192, "weights": "q4_k_m"}}


def job(raw: dict[str, object]) -> Job:
    return read_job(raw)


def test_instances_name_known_gpus_and_dated_prices() -> None:
    """Each row of the catalogue of instances names a GPU of the catalogue, has whole GPUs, and a price has a source."""
    rows = all_instances()
    assert len({(row.provider, row.name) for row in rows}) == len(rows) > 100
    assert all(row.gpus >= 1 and row.currency in ("USD", "CNY") for row in rows)
    assert all(row.price_source for row in rows if row.price_per_hour is not None)
    assert all(row.spot_per_hour <= row.price_per_hour for row in rows if row.spot_per_hour is not None and row.price_per_hour is not None)


def test_software_runs_on_vendors_of_the_catalogue() -> None:
    """The table of what runs where names vendors that the catalogue has, and MLX is Apple's alone."""
    vendors = {gpu.vendor for gpu in all_gpus()}
    assert all(set(row[1].split("|")) <= vendors for row in read_table("software_vendors.csv")[1:])
    assert list(vendors_of(job({"model": "gpt2", "serve": {"engine": "mlx", "context": 512}}))) == ["Apple"]


def test_offers_are_sorted_and_whole() -> None:
    """Offers have at least the GPUs asked for, the cheapest in USD first, and small machines are not joined into one job."""
    found = offers(find_gpu("h100"), 16)
    prices = [offer.per_hour for offer in found if offer.per_hour is not None and offer.instance.currency == "USD"]
    assert prices == sorted(prices)
    assert all(offer.number * offer.instance.gpus >= 16 and offer.instance.gpus >= CLUSTERED for offer in found)
    assert {offer.instance.gpus for offer in offers(find_gpu("h100"), 1)} >= {1, 8}
    assert {offer.instance.provider for offer in offers(find_gpu("a100-80gb"), 8, ["aws"])} == {"AWS"}


@pytest.mark.parametrize("raw", [LORA, SERVER, SPLIT])
def test_the_fewest_is_what_estimate_says(raw: dict[str, object]) -> None:
    """On the number that is named the full answer fits, and on half of it it does not."""
    for name in ("l4", "rtx-4080", "a100-40gb"):
        found = fewest(job(raw), find_gpu(name))
        assert found.gpus is not None
        assert found.job is not None
        assert estimate(found.job).fits
        if found.gpus > 1:
            assert fewest(job(raw), find_gpu(name), most=found.gpus // 2).gpus is None


def test_a_stated_mesh_is_kept() -> None:
    """A job that states tensor parallelism over 4 is not tried on fewer GPUs."""
    raw = {**SERVER, "serve": {**SERVER["serve"], "mesh": {"tp": 4}}}  # type: ignore[dict-item]
    assert fewest(job(raw), find_gpu("b200")).gpus == 4


def test_a_survey_sorts_and_says_why_not() -> None:
    """Rows come in the order that was asked for; GPUs that do not hold the job or are not answered are told, none is lost."""
    found = survey(job(LORA), most=2)
    prices = [row.usd_per_hour for row in found.rows if row.usd_per_hour is not None]
    assert prices == sorted(prices)
    told = len(found.rows) + len(found.too_small) + sum(map(len, found.refused.values())) + sum(found.not_supported.values())
    assert told == len(all_gpus())
    fewer = survey(job(LORA), order="gpus", most=2).rows
    assert [row.holding.gpus for row in fewer] == sorted(row.holding.gpus or 0 for row in fewer)


def test_a_survey_of_one_provider_is_of_its_gpus() -> None:
    """With a provider every row has an offer of it; an unknown one is refused with those that there are."""
    rows = survey(job(SERVER), providers=["gcp"]).rows
    assert rows
    assert all(offer.instance.provider == "GCP" for row in rows for offer in row.offers)
    with pytest.raises(BadInput, match="AWS, Alibaba, Azure"):
        survey(job(SERVER), providers=["foo"])


def test_machines_are_read() -> None:
    """Counts, sizes and unequal cards; nonsense is refused with its place."""
    assert [card.name for card in read_machine("2x24GB").cards] == ["24 GB GPU"] * 2
    mixed = read_machine("3090,2x4080")
    assert (mixed.is_unequal, mixed.smallest.name, mixed.name) == (True, "RTX-4080", "RTX-3090 + 2 x RTX-4080")
    for text in ("", ",", "foo", "100x4090"):
        with pytest.raises(BadInput, match="--have"):
            read_machine(text)


def test_unequal_cards_are_judged_one_by_one() -> None:
    """llama.cpp places layers by the memory of each card; the verdict is that of the card with the least room, and training goes by the smallest."""
    machine = read_machine("3060-12gb,4060")
    placed = on_machine(job(SPLIT), machine)
    answer = with_verdict(estimate(placed), machine)
    ranks = {rank.label: rank.figures["peak.device"] for rank in answer.ranks}
    rooms = {card.name: card.capacity - ranks[f"CUDA{i}"] for i, card in enumerate(machine.cards)}
    assert answer.headroom == min(rooms.values())
    assert answer.fits is (answer.headroom >= 0)
    low, high = answer.range["weights"]
    assert low <= answer.figures["weights"] <= high
    trained = on_machine(job(LORA), machine)
    assert trained.hardware is not None
    assert (trained.hardware.gpu, trained.hardware.gpus) == (machine.smallest.name, 2)


def test_more_memory_never_lowers_a_tier() -> None:
    """Each method's largest model on two cards of 48 GB is at least that on two of 24 GB."""
    size = {model: -i for i, model in enumerate(models())}
    small, large = (list(tiers(read_machine(text))) for text in ("2x24GB", "2x48GB"))
    assert [tier.method for tier in small] == [method.name for method in METHODS]
    for low, high in zip(small, large, strict=True):
        assert low.model is not None
        assert high.model is not None
        assert size[high.model] >= size[low.model]


def test_buying_pays_when_rent_has_paid_for_it() -> None:
    """Rent of the hours until then equals price and electricity; a rent below the electricity never pays back."""
    gpu = find_gpu("4090")
    found = break_even(gpu, 2, 1.0, 3000.0, 0.3)
    assert found.hours is not None
    assert found.hours * 1.0 == pytest.approx(3000 + found.hours * (gpu.tdp_w or 0) * 2 / 1000 * 0.3)
    assert break_even(gpu, 2, 0.1, 3000.0, 0.3).hours is None


def test_the_command_prints_rows_and_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    """`hardware serve` names the cheapest first with its instance; --json is one object with sizes in bytes and dated prices."""
    assert run(["hardware", "serve", "Qwen/Qwen3-8B", "--context", "8k", "--only", "h100"]) == 0
    assert "H100-SXM5-80GB" in capsys.readouterr().out
    assert run(["hardware", "serve", "Qwen/Qwen3-8B", "--context", "8k", "--only", "h100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    row = next(row for row in found["rows"] if row["gpu"] == "H100-SXM5-80GB")
    assert row["gpus"] == 1
    assert row["peak.device"] < row["capacity"]
    assert {"provider", "per_hour", "price_date", "price_source"} <= row["offers"][0].keys()


def test_the_command_says_what_a_machine_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    """--have without a job shows a line for each method; with a job its answer on that machine."""
    assert run(["hardware", "--have", "4090", "--json"]) == 0
    assert [row["method"] for row in json.loads(capsys.readouterr().out)["tiers"]] == [method.name for method in METHODS]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hardware", "--json"], "JOB"),
        (["hardware", "serve", "gpt2", "--only", "nothing"], "no GPU of the catalogue"),
        (["hardware", "serve", "gpt2", "--buy", "100"], "--kwh"),
        (["hardware", "--have", "foo"], "--have"),
    ],
)
def test_bad_input_is_one_message(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be asked for ends with exit code 2 and says what to do."""
    assert run(words) == 2
    assert message in capsys.readouterr().err
