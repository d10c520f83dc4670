"""TLS without a socket: bytes in, bytes out, for both shells.

The shell reads and writes what is on the wire; this turns it into what is meant. So TLS changes
nothing of who reads, who writes and who waits: a record that carries forty replies is forty
replies at once, and a read never waits for what is decrypted already.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
from typing import Final

from .address import Address
from .errors import ConnectFailed, Refused

_READ: Final = 65_536


class Tls:
    """One TLS connection, from the client's side.

    Args:
        address: Whose certificate is expected.
        context: How to verify it, and what to present; None verifies against the system's
            authorities, the server's name included.

    Attributes:
        ready: Whether the handshake is over.
        ended: Whether the peer said that nothing more will come; an end without that is a cut.
    """

    def __init__(self, address: Address, context: ssl.SSLContext | None) -> None:
        self.ready = False
        self.ended = False
        self._address = address
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # One that its owner may take again: a signal handler may write while a read is under way.
        self._lock = threading.RLock()
        try:
            self._object = (context or ssl.create_default_context()).wrap_bio(
                self._incoming, self._outgoing, server_hostname=address.host
            )
        except ValueError as error:  # a name that can be nobody's
            raise ConnectFailed(f"{address}: {error}") from error

    def handshake(self, data: bytes | None = None) -> bytes:
        """Go on with the handshake; what is to be sent, if anything.

        Args:
            data: What came; None to begin, b"" for the end of the stream.

        Raises:
            Refused: The server's certificate was not accepted.
            ConnectFailed: The peer does not speak TLS, or not with us. `farewell` is to be sent.
        """
        if data:
            self._incoming.write(data)
        elif data is not None:
            self._incoming.write_eof()
        try:
            self._object.do_handshake()
            self.ready = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            raise Refused(
                f"{self._address}: its certificate was not accepted: {error.verify_message}",
                "CERTIFICATE",
            ) from error
        except (ssl.SSLError, ssl.CertificateError) as error:
            told = f"TLS with {self._address} failed: {_reason(error)}"
            if isinstance(error, ssl.SSLEOFError):
                told = f"{self._address} ended the TLS handshake"
            raise ConnectFailed(told) from error
        return self._outgoing.read()

    def farewell(self) -> bytes:
        """What is left to be sent: after a failed handshake, the reason."""
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        """What is to be sent for `data`.

        Raises:
            ssl.SSLError: It cannot be sent.
        """
        with self._lock:
            self._object.write(data)
            return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """What `data`, just received, and what came before it, mean: whole records.

        Raises:
            ssl.SSLError: It is no TLS, or was tampered with.
        """
        with self._lock:
            self._incoming.write(data)
            records = []
            try:
                while record := self._object.read(_READ):
                    records.append(record)
                self.ended = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError:
                self.ended = True
            return b"".join(records)

    def close(self) -> bytes:
        """What tells the peer that nothing more will come."""
        with self._lock:
            with contextlib.suppress(ssl.SSLError):  # the peer has not said so itself yet
                self._object.unwrap()
            return self._outgoing.read()


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    if reason == "WRONG_VERSION_NUMBER":
        return "its answer is no TLS; is it a port without, valkey:// instead of valkeys://?"
    return str(reason or error).replace("_", " ").lower()
