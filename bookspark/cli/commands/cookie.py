"""``bookspark cookie …``: a bookie's identity, in its directories and in the metadata store.

Law: nothing is changed while a bookie runs in the directories, since the commands take its locks. Every directory and the
metadata store get the same identity. A bookie's first boot makes the cookie; these commands repair what went wrong later.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from bookspark.cli.terminal.command_options import Yes, Zookeeper, client
from bookspark.daemon.directories import DirectoryLocks, holds_data, read_cookie, write_cookie
from bookspark.daemon.identity import mark_lost
from bookspark.errors import BookieError, InvalidCookieError
from bookspark.metadata.records.versioned import Versioned
from bookspark.metadata.store import MetadataStore
from bookspark.protocol.bookie.cookie import Cookie

app = typer.Typer(help="Print and repair the identities of bookies.", no_args_is_help=True, rich_markup_mode=None)

Directories = Annotated[
    list[Path],
    typer.Argument(metavar="DIRECTORY…", help="All directories of the bookie, in the order of its configuration."),
]
BookieId = Annotated[str, typer.Argument(metavar="BOOKIE", help="Id of the bookie, as `bookspark bookies` prints it.")]


@app.command("list")
def list_cookies(zookeeper: Zookeeper = "") -> None:
    """Print the ids of all bookies that have a cookie in the metadata store, one a line. Only these may hold entries."""
    with client(zookeeper) as bookkeeper:
        for bookie_id in bookkeeper.metadata.list_cookies():
            typer.echo(bookie_id)


@app.command()
def get(bookie: BookieId, zookeeper: Zookeeper = "") -> None:
    """Print a bookie's cookie in the metadata store, as JSON."""
    with client(zookeeper) as bookkeeper:
        typer.echo(json.dumps(asdict(_recorded(bookkeeper.metadata, bookie).value), indent=2))


@app.command()
def create(directories: Directories, zookeeper: Zookeeper = "") -> None:
    """Write the cookie of the directories to the metadata store, if the store does not know the bookie (any more)."""
    places = _absolute(directories)
    with client(zookeeper) as bookkeeper, _locked(places):
        store = bookkeeper.metadata
        cookie = _whole(places, store)
        if cookie.directories != places:
            raise InvalidCookieError(
                f"the cookie of {cookie.bookie_id} names {', '.join(cookie.directories)}, not {', '.join(places)}; "
                "use `bookspark cookie update` if they were moved"
            )
        if store.read_cookie(cookie.bookie_id) is not None:
            raise InvalidCookieError(
                f"the metadata store has a cookie of {cookie.bookie_id} already; see `bookspark cookie get {cookie.bookie_id}`"
            )
        store.write_cookie(cookie, None)
        typer.echo(f"{cookie.bookie_id} is known to the metadata store")


@app.command()
def update(directories: Directories, zookeeper: Zookeeper = "") -> None:
    """Record where all directories of a bookie are now, after they were moved or put into another order."""
    places = _absolute(directories)
    with client(zookeeper) as bookkeeper, _locked(places):
        store = bookkeeper.metadata
        whole = _whole(places, store)
        recorded = store.read_cookie(whole.bookie_id)
        for known in [whole, *([recorded.value] if recorded else [])]:
            if len(known.directories) != len(places):
                raise InvalidCookieError(
                    f"{known.bookie_id} has {len(known.directories)} directories ({', '.join(known.directories)}), and you named "
                    f"{len(places)}: it would deny what is in the others. Name each directory where it is now. If the disk of "
                    "one is lost, make an empty directory in its place and use `bookspark cookie fix`"
                )
        cookie = replace(whole, directories=places)
        _write(places, store, cookie)
        typer.echo(f"{cookie.bookie_id} has the directories {', '.join(places)}")


@app.command()
def fix(directories: Directories, zookeeper: Zookeeper = "", yes: Yes = False) -> None:
    """Write the cookie to directories of a bookie that lost it, because a disk was replaced or emptied.

    The bookie then serves without the lost entries. Its next start fences every ledger that was being written to it. Until these
    ledgers are recovered and copied back, the bookie never says that it does not have one of their entries."""
    places = _absolute(directories)
    with client(zookeeper) as bookkeeper, _locked(places):
        store = bookkeeper.metadata
        cookies = {place: read_cookie(place) for place in places}
        lost = [place for place, cookie in cookies.items() if cookie is None]
        cookie = _agreed(places, {place: cookie for place, cookie in cookies.items() if cookie is not None}, store)
        if set(cookie.directories) != set(places):
            raise InvalidCookieError(
                f"the cookie of {cookie.bookie_id} names {', '.join(cookie.directories)}, not {', '.join(places)}; name those"
            )
        if not lost:
            typer.echo(f"{cookie.bookie_id}: no directory lacks its cookie")
            return
        if not yes:
            typer.confirm(f"Are the entries in {', '.join(lost)} of {cookie.bookie_id} lost?", abort=True, err=True)
        _stamp_lost(lost, cookie)


@app.command()
def generate(bookie: BookieId, directories: Directories, zookeeper: Zookeeper = "", yes: Yes = False) -> None:
    """Write a bookie's cookie from the metadata store to empty directories, because all of its disks were lost."""
    places = _absolute(directories)
    with client(zookeeper) as bookkeeper, _locked(places):
        cookie = _recorded(bookkeeper.metadata, bookie).value
        if cookie.directories != places:
            raise InvalidCookieError(
                f"the cookie of {bookie} names {', '.join(cookie.directories)}, not {', '.join(places)}; name those"
            )
        for place in places:
            if read_cookie(place) is not None or holds_data(place):
                raise InvalidCookieError(
                    f"{place} is not empty; this command is for bookies that lost everything, see `bookspark cookie fix`"
                )
        if not yes:
            typer.confirm(f"Are all entries of {bookie} lost?", abort=True, err=True)
        _stamp_lost(places, cookie)


@app.command()
def delete(bookie: BookieId, zookeeper: Zookeeper = "", yes: Yes = False) -> None:
    """Remove the cookie of a bookie from the metadata store. The bookie must be stopped, and no ledger may name it. Its
    directories are not touched.

    For a bookie that ledgers name, use `bookspark autorecovery decommission`. Without its cookie it could start on empty disks
    and deny entries that it acknowledged."""
    from bookspark.autorecovery.decommission import naming

    with client(zookeeper) as bookkeeper:
        store = bookkeeper.metadata
        recorded = _recorded(store, bookie)
        serving = store.bookies().get(bookie)
        if serving is not None:
            raise BookieError(f"{bookie} serves at {serving.address}; stop it first")
        if named := naming(bookkeeper, bookie, store.list_ledgers()):
            raise BookieError(
                f"{len(named)} ledgers name {bookie}, such as {named[0].ledger_id}; "
                f"`bookspark autorecovery decommission {bookie}` first moves them to other bookies, and then does this"
            )
        if not yes:
            typer.confirm(f"Forget {bookie} ({', '.join(recorded.value.directories)})?", abort=True, err=True)
        store.delete_cookie(bookie, recorded.version)


def _stamp_lost(places: Sequence[str], cookie: Cookie) -> None:
    """Mark the loss, then write the cookie: a boot that finds the cookie knows of the loss."""
    mark_lost(places)
    for place in places:
        write_cookie(place, cookie)
    typer.echo(f"{cookie.bookie_id} can start again, without what was in {', '.join(places)}")


def _absolute(directories: list[Path]) -> tuple[str, ...]:
    places = tuple(str(directory.absolute()) for directory in directories)
    for place in places:
        if not Path(place).is_dir():
            raise InvalidCookieError(f"{place} is not a directory; name the bookie's directories on this host")
    return places


def _locked(places: tuple[str, ...]) -> DirectoryLocks:
    """The locks of the directories, to be held while they are changed. A running bookie is an error that names its process."""
    return DirectoryLocks(places)


def _recorded(store: MetadataStore, bookie: str) -> Versioned[Cookie]:
    found = store.read_cookie(bookie)
    if found is None:
        known = ", ".join(sorted(store.list_cookies())) or "none"
        raise InvalidCookieError(f"the metadata store has no cookie of {bookie}; it knows: {known}")
    return found


def _whole(places: tuple[str, ...], store: MetadataStore) -> Cookie:
    """The cookie that every directory has. Raises InvalidCookieError if one has none, or if they belong to several bookies."""
    cookies = {}
    for place in places:
        cookie = read_cookie(place)
        if cookie is None:
            raise InvalidCookieError(
                f"{place} has no cookie; if it is a bookie's that lost it: `bookspark cookie fix` with all of its directories"
            )
        cookies[place] = cookie
    return _agreed(places, cookies, store)


def _agreed(places: tuple[str, ...], cookies: dict[str, Cookie], store: MetadataStore) -> Cookie:
    """The cookie that all directories share. Raises InvalidCookieError if they belong to several bookies or to another
    cluster."""
    if not cookies:
        raise InvalidCookieError(
            f"none of {', '.join(places)} has a cookie; a bookie makes it when it first starts there"
        )
    place, cookie = next(iter(cookies.items()))
    for other_place, other in cookies.items():
        if (other.bookie_id, other.nonce, other.instance_id) != (cookie.bookie_id, cookie.nonce, cookie.instance_id):
            raise InvalidCookieError(
                f"{place} is {cookie.bookie_id}'s and {other_place} is {other.bookie_id}'s; name the directories of one bookie"
            )
    if cookie.instance_id != store.instance_id:
        raise InvalidCookieError(
            f"{place} belongs to cluster {cookie.instance_id}, and this ZooKeeper to {store.instance_id}; name the right one"
        )
    return cookie


def _write(places: tuple[str, ...], store: MetadataStore, cookie: Cookie) -> None:
    """Write the cookie to the directories, then to the metadata store, which so has only cookies that are complete."""
    for place in places:
        write_cookie(place, cookie)
    recorded = store.read_cookie(cookie.bookie_id)
    store.write_cookie(cookie, recorded.version if recorded else None)
