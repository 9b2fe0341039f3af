"""A server that runs until it is told to end."""

from __future__ import annotations

import asyncio
import os
import threading
import webbrowser
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from aiohttp import web

from ...errors import InputError
from ...live.wire.steering import Rules
from ..process.interrupts import ENDING
from .opening import Opened
from .room import Room
from .serving import Site, make_app

HERE, EVERYWHERE = "127.0.0.1", "0.0.0.0"


def serve(
    opened: Opened,
    folder: Path,
    *,
    port: int,
    token: str = "",
    origins: tuple[str, ...] = (),
    show_page: bool = False,
    host: str = "",
) -> None:
    """Serves walks, which are kept in `folder`, and prints the page's address. With a `token` other machines may ask
    for it. `host`: the address to listen to; empty for this machine's own, or all with a token. Ends with the process's
    signals. Raises InputError for a port that is taken."""
    asyncio.run(_serve(opened, folder, port, token, origins, show_page, host))


async def _serve(
    opened: Opened, folder: Path, port: int, token: str, origins: tuple[str, ...], show_page: bool, host: str
) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            with suppress(NotImplementedError):  # on Windows Ctrl-C raises KeyboardInterrupt
                loop.add_signal_handler(number, ended.set)
    async with running(opened, folder, port=port, token=token, origins=origins, host=host) as (open_port, _):
        query = f"?token={token}" if token else ""
        everywhere = host in ("", EVERYWHERE, "::")
        address = f"http://{HERE if everywhere else bracketed(host)}:{open_port}/{query}"
        others = [f"http://{await _own_address()}:{open_port}/{query}"] if token and everywhere else []
        print(address, *others, sep="\n", flush=True)
        if show_page:
            await loop.run_in_executor(None, webbrowser.open, address)
        await ended.wait()
        if folder.is_dir():
            print(f"what was walked is in {folder}", flush=True)


def bracketed(host: str) -> str:
    """An address as a URL has it."""
    return f"[{host}]" if ":" in host else host


def is_here(host: str) -> bool:
    """Whether only this machine can ask at an address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def check_port(port: int, *, everywhere: bool, host: str = "") -> None:
    """Raises InputError for one that is taken or no port, or for a host that is not this machine's, before a model is
    loaded for it."""

    async def listen() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, host or (EVERYWHERE if everywhere else HERE), port)
        server.close()

    with _refused(port):
        asyncio.run(listen())


@contextmanager
def _refused(port: int) -> Iterator[None]:
    """What is raised for a port that cannot be used, as InputError."""
    try:
        yield
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None)  # asyncio's words repeat the port
        reason = os.strerror(number) if number else error
        raise InputError(f"`port` {port} cannot be used: {reason}; name another, or 0 for one that is free") from error


@asynccontextmanager
async def running(
    opened: Opened,
    folder: Path,
    *,
    port: int = 0,
    token: str = "",
    origins: tuple[str, ...] = (),
    rules: Rules | None = None,
    host: str = "",
) -> AsyncIterator[tuple[int, Room]]:
    """A server for as long as the context lasts; gives its port and its room. Raises InputError."""
    site = Site(Room(opened, folder, rules or Rules()), token, origins)
    runner = web.AppRunner(make_app(site), handle_signals=False, shutdown_timeout=2, access_log=None)
    await runner.setup()
    try:
        with _refused(port):
            await web.TCPSite(runner, host or (EVERYWHERE if token else HERE), port).start()
        yield runner.addresses[0][1], site.room
    finally:
        await runner.cleanup()


async def _own_address() -> str:
    """This machine's address in its network, as far as it knows."""
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=("192.0.2.1", 9))
        try:
            return str(transport.get_extra_info("sockname")[0])  # nothing was sent
        finally:
            transport.close()
    return HERE
