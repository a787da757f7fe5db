"""Where a client's certificate and identity lie."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class TLS:
    """Mutual TLS: the files that ``torchnative-ctl cert issue NAME`` writes.

    Args:
        cert: this client's certificate (PEM).
        key: its private key (PEM).
        ca: the certificate of the CA that signed the server's certificate (PEM).
        identity: this client's Ed25519 identity; default: beside ``cert``, with the ending ``.identity``.
        server_name: the name that the server's certificate must carry; default: the host of the server's URL.
        server_key: the server's identity in hex, when it is to be pinned.
    """

    cert: str | os.PathLike
    key: str | os.PathLike
    ca: str | os.PathLike
    identity: str | os.PathLike | None = None
    server_name: str | None = None
    server_key: str | None = None

    @classmethod
    def from_folder(cls, folder: str | os.PathLike, name: str) -> "TLS":
        """The files of client ``name`` in the folder that ``torchnative-ctl cert`` wrote."""
        base = os.path.join(folder, name)
        return cls(cert=base + ".pem", key=base + ".key", ca=os.path.join(folder, "ca.pem"))

    def client_arguments(self) -> dict:
        """The keyword arguments of the native client. Raises FileNotFoundError naming a file that is missing."""
        identity = self.identity
        if identity is None:
            identity = os.path.splitext(os.fspath(self.cert))[0] + ".identity"
        files = {"cert": self.cert, "key": self.key, "ca": self.ca, "identity": identity}
        for what, path in files.items():
            if not os.path.isfile(path):
                raise FileNotFoundError(
                    f"TLS {what} file {os.fspath(path)!r} does not exist; "
                    "`torchnative-ctl cert issue NAME` writes a client's files"
                )
        found = {what: os.fspath(path) for what, path in files.items()}
        return found | {"server_name": self.server_name, "server_key": self.server_key}
