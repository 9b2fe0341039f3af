"""Run the live server until a signal ends the server."""

import asyncio
import errno
import os
import threading
import webbrowser
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from aiohttp import web

from ...errors import InputError
from ...live.wire.steering import TimeLimits
from ..process.interrupts import END_SIGNALS
from .opening import LoadedModel
from .serving import Site, make_app
from .walk_server import WalkServer

HERE, EVERYWHERE = "127.0.0.1", "0.0.0.0"


async def serve(
    loaded: LoadedModel, folder: Path, *, port: int, token: str, origins: tuple[str, ...], show_page: bool, host: str
) -> None:
    """Serve the live page and its walks until a signal, and print the address. `port` 0 selects a free port.

    token: the access token that clients must send; empty if only this machine may connect.
    origins: other web pages that may connect.
    """
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    if threading.current_thread() is threading.main_thread():
        for number in END_SIGNALS:
            with suppress(NotImplementedError):  # on Windows Ctrl-C raises KeyboardInterrupt
                loop.add_signal_handler(number, ended.set)
    async with running(loaded, folder, port=port, token=token, origins=origins, host=host) as (open_port, _):
        query = f"?token={token}" if token else ""
        everywhere = host in ("", EVERYWHERE, "::")
        address = f"http://{HERE if everywhere else bracketed(host)}:{open_port}/{query}"
        others = [f"http://{await _own_address()}:{open_port}/{query}"] if token and everywhere else []
        print(address, *others, sep="\n", flush=True)
        if show_page:
            await loop.run_in_executor(None, webbrowser.open, address)
        await ended.wait()
        if folder.is_dir():
            print(f"the walk is in {folder}", flush=True)


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_here(host: str) -> bool:
    """Return whether `host` is a loopback address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def check_port(port: int, *, everywhere: bool, host: str = "") -> None:
    """Raise InputError if the server cannot listen on `port`. `host` defaults to 127.0.0.1, or to all addresses if
    `everywhere`."""

    async def listen() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, host or (EVERYWHERE if everywhere else HERE), port)
        server.close()

    with _refused(port, host):
        asyncio.run(listen())


@contextmanager
def _refused(port: int, host: str = "") -> Iterator[None]:
    try:
        yield
    except (OSError, OverflowError, UnicodeError) as error:
        if isinstance(error, UnicodeError) or type(error).__name__ == "gaierror":
            raise InputError(f"`host` {host!r:.60}: no address of this machine ({error}); name one") from error
        number = getattr(error, "errno", None)  # asyncio's message repeats the port
        reason = os.strerror(number) if number else "a port is a number from 0 to 65535"
        if number == errno.EADDRNOTAVAIL:
            raise InputError(f"`host` {host!r:.60}: not an address of this machine; name one") from error
        raise InputError(f"`port` {port} cannot be used: {reason}; name another one, or 0 for a free one") from error


@asynccontextmanager
async def running(
    loaded: LoadedModel,
    folder: Path,
    *,
    port: int = 0,
    token: str = "",
    origins: tuple[str, ...] = (),
    limits: TimeLimits | None = None,
    host: str = "",
) -> AsyncIterator[tuple[int, WalkServer]]:
    """Run a live server that saves walks in `folder`. Yield its port and WalkServer. Raises InputError for an unusable
    port or host. Without `token`, only this machine may connect."""
    limits = limits or TimeLimits()
    site = Site(WalkServer(loaded, folder, limits), token, origins)
    runner = web.AppRunner(
        make_app(site),
        handle_signals=False,
        shutdown_timeout=2,
        access_log=None,
        keepalive_timeout=limits.reading,
        lingering_time=min(10.0, limits.reading),
    )
    await runner.setup()
    try:
        with _refused(port):
            await web.TCPSite(runner, host or (EVERYWHERE if token else HERE), port).start()
        yield runner.addresses[0][1], site.server
    finally:
        await runner.cleanup()


async def _own_address() -> str:
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=("192.0.2.1", 9))
        try:
            return str(transport.get_extra_info("sockname")[0])  # no packet was sent
        finally:
            transport.close()
    return HERE
