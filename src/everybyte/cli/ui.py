"""`everybyte ui`."""

from __future__ import annotations

import click

from everybyte.basics.errors import MissingExtra
from everybyte.cli.ending import FITS
from everybyte.cli.options import as_json
from everybyte.report.language import said


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 means all addresses of this machine.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 means any free port.")
@click.option("--allow-host", "names", multiple=True, metavar="NAME", help="Further host name that the server accepts, such as gpu.example.org; * accepts any.")
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
@as_json
def command(host: str, port: int, names: tuple[str, ...], no_browser: bool, as_json: bool) -> int:
    """Serve the web page and its HTTP API on this machine until Ctrl-C.

    \b
    everybyte ui
    everybyte ui --port 0 --no-browser
    everybyte ui --host 0.0.0.0 --allow-host gpu.example.org

    Jobs that come over HTTP name a known model or carry their config.json; the server reads no local files for them.
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    try:
        from everybyte.web.app import Limits
        from everybyte.web.server import address, listen, serve
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] in ("litestar", "uvicorn", "prometheus_client"):
            raise MissingExtra("the web page", "web") from None
        raise
    listening = listen(host, port)
    place = address(host, listening)

    def tell() -> None:
        click.echo(_line(place) if as_json else said(f"everybyte runs at {place} (Ctrl-C to stop)"))
        if not no_browser:
            _open_browser(place)

    try:
        serve(listening, frozenset({host.casefold(), *(name.casefold() for name in names)}), Limits(), tell)
    except KeyboardInterrupt:
        click.echo(err=True)
    return FITS


def _line(place: str) -> str:
    """The address for a program that waits for it."""
    from everybyte.report.as_json import head, line

    return line({**head("ui"), "address": place})


def _open_browser(place: str) -> None:
    """Opens a browser beside the server, which goes on answering meanwhile."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(place,), daemon=True).start()
