"""Certificates of an authority that a test makes, as the machines of a cluster have them."""

import ipaddress
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def ray_tls(folder: Path) -> dict[str, str]:
    """The environment of a machine whose Ray uses TLS, with a certificate of a new authority."""
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, machine_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _certificate("the authority", "the authority", authority_key, authority_key, is_ca=True)
    machine = _certificate("a machine", "the authority", machine_key, authority_key)
    files = {
        "RAY_TLS_CA_CERT": authority.public_bytes(serialization.Encoding.PEM),
        "RAY_TLS_SERVER_CERT": machine.public_bytes(serialization.Encoding.PEM),
        "RAY_TLS_SERVER_KEY": machine_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return {"RAY_USE_TLS": "1", **{name: str(folder / name) for name in files}}


def _certificate(
    subject: str,
    issuer: str,
    key: ec.EllipticCurvePrivateKey,
    signed_with: ec.EllipticCurvePrivateKey,
    *,
    is_ca: bool = False,
) -> x509.Certificate:
    now = datetime.now(UTC)
    # Ray looks for the address to which it connects.
    here = {
        ipaddress.ip_address(address.address)
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    }
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(map(x509.IPAddress, here)), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .sign(signed_with, hashes.SHA256())
    )
