"""The keys of a federation: a private authority, the server's certificate, and a key for each device.

Elliptic curves throughout: P-256 for TLS, P-384 in OpenSSH's form for devices, which is what Flower takes. Private keys are made for their
owner alone (0600), are never overwritten, and the authority's is not needed by anything that runs: keep it elsewhere.
"""

from __future__ import annotations

import datetime
import ipaddress
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedcodist.errors import ConfigError, Failure
from fedcodist.settings import one_line
from fedcodist.storage import durable

ANY = ("0.0.0.0", "::")  # noqa: S104 - all addresses of the machine: what devices call it only they know
DAYS = 825  # the most that TLS clients accept of a certificate
AUTHORITY_DAYS = 3650


class Insecure(Failure):
    """A key or a certificate that must not be used."""

    code = 10


def authority(directory: Path) -> None:
    """A new certificate authority of this federation alone: ca.key and ca.crt."""
    x509, hashes, ec = _library()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fedcodist federation")])
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    built = (
        _builder(x509, name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_key(directory / "ca.key", key)
    durable.write_file(directory / "ca.crt", _pem(built))


def certificate(authority: Path, directory: Path, hosts: Sequence[str]) -> None:
    """A certificate of the server for these names and addresses: server.key and server.crt."""
    x509, hashes, ec = _library()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # pyright: ignore[reportMissingImports]

    signer: Any = load_pem_private_key((authority / "ca.key").read_bytes(), None)
    issuer = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fedcodist server")])
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    built = (
        _builder(x509, name, issuer.subject, key.public_key(), DAYS)
        .add_extension(x509.SubjectAlternativeName([_host(x509, host) for host in dict.fromkeys(hosts)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    _write_key(directory / "server.key", key)
    durable.write_file(directory / "server.crt", _pem(built))


def device(directory: Path) -> None:
    """A device's key: node.key, and node.pub for the server."""
    _, _, ec = _library()
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat  # pyright: ignore[reportMissingImports]

    key = ec.generate_private_key(ec.SECP384R1())
    durable.write_file(directory / "node.key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    durable.write_file(directory / "node.pub", key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")


def secret(path: Path) -> None:
    """A secret of one machine: its processes share it, and nobody else knows it."""
    durable.write_file(path, secrets.token_urlsafe(48).encode())


def check_private(path: Path) -> None:
    """Refuse a key that others can read."""
    if not path.is_file():
        raise Insecure(f"{path}: got no key; allowed one that fedcodist deploy init made")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise Insecure(f"{path}: got a key of mode {mode:04o}; allowed 0600 (chmod 600)")


def check_certificate(path: Path, host: str) -> None:
    """Refuse a certificate that has ended, or whose names are not where devices connect."""
    x509, _, _ = _library()
    try:
        made = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Insecure(one_line(f"{path}: got no certificate; allowed one that fedcodist deploy init made ({error})")) from None
    now = datetime.datetime.now(datetime.UTC)
    if not made.not_valid_before_utc <= now <= made.not_valid_after_utc:
        span = f"{made.not_valid_before_utc:%Y-%m-%d} to {made.not_valid_after_utc:%Y-%m-%d}"
        raise Insecure(f"{path}: got a certificate for {span}; allowed one for {now:%Y-%m-%d}; fedcodist deploy certify makes another")
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if host not in ANY and _host(x509, host) not in list(names):
        said = ", ".join(str(name.value) for name in names)
        raise Insecure(one_line(f"{path}: got a certificate for {said}; allowed one for {host}; fedcodist deploy certify makes another"))


def _builder(x509: Any, subject: Any, issuer: Any, public: Any, days: int) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _host(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_key(path: Path, key: Any) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # pyright: ignore[reportMissingImports]

    durable.write_file(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _pem(built: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding  # pyright: ignore[reportMissingImports]

    return built.public_bytes(Encoding.PEM)


def _library() -> tuple[Any, Any, Any]:
    try:
        from cryptography import x509  # pyright: ignore[reportMissingImports]
        from cryptography.hazmat.primitives import hashes  # pyright: ignore[reportMissingImports]
        from cryptography.hazmat.primitives.asymmetric import ec  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError("deploy: cryptography is not installed; pip install 'fedcodist[deploy]'") from None
    return x509, hashes, ec
