"""TLS: checks the certificate files of the service, and makes the trust stores of HTTP clients."""

import os
import re
import ssl
from pathlib import Path

PEM = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


class BadCertificate(Exception):
    """The certificate or its key cannot be used."""


def check(cert: Path | None, key: Path | None) -> None:
    """Check that both files or none are set, readable, and belong together. Raises `BadCertificate`."""
    if cert is None and key is None:
        return
    if cert is None or key is None:
        present, missing = ("tls_key", "tls_cert") if cert is None else ("tls_cert", "tls_key")
        raise BadCertificate(f"{present} is set and {missing} is not; HTTPS needs both.")
    read_leaf(cert)
    _read("key", key)
    try:
        # Without the callback OpenSSL would prompt for a password on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, _NoPassword) as error:
        raise BadCertificate(_sentence(error, cert, key)) from None


def read_leaf(cert: Path) -> str:
    """The service's own certificate, the first of its chain."""
    match = PEM.search(_read("certificate", cert))
    if match is None:
        raise BadCertificate(f"The TLS certificate {cert} holds no certificate in PEM form.")
    return match[0] + "\n"


class _NoPassword(Exception):
    pass


def _no_password() -> str:
    raise _NoPassword("it is encrypted")


def _read(name: str, path: Path) -> str:
    try:
        return path.read_text(encoding="latin-1")
    except OSError as error:
        raise BadCertificate(f"The TLS {name} {path} cannot be read: {error.strerror}.") from None


def _sentence(error: Exception, cert: Path, key: Path) -> str:
    if isinstance(error, _NoPassword):
        return f"The TLS key {key} is encrypted; a service needs one without a password."
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return f"The TLS key {key} does not belong to the certificate {cert}."
    return f"The TLS certificate {cert} and key {key} cannot be used: {reason or 'no key in PEM form'}."


def trust_only(certificate: str) -> ssl.SSLContext:
    """Trust exactly this certificate.

    Host names are not checked: the server that presents it has its key, whatever address was used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context


def trust_public_cas() -> ssl.SSLContext:
    """Trust public certificate authorities, or those of SSL_CERT_FILE or SSL_CERT_DIR. Loading takes a while."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file or folder:
        return ssl.create_default_context(cafile=file, capath=folder)
    import certifi  # installed with the HTTP client, also where the system has no certificates

    return ssl.create_default_context(cafile=certifi.where())
