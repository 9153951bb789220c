"""NCCL's buffers: memory of the process that torch's allocator does not know of.

A communicator has channels. For each of them, and for each rank that it is connected to, the receiving side has a buffer for every protocol
(LL, LL128, Simple), whichever is used later, and the sending side a page; each allocation is a multiple of 2 MiB. Channels of rings serve
collectives; exchanges of two ranks (send, receive, all-to-all) have connections of their own. Read in NCCL 2.30.7 (5067397): src/include/device.h,
src/init.cc computeBuffSizes, src/transport/p2p.cc p2pRecvSetup, net.cc, nvls.cc, src/channel.cc, src/graph/search.cc, connect.cc.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from everybyte.basics.record import Record
from everybyte.basics.units import KiB, MiB, round_up
from everybyte.catalog.generations import generations
from everybyte.catalog.gpus import find_gpu
from everybyte.catalog.releases import Release, newest, number_of, release_in, stated
from everybyte.job import Job
from everybyte.ledger.build import Line, plain
from everybyte.rules.accounting.account import Device
from everybyte.rules.accounting.conventions import Groups
from everybyte.rules.communication.communicators import Communicator, communicators
from everybyte.rules.parallel.mesh import Mesh

PAGE, GRANULE = 4 * KiB, 2 * MiB
"""ncclSendMem and ncclRecvMem; CUDA_IPC_MIN and the granularity of cuMemCreate."""
LL, LL128, SIMPLE = 8 * 512 * 8 * 16, 120 * 640 * 8 * 8, 4 * MiB
"""Lines a thread · threads · steps · bytes a line; elements · threads · steps · 8; NCCL_BUFFSIZE."""
STEPS, SHARED_STEPS, NET_CHUNK = 8, 16, 128 * KiB
NVLS_CHUNK = 128 * KiB
P2P = "nccl src/transport/p2p.cc p2pRecvSetup, p2pSendSetup; buffer sizes src/include/device.h, src/init.cc computeBuffSizes"
NET = "nccl src/transport/net.cc sendProxyConnect, recvProxyConnect, sharedNetBuffersInit"
NVLS = "nccl src/transport/nvls.cc ncclNvlsBufferSetup"
CHANNEL = "nccl src/channel.cc initChannel: three small tables a channel, each an allocation of 2 MiB where cuMem is on"


class Wires(Record, frozen=True):
    """What decides the buffers beside the communicators: links between GPUs, NCCL's version and settings."""

    major: int = 8
    """Of the compute capability."""
    nvlink: bool = True
    release: Release = newest("nccl")
    settings: tuple[tuple[str, str], ...] = ()
    """NCCL's environment variables."""

    def number(self, name: str, default: int) -> int:
        """A setting that is a number; NCCL reads what is no number as its default."""
        text = dict(self.settings).get(name, "")
        return int(text) if text.lstrip("-").isdigit() else default

    @property
    def cumem(self) -> bool:
        """Whether every allocation, however small, takes 2 MiB."""
        return self.number("NCCL_CUMEM_ENABLE", int(self.release.has("uses_cumem"))) != 0

    @property
    def lazy(self) -> bool:
        """Whether trees and multicast buffers are made at their first use."""
        return self.cumem and self.release.has("connects_late") and self.number("NCCL_RUNTIME_CONNECT", 1) != 0

    def may_use(self, algorithm: str) -> bool:
        """Whether NCCL_ALGO leaves an algorithm."""
        asked = dict(self.settings).get("NCCL_ALGO", "").casefold()
        if asked.startswith("^"):
            return algorithm not in asked[1:].split(",")
        return not asked or algorithm in asked.replace(";", ",").replace(":", ",").split(",")


def wires_of(job: Job, device: Device) -> Wires:
    """The wires of a job: links of its GPU as the catalogue has them (a GPU that is not in it is taken to have NVLink from Volta on), the NCCL of
    the torch that the job names, its settings."""
    major = int(device.compute_capability.partition(".")[0]) if device.compute_capability[:1].isdigit() else 8
    named = job.hardware.gpu if job.hardware is not None else None
    nvlink = find_gpu(named).links(_in_node(job)) if isinstance(named, str) else True
    release = _nccl_of(job.train.version if job.train is not None else None)
    settings = tuple(sorted((key, str(value)) for key, value in ((job.env.nccl if job.env is not None else None) or {}).items()))
    return Wires(major, nvlink, release, settings)


def _in_node(job: Job) -> int:
    """GPUs of the job that are in one machine."""
    assert job.hardware is not None
    gpus = job.hardware.gpus or 1
    return min(gpus, job.hardware.gpus_per_node or gpus)


def _nccl_of(text: str | None) -> Release:
    """The NCCL that a text names, or that of the torch that it names."""
    number = stated(text).get("nccl") or number_of(release_in(text, "torch").value("nccl"))
    return Release("nccl", number)


def beside_allocator(job: Job, mesh: Mesh, groups: Groups, device: Device, *, experts: bool = False, tied: bool = False) -> tuple[Line, ...]:
    """NCCL's rows of a rank, for `Rank.outside`."""
    if mesh.gpus == 1:
        return ()
    per_node = (job.hardware.gpus_per_node if job.hardware is not None else None) or 0
    return nccl_lines(communicators(mesh, groups, per_node=per_node, experts=experts, tied=tied), wires_of(job, device))


WITHOUT_NVLINK, BETWEEN_NODES, MOST = 2, 16, 32
"""One ring over PCIe, doubled; one a network card of a node with eight, doubled; and what no usual topology exceeds."""


def channels(c: Communicator, wires: Wires) -> int:
    """Channels of a communicator's rings. Between GPUs with NVLink (`catalog/data/gpu_generations.csv`) the search (ncclTopoCompute,
    ncclTopoDupChannels) lays as many rings as the links' bandwidth has room for at the highest speed of its list, halves their speed for twice as
    many, and ncclTopoPostset doubles them once more."""
    found = BETWEEN_NODES if c.spans_nodes else ((_rings(wires.major) or MOST) if wires.nvlink else WITHOUT_NVLINK)
    found = min(found, wires.number("NCCL_MAX_NCHANNELS", found), wires.number("NCCL_MAX_CTAS", found))
    return max(found, wires.number("NCCL_MIN_NCHANNELS", 1), wires.number("NCCL_MIN_CTAS", 1))


def _rings(major: int) -> int | None:
    """Channels of a generation's rings over NVLink, None where they are not known."""
    generation = generations().get(major)
    return generation.nccl_rings if generation is not None else None


def peer_channels(c: Communicator, wires: Wires) -> int:
    """Channels over which two ranks exchange: a power of two; two over PCIe; between nodes fewer, so that all peers have room at once."""
    most = 1 << (channels(c, wires) - 1).bit_length()
    if c.spans_nodes:
        each = 2
        while each > 1 and each * -(-c.ranks // STEPS) > most:
            each //= 2
        return each
    return most if wires.nvlink else min(2, most)


def connection(wires: Wires) -> tuple[int, int]:
    """Bytes of the receiving and of the sending side of one channel inside a node. (GPUs of compute capability 8.0 read from the sender, so
    that Simple's buffer is there; the sum is the same.)"""
    simple, ll, ll128 = _buffers(wires)
    return round_up(PAGE + ll + ll128 + simple, GRANULE), round_up(PAGE, GRANULE)


def _buffers(wires: Wires) -> tuple[int, int, int]:
    return wires.number("NCCL_BUFFSIZE", SIMPLE), wires.number("NCCL_LL_BUFFSIZE", LL), wires.number("NCCL_LL128_BUFFSIZE", LL128)


@lru_cache(maxsize=4096)
def nccl_lines(communicators: tuple[Communicator, ...], wires: Wires) -> tuple[Line, ...]:
    """Rows of all communicators of one rank. They are outside torch's allocator, whence their category; a row says in `low` and `high` what
    another topology would make of it."""
    return tuple(line for c in communicators if c.ranks > 1 for line in _lines(c, wires))


@lru_cache(maxsize=16384)
def _lines(c: Communicator, wires: Wires) -> tuple[Line, ...]:
    """Rows of one communicator."""
    return tuple(line for line in _written(c, wires) if line.bytes)


def _written(c: Communicator, wires: Wires) -> Iterator[Line]:
    receive, send = connection(wires)
    both, used = receive + send, channels(c, wires)
    if c.collective:
        trees = 0 if c.ranks == 2 or not wires.may_use("tree") else used * both
        nvls = _nvls(c, wires)
        takes_trees = trees if not wires.lazy or c.spans_nodes else 0
        takes_nvls = nvls if not wires.lazy or c.reduces else 0
        unused = trees - takes_trees + nvls - takes_nvls
        text = plain("c·(receive + send)", c=used, receive=receive, send=send)
        low = min(WITHOUT_NVLINK, used) * both
        yield Line(f"nccl/{c.name}/rings", "context", used * both, text, P2P, "formula", low, max(MOST, used) * both + unused)
        yield Line(f"nccl/{c.name}/trees", "context", takes_trees, text, f"{P2P}; generic.cc ncclTransportTreeConnect", "formula")
        if takes_nvls:
            words = plain("C·2·steps·chunk·heads", C=_nvls_channels(wires), steps=STEPS, chunk=NVLS_CHUNK, heads=c.node_ranks)
            yield Line(f"nccl/{c.name}/nvls", "context", takes_nvls, words, NVLS, "formula", 0, takes_nvls)
    yield from _exchange(c, wires, both)
    initialised = max(used, 1 << (used - 1).bit_length())
    if wires.cumem:
        text = plain("3·c·granule", c=initialised, granule=GRANULE)
        yield Line(f"nccl/{c.name}/channels", "context", 3 * initialised * GRANULE, text, CHANNEL, "formula", 0, 3 * MOST * GRANULE)


def _exchange(c: Communicator, wires: Wires, both: int) -> Iterator[Line]:
    """Connections of single peers: their own buffers inside a node; between nodes buffers that all peers share, one pool for each direction."""
    local = min(c.peers, c.node_ranks - 1)
    if local:
        each = peer_channels(c, wires)
        text = plain("peers·c·(receive + send)", peers=local, c=each, receive=connection(wires)[0], send=connection(wires)[1])
        low = local * min(2, each) * both
        yield Line(f"nccl/{c.name}/peers", "context", local * each * both, text, P2P, "formula", low, local * max(each, MOST) * both)
    if c.peers > local:
        pool = 1 << (channels(c, wires) - 1).bit_length()
        chunk = min(wires.number("NCCL_P2P_NET_CHUNKSIZE", NET_CHUNK), _buffers(wires)[0] // STEPS)
        text = plain("2·c·slots·chunk", c=pool, slots=SHARED_STEPS, chunk=chunk)
        yield Line(f"nccl/{c.name}/network", "context", 2 * pool * SHARED_STEPS * chunk, text, NET, "formula", 0, 2 * MOST * SHARED_STEPS * chunk)


def _nvls_channels(wires: Wires) -> int:
    """Channels of the multicast buffers; 0 for a generation that has none."""
    generation = generations().get(wires.major)
    return (generation.nvls_channels or 0) if generation is not None else 0


def _nvls(c: Communicator, wires: Wires) -> int:
    """Bytes of the multicast buffers of NVLink SHARP: Hopper and later behind NVSwitch, three ranks of a node and more."""
    if not wires.nvlink or c.node_ranks < 3 or not wires.may_use("nvls") or not wires.number("NCCL_NVLS_ENABLE", 2):
        return 0
    return _nvls_channels(wires) * 2 * STEPS * wires.number("NCCL_NVLS_CHUNKSIZE", NVLS_CHUNK) * c.node_ranks
