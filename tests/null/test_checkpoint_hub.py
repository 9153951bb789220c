"""Repositories of the hub are read by range requests, against a server of this machine; weights are never fetched."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from checkpoint_files import GGUF_LLAMA_TENSORS, LLAMA_CONFIG, gguf_bytes, gguf_llama_metadata, header_bytes, safetensors_bytes

from everybyte.basics.errors import BadInput, MissingExtra
from everybyte.checkpoint import StoredTensor, read_checkpoint
from everybyte.checkpoint.hub import _BLOCK

pytest.importorskip("huggingface_hub")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = json.dumps(LLAMA_CONFIG).encode()


class Hub(ThreadingHTTPServer):
    """A hub of a few repositories: /api/models/REPO/revision/REV, and /REPO/resolve/REV/FILE, which redirects to a store, as for large files."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, bytes] = {}
        self.answers: dict[str, tuple[int, bytes]] = {}
        """Paths with an answer of their own."""
        self.ignore_range = False
        self.drip = False
        self.sent: dict[str, int] = {}
        """Bytes of each file that went out."""
        self.asked: list[tuple[str, str | None]] = []
        """Paths and their Authorization."""

    def handle_error(self, *_: Any) -> None:
        """A reader that hangs up before the end of an answer is part of these tests; nothing is printed into those of others."""

    @property
    def address(self) -> str:
        """What HF_ENDPOINT is set to."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Hub

    def log_message(self, *_: Any) -> None:
        """Stay quiet."""

    def do_GET(self) -> None:
        """A listing, a redirection to the store, or a file of the store."""
        hub, path = self.server, self.path
        hub.asked.append((path, self.headers.get("Authorization")))
        if path in hub.answers:
            self.reply(*hub.answers[path])
        elif path.startswith("/api/models/ORG/NAME/revision/"):
            siblings = [{"rfilename": name} for name in hub.files]
            self.reply(200, json.dumps({"id": "ORG/NAME", "sha": COMMIT, "siblings": siblings}).encode())
        elif path.startswith(f"/ORG/NAME/resolve/{COMMIT}/"):
            self.send_response(302)
            self.send_header("Location", f"{hub.address}/store/{path.split('/', 5)[5]}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path.startswith("/store/") and path.removeprefix("/store/") in hub.files:
            self.send_file(path.removeprefix("/store/"))
        else:
            self.reply(404, b"Entry not found")

    def reply(self, status: int, body: bytes) -> None:
        """A short answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, name: str) -> None:
        """The range that is asked for, or the whole file."""
        hub = self.server
        content = hub.files[name]
        wanted = self.headers.get("Range")
        if wanted and not hub.ignore_range:
            first, last = (int(n) for n in wanted.removeprefix("bytes=").split("-"))
            part = content[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(content)}")
        else:
            part = content
            self.send_response(200)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        hub.sent[name] = hub.sent.get(name, 0) + len(part)
        if hub.drip:
            for byte in part:
                self.wfile.write(bytes([byte]))
                time.sleep(0.05)
        else:
            self.wfile.write(part)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def refused(where: str, *parts: str, endpoint: str | None = None) -> None:
    with pytest.raises(BadInput) as error:
        read_checkpoint(where, endpoint=endpoint)
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_config_and_headers(hub: Hub) -> None:
    """A repository gives config and tensors of all shards at the commit of its revision; of a large file only the beginning is sent."""
    large = {"big": ("F32", [4 * _BLOCK])}
    hub.files = {
        "config.json": CONFIG,
        "model-00001-of-00002.safetensors": safetensors_bytes(large),
        "model-00002-of-00002.safetensors": safetensors_bytes({"small": ("BF16", [2, 2])}),
        "model.safetensors.index.json": json.dumps(
            {"weight_map": {"big": "model-00001-of-00002.safetensors", "small": "model-00002-of-00002.safetensors"}}
        ).encode(),
        "original/config.json": b"not this one",
    }
    found = read_checkpoint("hf:ORG/NAME")
    assert (found.name, found.config) == ("ORG/NAME", LLAMA_CONFIG)
    assert found.tensors == (StoredTensor("big", "fp32", (4 * _BLOCK,), 16 * _BLOCK), StoredTensor("small", "bf16", (2, 2), 8))
    assert hub.sent["model-00001-of-00002.safetensors"] == _BLOCK
    assert hub.asked[0][0] == "/api/models/ORG/NAME/revision/main"


def test_header_longer_than_the_first_read(hub: Hub) -> None:
    """A header that does not fit into the first range is fetched whole, and no more."""
    many = {f"layers.{i}.weight.of.a.long.name": ("F32", [0]) for i in range(5000)} | {"data": ("F32", [_BLOCK])}
    hub.files = {"model.safetensors": safetensors_bytes(many)}
    assert len(read_checkpoint("hf:ORG/NAME").tensors) == 5001
    assert hub.sent["model.safetensors"] < len(hub.files["model.safetensors"]) - 3 * _BLOCK


def test_gguf_on_the_hub(hub: Hub) -> None:
    """A repository with one GGUF is read by its head."""
    hub.files = {"m.gguf": gguf_bytes(gguf_llama_metadata(), GGUF_LLAMA_TENSORS)}
    assert len(read_checkpoint("hf:ORG/NAME").tensors) == 4


def test_revision_and_folder(hub: Hub) -> None:
    """A revision is asked for by its name; a folder of the repository is read alone."""
    hub.files = {"config.json": b"[]", "transformer/config.json": CONFIG}
    found = read_checkpoint("hf:ORG/NAME@refs/pr/1::transformer")
    assert (found.name, found.config) == ("ORG/NAME::transformer", LLAMA_CONFIG)
    assert hub.asked[0][0] == "/api/models/ORG/NAME/revision/refs%2Fpr%2F1"


def test_endpoint_argument_wins(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint argument goes before HF_ENDPOINT."""
    hub.files = {"config.json": CONFIG}
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert read_checkpoint("hf:ORG/NAME", endpoint=hub.address + "/").config == LLAMA_CONFIG


def test_token_stays_with_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The access token goes to the hub and not to the store that it redirects to."""
    hub.files = {"config.json": CONFIG}
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    read_checkpoint("hf:ORG/NAME")
    assert {(path.split("/")[1], token) for path, token in hub.asked} == {("api", "Bearer hf_secret"), ("ORG", "Bearer hf_secret"), ("store", None)}


@pytest.mark.parametrize(
    "where", ["hf:", "hf:/", "hf:a/b/c", "hf:../x", "hf:ORG/NAME@", "hf:ORG/NA ME", "hf:ORG/NAME@a b", "hf:ORG/NAME::a/../b", "hf:" + "x" * 500, "hf:a\x1b[2J"]
)
def test_names_that_are_none(where: str, hub: Hub) -> None:
    """What is no repository name is refused before anything is asked; an empty revision means main."""
    if where == "hf:ORG/NAME@":
        hub.files = {"config.json": CONFIG}
        assert read_checkpoint(where).config == LLAMA_CONFIG
    else:
        refused(where, "is not hf:ORG/NAME")
        assert not hub.asked


@pytest.mark.parametrize(("status", "part"), [(401, "HF_TOKEN"), (403, "accept the terms"), (404, "no such repository"), (429, "too many"), (500, "500")])
def test_refusals_of_the_hub(status: int, part: str, hub: Hub) -> None:
    """Each refusal of the hub is one message with its meaning and a way out."""
    hub.answers = {"/api/models/ORG/NAME/revision/main": (status, b"")}
    refused("hf:ORG/NAME", "hf:ORG/NAME", part, "local config.json")


@pytest.mark.parametrize(
    ("listing", "part"),
    [
        (b"<html>", "not JSON"),
        (b"{}", "no list of files"),
        (b'{"siblings": []}', "no files"),
        (b'{"siblings": [{"rfilename": 5}, 7, {}]}', "no files"),
        (b'{"siblings": [{"rfilename": "README.md"}], "sha": "../.."}', "holds no config.json"),
        (b'{"siblings": [{"rfilename": "pytorch_model.bin"}]}', "pickles only"),
        (b'{"siblings": [{"rfilename": "config.json"}], "sha": 5}', "no such repository, revision or file"),
    ],
)
def test_listings_that_lie(listing: bytes, part: str, hub: Hub) -> None:
    """An endpoint that does not answer as the hub does is refused with its place."""
    hub.answers = {"/api/models/ORG/NAME/revision/main": (200, listing)}
    refused("hf:ORG/NAME", "hf:ORG/NAME", part)


def test_server_without_ranges(hub: Hub) -> None:
    """A server that sends whole files is read as far as the first range goes, and refused beyond."""
    hub.ignore_range = True
    hub.files = {"model.safetensors": safetensors_bytes({"t": ("F32", [_BLOCK])})}
    assert len(read_checkpoint("hf:ORG/NAME").tensors) == 1
    many = {f"layers.{i}.weight.of.a.long.name": ("F32", [0]) for i in range(5000)}
    hub.files = {"model.safetensors": safetensors_bytes(many)}
    refused("hf:ORG/NAME", "model.safetensors", "range requests")


def test_hostile_header_on_the_hub(hub: Hub) -> None:
    """The checks of local files hold for files of the hub."""
    hub.files = {"model.safetensors": header_bytes('{"t": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}')}
    refused("hf:ORG/NAME", "hf:ORG/NAME, model.safetensors", "tensor 't', data_offsets")


def test_slow_server(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that drips byte by byte is given up."""
    monkeypatch.setattr("everybyte.checkpoint.hub._SECONDS_IN_ALL", 0.2)
    hub.drip = True
    hub.files = {"config.json": CONFIG}
    refused("hf:ORG/NAME", "config.json", "too slow")


def test_no_network(hub: Hub) -> None:
    """Without a network there is one message that says so and names a way out."""
    refused("hf:ORG/NAME", "cannot be reached", "local config.json", endpoint="http://127.0.0.1:9")
    refused("hf:ORG/NAME", "cannot be reached", endpoint="http://no-such-host.invalid")
    refused("hf:ORG/NAME", "not an http", endpoint="file:///etc")


def test_offline_mode(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE is obeyed."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("hf:ORG/NAME", "HF_HUB_OFFLINE")
    assert not hub.asked


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without huggingface_hub the extra is named."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"everybyte\[hub\]"):
        read_checkpoint("hf:ORG/NAME")
