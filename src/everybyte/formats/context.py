"""What a reader may see beside its own text: the other files that were given, and the version that was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from everybyte.basics.errors import BadInput
from everybyte.formats.documents.document import Document
from everybyte.formats.source import Source


class Context:
    """The files of one import. A file that another one names is claimed, and not read a second time by itself."""

    def __init__(self, sources: Sequence[Source], version: str | None = None) -> None:
        self.sources = tuple(sources)
        self.version = version
        """--framework-version; None is the newest that is known."""
        self.claimed: set[str] = set()
        self._documents: dict[str, list[Document]] = {}
        self._formats: dict[str, str | None] = {}

    def find(self, path: str, written: Mapping[str, Source] | None = None) -> Source | None:
        """The given file that a path inside a configuration means; files that a script wrote come first. It counts as claimed.

        The path is relative to a folder nobody knows, so that the last parts decide: `cfg/two.json` finds `runs/cfg/two.json`.
        """
        if written and path in written:
            return written[path]
        wanted = [part for part in path.replace("\\", "/").split("/") if part not in ("", ".", "..")]
        scored = [(_common(wanted, source.path.replace("\\", "/").split("/")), source) for source in self.sources]
        score, found = max(scored, key=lambda pair: pair[0], default=(0, None))
        if not wanted or score == 0 or found is None:
            return None
        self.claimed.add(found.path)
        return found

    def documents(self, source: Source) -> list[Document]:
        """The documents of a file, by its ending or, without one, by how it begins. Raises BadInput with the place."""
        if source.path not in self._documents or source not in self.sources:
            from everybyte.formats.documents.read import documents_of

            self._documents[source.path] = documents_of(source)
        return self._documents[source.path]

    def document(self, path: str, written: Mapping[str, Source] | None = None) -> Document | None:
        """The document that a path inside a configuration means; None if it was not given. Raises BadInput if it is no mapping."""
        source = self.find(path, written)
        if source is None:
            return None
        found = self.documents(source)
        if not found or not isinstance(found[0].value, dict):
            raise BadInput(source.path, "is no mapping of settings")
        return found[0]

    def companion(self, name: str) -> Document | None:
        """A file of a format (`deepspeed`, `accelerate`, `peft`) that was given beside the others and that no other names. It counts as claimed."""
        for source, document in self._companions():
            if self._formats.get(source.path) == name:
                self.claimed.add(source.path)
                return document
        return None

    def note_format(self, source: Source, name: str | None) -> None:
        """Remembers what a file was recognised as."""
        self._formats[source.path] = name

    def _companions(self) -> Iterator[tuple[Source, Document]]:
        for source in self.sources:
            if source.path not in self.claimed and self._documents.get(source.path):
                yield source, self._documents[source.path][0]


def _common(wanted: Sequence[str], path: Sequence[str]) -> int:
    """How many parts at the end two paths share."""
    count = 0
    for mine, other in zip(reversed(wanted), reversed(path), strict=False):
        if mine != other:
            break
        count += 1
    return count
