"""An impostor: a server that clients dial in place of a bookie. It has the bookie's old port, or made a registration."""

from __future__ import annotations

import contextlib
import socket
import threading

import msgspec
from kazoo.client import KazooClient

from bookspark.store.wire.frames import FrameReceiver, control_frame
from bookspark.store.wire.header import Flag, Kind, Status, WireError
from bookspark.store.wire.messages import Hello
from tests.awaiting import SECONDS_MAX


class Impostor:
    """Listens where clients come, keeps their requests, and answers them by ``answers(header, body)``."""

    def __init__(self, answers, port=0, tls=None):
        self.requests = []
        """Header and body, or batch, of each request."""
        self.connections = 0
        self._accepted = []
        self._answers, self._tls = answers, tls
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                self.connections += 1
                self._accepted.append(accepted)
                accepted.settimeout(SECONDS_MAX)
                threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted):
        receiver = FrameReceiver()
        with contextlib.suppress(OSError, EOFError, WireError), contextlib.ExitStack() as stack:
            stack.callback(accepted.close)
            if self._tls is not None:
                accepted = stack.enter_context(self._tls.wrap_socket(accepted, server_side=True))
            while count := accepted.recv_into(receiver.buffer()):
                for frame in receiver.received(count):
                    self.requests.append((frame.header, bytes(frame.batch or frame.body)))
                    accepted.sendall(self._answers(frame.header, bytes(frame.body)))

    @property
    def said(self):
        """All that clients said in HELLO."""
        return [Hello.decode(body) for header, body in self.requests if header.kind == Kind.HELLO]

    def got_nothing(self):
        """Did clients come, and say nothing but their nonces?"""
        assert self.said
        assert {header.kind for header, _ in self.requests} == {Kind.HELLO}
        assert not any(any(header.master_key) for header, _ in self.requests)
        assert not [hello for hello in self.said if hello.proof or hello.client]
        return True

    def got_a_request(self):
        """Did a client send more than HELLO, or prove something?"""
        assert self.connections
        return any(header.kind != Kind.HELLO for header, _ in self.requests) or any(one.proof for one in self.said)

    def close(self):
        for each in (self._listener, *self._accepted):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(SECONDS_MAX)


@contextlib.contextmanager
def impostor(answers, **options):
    with contextlib.closing(Impostor(answers, **options)) as made:
        yield made


def proves_nothing(bookie_id):
    """Says OK to all."""

    def answers(header, body):
        value = 1 if header.kind == Kind.HELLO else 0
        return control_frame(header._replace(flags=Flag.RESPONSE, status=Status.OK, value=value), bookie_id.encode())

    return answers


@contextlib.contextmanager
def registered(zookeeper, bookie_id, address):
    """The bookie's registration, made again by a stranger: it leads to ``address``. Afterwards it is the bookie's own again."""
    hosts, _, chroot = zookeeper.partition("/")
    client = KazooClient(f"{hosts}/{chroot}")
    path = f"/ledgers/available/{bookie_id}"
    try:
        client.start(SECONDS_MAX)
        found = msgspec.json.decode(client.get(path)[0])
        swap(client, path, msgspec.json.encode(found | {"address": address}))
        yield
        swap(client, path, msgspec.json.encode(found))
    finally:
        client.stop()
        client.close()


def swap(client, path, value):
    transaction = client.transaction()
    transaction.delete(path)
    transaction.create(path, value, ephemeral=False)
    assert transaction.commit()[-1] == path
