"""Certificates for TLS on loopback, made when a test needs them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_SETTINGS = """\
[req]
distinguished_name = name
prompt = no
[name]
CN = {name}
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[other]
basicConstraints = CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = {valid_for}
authorityKeyIdentifier = keyid
"""
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Pair(NamedTuple):
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Certificates:
    """An authority, and certificates of it; a test is skipped where there is no ``openssl``.

    Args:
        home: where they are put.
    """

    def __init__(self, home: Path) -> None:
        self._openssl = shutil.which("openssl")
        if self._openssl is None:
            pytest.skip("there is no openssl on PATH to make certificates with")
        home.mkdir(parents=True, exist_ok=True)
        self._home = home
        self._authority = self._make_authority("authority")
        self.authority = self._authority.certificate
        """The CA whom both sides trust."""
        self.server = self.make("server", "IP:127.0.0.1")
        self.elsewhere = self.make("elsewhere", "DNS:elsewhere.example")
        """Of a server with another name."""
        self.client = self.make("client", "DNS:client.example")
        stranger = self._make_authority("strange-authority")
        self.strange_authority = stranger.certificate
        """A CA whom only strangers trust."""
        self.stranger = self.make("stranger", "IP:127.0.0.1", of=stranger)
        """Of a server or a client, by the other CA."""

    def make(self, name: str, valid_for: str, *, of: Pair | None = None) -> Pair:
        """A certificate with a name or an address, such as ``IP:127.0.0.1``."""
        made, settings, request = self._files(name, valid_for)
        self._run("req", "-new", *_KEY, "-config", settings, "-keyout", made.key, "-out", request)
        authority = of or self._authority
        signed = ("-CA", authority.certificate, "-CAkey", authority.key, "-CAcreateserial", "-days", "2")
        extensions = ("-extfile", settings, "-extensions", "other")
        self._run("x509", "-req", "-in", request, *signed, *extensions, "-out", made.certificate)
        return made

    def _make_authority(self, name: str) -> Pair:
        made, settings, _ = self._files(name, "DNS:none.example")
        of_config = ("-config", settings, "-extensions", "authority")
        self._run(
            "req", "-x509", *_KEY, *of_config, "-days", "2", "-keyout", made.key, "-out", made.certificate
        )
        return made

    def _files(self, name: str, valid_for: str) -> tuple[Pair, Path, Path]:
        settings = self._home / f"{name}.cnf"
        settings.write_text(_SETTINGS.format(name=f"mx-rmq-tests-{name}", valid_for=valid_for))
        pair = Pair(self._home / f"{name}.pem", self._home / f"{name}.key")
        return pair, settings, self._home / f"{name}.csr"

    def _run(self, *args: str | Path) -> None:
        done = subprocess.run([str(self._openssl), *map(str, args)], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
