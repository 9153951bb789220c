"""Repositories of the Hugging Face hub: the list of files, and byte ranges of them. Weights are never fetched.

Addresses, access token and offline mode are those of `huggingface_hub` (extra `hub`); the bytes come by plain range requests, bounded in size and time.
"""

from __future__ import annotations

import os
import re
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from everybyte.basics.errors import BadInput, MissingExtra
from everybyte.checkpoint.json_file import parse_json
from everybyte.checkpoint.stored import shown

if TYPE_CHECKING:
    from http.client import HTTPResponse

_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_REVISION = re.compile(r"[A-Za-z0-9._/-]{1,200}")
_LISTING_LIMIT = 64 * 2**20
_BLOCK = 256 * 1024
"""First read of a file: holds the whole header of most, so that one request is enough."""
_SECONDS_TO_ANSWER, _SECONDS_IN_ALL = 15, 120
_WAY_OUT = "give a path to a local config.json, folder or .gguf instead"


class HubFolder:
    """One repository, or a folder of it, at one revision."""

    def __init__(self, where: str, endpoint: str | None = None) -> None:
        """`where` is ORG/NAME, with @REVISION and ::FOLDER if wanted. Raises MissingExtra without huggingface_hub, BadInput for anything else."""
        try:
            from huggingface_hub import constants
        except ImportError:
            raise MissingExtra("reading models from the hub", "hub") from None
        self.place = f"hf:{where}"
        repo_revision, _, self._folder = where.partition("::")
        self._repo, _, revision = repo_revision.partition("@")
        self._revision = revision or "main"
        if not _REPO.fullmatch(self._repo) or ".." in where or not _REVISION.fullmatch(self._revision) or not _REVISION.fullmatch(self._folder or "."):
            raise BadInput(shown(self.place), "is not hf:ORG/NAME, with @REVISION or ::FOLDER if wanted")
        self._endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        if not self._endpoint.startswith(("http://", "https://")):
            raise BadInput("HF_ENDPOINT", f"{shown(self._endpoint)} is not an http or https address")
        if constants.HF_HUB_OFFLINE:
            raise BadInput(self.place, f"HF_HUB_OFFLINE is set, so the hub is not asked; {_WAY_OUT}")

    @property
    def model_name(self) -> str:
        """ORG/NAME, with the folder if there is one."""
        return f"{self._repo}::{self._folder}" if self._folder else self._repo

    def names(self) -> list[str]:
        """Names of the files, sorted."""
        return self._names

    def open(self, name: str) -> HubFile:
        """The file called `name`."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self._repo, name, subfolder=self._folder or None, revision=self._commit, endpoint=self._endpoint)
        return HubFile(f"{self.place}, {name}", url)

    @cached_property
    def _listing(self) -> dict[str, Any]:
        from urllib.parse import quote

        url = f"{self._endpoint}/api/models/{self._repo}/revision/{quote(self._revision, safe='')}"
        with _get(url, self.place) as response:
            return parse_json(_read(response, _LISTING_LIMIT, self.place), f"{self.place}, listing")

    @cached_property
    def _commit(self) -> str:
        """The commit that the revision means now, so that all files are of one state."""
        commit = self._listing.get("sha")
        return commit if isinstance(commit, str) and _REVISION.fullmatch(commit) else self._revision

    @cached_property
    def _names(self) -> list[str]:
        siblings = self._listing.get("siblings")
        if not isinstance(siblings, list):
            raise BadInput(self.place, "the endpoint does not answer as the hub does: no list of files")
        paths = [entry.get("rfilename") for entry in siblings if isinstance(entry, dict)]
        prefix = f"{self._folder}/" if self._folder else ""
        inside = [path.removeprefix(prefix) for path in paths if isinstance(path, str) and path.startswith(prefix)]
        if not inside:
            raise BadInput(self.place, "the repository has no files there")
        return sorted(name for name in inside if "/" not in name and name.isprintable())


class HubFile:
    """A file of the hub, read by ranges."""

    def __init__(self, place: str, url: str) -> None:
        self.place = place
        self._url = url

    @property
    def size(self) -> int:
        """Bytes in all, as the answer to the first range states."""
        return self._begin[0]

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; those at the beginning are kept from the first request."""
        begin = self._begin[1]
        if offset + length <= len(begin):
            return begin[offset : offset + length]
        data, _ = self._range(offset, length)
        if len(data) != length:
            raise BadInput(self.place, f"the server sent {len(data):,} of {length:,} bytes from byte {offset:,}")
        return data

    @cached_property
    def _begin(self) -> tuple[int, bytes]:
        data, size = self._range(0, _BLOCK)
        return size, data

    def _range(self, offset: int, length: int) -> tuple[bytes, int]:
        """Up to `length` bytes from `offset`, and the size of the whole file."""
        with _get(self._url, self.place, {"Range": f"bytes={offset}-{offset + length - 1}"}) as response:
            ranged = response.status == 206
            stated = response.headers.get("Content-Range", "").rpartition("/")[2] if ranged else response.headers.get("Content-Length", "")
            if not stated.isascii() or not stated.isdigit() or len(stated) > 18:
                raise BadInput(self.place, "the server does not state the size of the file")
            if not ranged and offset:  # the whole file is coming: weights are not downloaded
                raise BadInput(self.place, "the server does not answer range requests")
            return _read(response, length, self.place, exact=False), int(stated)


def _get(url: str, place: str, headers: dict[str, str] | None = None) -> HTTPResponse:
    """The opened answer to a GET. Raises BadInput with the reason and a way out."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    from huggingface_hub import constants, get_token

    request = Request(url, headers={"User-Agent": "everybyte", **(headers or {})})  # noqa: S310 - HubFolder lets http and https through alone
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")  # for the hub, not for the store that it redirects to
    try:
        response: HTTPResponse = urlopen(request, timeout=_SECONDS_TO_ANSWER)  # noqa: S310 - as above
    except HTTPError as error:
        error.close()
        raise BadInput(place, _REFUSALS.get(error.code, f"the hub answers {error.code} {shown(str(error.reason))}") + f"; {_WAY_OUT}") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise BadInput(place, f"the hub cannot be reached ({shown(str(reason))}); {_WAY_OUT}") from None
    return response


_REFUSALS = {
    401: "there is no such repository, or it needs a token: set HF_TOKEN",
    403: "access is restricted: accept the terms on its page and set HF_TOKEN",
    404: "there is no such repository, revision or file",
    429: "the hub asks to wait: too many requests",
}


def _read(response: HTTPResponse, limit: int, place: str, *, exact: bool = True) -> bytes:
    """The body, at most `limit` bytes of it; with `exact`, more is refused. A server that drips is given up after a while."""
    from http.client import HTTPException

    deadline = time.monotonic() + _SECONDS_IN_ALL
    data = bytearray()
    wanted = limit + 1 if exact else limit
    try:
        while len(data) < wanted and (chunk := response.read1(min(2**16, wanted - len(data)))):
            data += chunk
            if time.monotonic() > deadline:
                raise BadInput(place, f"the server is too slow: {len(data):,} bytes in {_SECONDS_IN_ALL} seconds")
    except (OSError, HTTPException, ValueError) as error:
        raise BadInput(place, f"the connection broke ({shown(str(error) or type(error).__name__)})") from None
    if exact and len(data) > limit:
        raise BadInput(place, f"the server sends more than {limit:,} bytes")
    return bytes(data)
