"""``bookspark cookie …``: a bookie's identity in its directories and in the metadata store.

Law: the commands lock the directories, so they change nothing while a bookie runs there. Every directory and the metadata store
get the same identity, with a new nonce, so the directories of an earlier command on another host no longer fit
(``protocol.bookie.cookie``). A bookie's first boot creates the cookie; these commands repair it later.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

import typer

from bookspark.errors import BookieError, InvalidCookieError
from bookspark.operations.cli.terminal.command_options import (
    BookieId,
    Directories,
    Yes,
    Zookeeper,
    client,
    existing_directories,
    group,
)
from bookspark.operations.cli.terminal.output import print_json, say
from bookspark.protocol.bookie.cookie import Cookie, with_nonce
from bookspark.servers.daemon.directories import DirectoryLocks, UnreadableCookieError, holds_data, read_cookie
from bookspark.servers.daemon.identity import mark_lost, stamp
from bookspark.store.metadata.records.versioned import Versioned
from bookspark.store.metadata.store import MetadataStore
from bookspark.support.plain_text import counted

app = group("cookie", "Print and repair the identities of bookies.")


@app.command("list")
def list_cookies(zookeeper: Zookeeper = "") -> None:
    """Print the ids of bookies with a cookie. Only these may hold entries."""
    with client(zookeeper) as bookkeeper:
        for bookie_id in bookkeeper.metadata.list_cookies():
            say(bookie_id)


@app.command()
def get(bookie: BookieId, zookeeper: Zookeeper = "") -> None:
    """Print a bookie's cookie in the metadata store, as JSON."""
    with client(zookeeper) as bookkeeper:
        print_json(_recorded(bookkeeper.metadata, bookie).value)


@app.command()
def create(directories: Directories, zookeeper: Zookeeper = "") -> None:
    """Write the directories' cookie to the metadata store, if missing there."""
    places = existing_directories(directories)
    with client(zookeeper) as bookkeeper, DirectoryLocks(places):
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
        say(f"{cookie.bookie_id} is known to the metadata store")


@app.command()
def update(directories: Directories, zookeeper: Zookeeper = "", yes: Yes = False) -> None:
    """Record new places or a new order of a bookie's directories.

    If other directories have become the bookie since, by `bookspark cookie fix`, it asks: these lack later entries, and their
    next start counts as after a loss.
    """
    places = existing_directories(directories)
    with client(zookeeper) as bookkeeper, DirectoryLocks(places):
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
        if recorded is not None and recorded.value.nonce not in ("", cookie.nonce):
            if not yes:
                typer.confirm(
                    f"Other directories have become {cookie.bookie_id} since. Are they given up?", abort=True, err=True
                )
            mark_lost(places)
        _stamp_anew(places, store, cookie, recorded)
        say(f"{cookie.bookie_id} has the directories {', '.join(places)}")


@app.command()
def fix(
    directories: Directories,
    zookeeper: Zookeeper = "",
    bookie: Annotated[
        str,
        typer.Option(
            metavar="BOOKIE",
            help="Id of the bookie, if several bookies have such empty directories.",
            show_default=False,
        ),
    ] = "",
    yes: Yes = False,
) -> None:
    """Write the cookie to a bookie's replaced or emptied directories, some or all.

    The bookie then serves without the lost entries. Its next start fences every ledger being written to it, and it denies no
    entry of them until they are copied back.
    """
    places = existing_directories(directories)
    with client(zookeeper) as bookkeeper, DirectoryLocks(places):
        store = bookkeeper.metadata
        cookies, unread = _cookies(places)
        lost = [place for place, cookie in cookies.items() if cookie is None]
        if len(lost) == len(places):
            cookie = _emptied([place for place in places if not (bookie and place in unread)], places, bookie, store)
        else:
            cookie = _agreed(places, {place: cookie for place, cookie in cookies.items() if cookie is not None}, store)
        if bookie not in ("", cookie.bookie_id):
            raise InvalidCookieError(
                f"the directories are {cookie.bookie_id}'s, not {bookie}'s; name those of {bookie}"
            )
        if set(cookie.directories) != set(places):
            raise InvalidCookieError(
                f"the cookie of {cookie.bookie_id} names {', '.join(cookie.directories)}, not {', '.join(places)}; name those"
            )
        if not lost:
            say(f"{cookie.bookie_id}: no directory lacks its cookie")
            return
        recorded = store.read_cookie(cookie.bookie_id)
        if recorded is not None and recorded.value.nonce not in ("", cookie.nonce):
            raise InvalidCookieError(
                f"other directories have become {cookie.bookie_id} since, as an operator allowed: "
                f"start it on that host; what is in {', '.join(places)} is an earlier state of it"
            )
        if not yes:
            what = "the cookie" if unread == set(lost) else "the entries"
            be = "Is" if unread == set(lost) else "Are"
            typer.confirm(f"{be} {what} in {', '.join(lost)} of {cookie.bookie_id} lost?", abort=True, err=True)
        # The mark comes first, so a boot that reads the cookie knows of the loss.
        mark_lost(lost)
        _stamp_anew(places, store, cookie, recorded)
        say(f"{cookie.bookie_id} can start again, without what was lost in {', '.join(lost)}")


def _cookies(places: tuple[str, ...]) -> tuple[dict[str, Cookie | None], set[str]]:
    """The cookie in each directory, and the directories whose cookie can't be read."""
    cookies: dict[str, Cookie | None] = {}
    unread: set[str] = set()
    for place in places:
        try:
            cookies[place] = read_cookie(place)
        except UnreadableCookieError:
            cookies[place] = None
            unread.add(place)
    return cookies, unread


def _emptied(empty: Iterable[str], places: tuple[str, ...], bookie: str, store: MetadataStore) -> Cookie:
    """The recorded cookie of the bookie that lost all these directories: ``bookie``'s, else that of the only bookie with these
    directories that does not serve. Bookies of other hosts may have directories with the same names. Raises
    InvalidCookieError."""
    for place in empty:
        if holds_data(place):
            raise InvalidCookieError(
                f"{place} is not empty, but no directory has a cookie; name the directories of one bookie, or empty this one if "
                "nobody needs what is in it"
            )
    if bookie:
        found = [_recorded(store, bookie).value]
    else:
        recorded = [store.read_cookie(one) for one in sorted(store.list_cookies())]
        found = [one.value for one in recorded if one is not None and set(one.value.directories) == set(places)]
    serving = store.bookies()
    there = [one for one in found if one.bookie_id in serving]
    found = [one for one in found if one.bookie_id not in serving]
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidCookieError(
            f"{', '.join(one.bookie_id for one in found)} have the directories {', '.join(places)}, each on its host; say which "
            "one this was with --bookie BOOKIE"
        )
    if there:
        raise InvalidCookieError(
            f"{there[0].bookie_id}, which has the directories {', '.join(there[0].directories)}, serves at "
            f"{serving[there[0].bookie_id].address}: it did not lose them; run this on the host of the bookie that did"
        )
    raise InvalidCookieError(
        f"none of {', '.join(places)} has a cookie, and no bookie has them by its cookie in the metadata store; a bookie makes "
        "it when it first starts there"
    )


@app.command()
def delete(bookie: BookieId, zookeeper: Zookeeper = "", yes: Yes = False) -> None:
    """Remove a stopped bookie's cookie from the metadata store. No ledger may name it. Its directories stay.

    If ledgers name it, use `bookspark autorecovery decommission`.
    """
    from bookspark.store.autorecovery.decommission import naming, refuse_unreadable

    with client(zookeeper) as bookkeeper:
        store = bookkeeper.metadata
        recorded = _recorded(store, bookie)
        serving = store.bookies().get(bookie)
        if serving is not None:
            raise BookieError(f"{bookie} serves at {serving.address}; stop it first")
        unreadable: dict[int, str] = {}
        named = naming(bookkeeper, bookie, store.list_ledgers(), unreadable)
        refuse_unreadable(bookie, unreadable)
        if named:
            raise BookieError(
                f"{bookie} is named by {counted(len(named), 'ledger')}, such as {named[0].ledger_id}; "
                f"`bookspark autorecovery decommission {bookie}` first moves them to other bookies, and then does this"
            )
        if not yes:
            typer.confirm(f"Forget {bookie} ({', '.join(recorded.value.directories)})?", abort=True, err=True)
        store.delete_cookie(bookie, recorded.version)


def _recorded(store: MetadataStore, bookie: str) -> Versioned[Cookie]:
    found = store.read_cookie(bookie)
    if found is None:
        known = ", ".join(sorted(store.list_cookies())) or "none"
        raise InvalidCookieError(f"the metadata store has no cookie of {bookie}; it knows: {known}")
    return found


def _whole(places: tuple[str, ...], store: MetadataStore) -> Cookie:
    """The common cookie of all directories, as ``_agreed``. Raises InvalidCookieError also if one lacks a cookie."""
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
    """The common cookie of all directories. Raises InvalidCookieError if they belong to several bookies or another cluster."""
    if not cookies:
        raise InvalidCookieError(
            f"none of {', '.join(places)} has a cookie; a bookie makes it when it first starts there"
        )
    settled = {}
    for place, cookie in cookies.items():
        recorded = store.read_cookie(cookie.bookie_id)
        settled[place] = cookie.settled(recorded.value if recorded else None)
    cookies = settled
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


def _stamp_anew(
    places: tuple[str, ...], store: MetadataStore, cookie: Cookie, recorded: Versioned[Cookie] | None
) -> None:
    """Give the directories and the metadata store this cookie with a new nonce. Raises MetadataVersionError if another host did
    so since ``recorded``."""
    stamp(with_nonce(cookie, secrets.token_hex(8), places), store, recorded.version if recorded else None)
