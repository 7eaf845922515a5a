"""Trust: which certificates are taken for real.

Certificates: whether the files a service shall serve HTTPS with can be used.
"""

import os
import re
import ssl
from pathlib import Path

PEM = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


class BadCertificate(Exception):
    """The certificate or its key cannot be used."""


def check(cert: Path | None, key: Path | None) -> None:
    """Both or neither, readable, and belonging together; else `BadCertificate` says what is wrong."""
    if cert is None and key is None:
        return
    if cert is None or key is None:
        given, missing = ("tls_key", "tls_cert") if cert is None else ("tls_cert", "tls_key")
        raise BadCertificate(f"{given} is set and {missing} is not; HTTPS needs both.")
    leaf(cert)
    _read("key", key)
    try:
        # A password would be asked for on the terminal, where no service has anybody to answer.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, _NoPassword) as error:
        raise BadCertificate(_sentence(error, cert, key)) from None


def leaf(cert: Path) -> str:
    """The service's own certificate, the first of its chain."""
    found = PEM.search(_read("certificate", cert))
    if found is None:
        raise BadCertificate(f"The TLS certificate {cert} holds no certificate in PEM form.")
    return found[0] + "\n"


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


def trusting(certificate: str) -> ssl.SSLContext:
    """Trust for exactly this certificate.

    Its names are not compared: the one who shows it has its key, whatever address it was reached by.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context


def trusting_the_web() -> ssl.SSLContext:
    """Trust as browsers have it, or as the operator says with SSL_CERT_FILE or SSL_CERT_DIR. Takes a while."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file or folder:
        return ssl.create_default_context(cafile=file, capath=folder)
    import certifi  # comes with the HTTP client, and is there also where the system has no certificates

    return ssl.create_default_context(cafile=certifi.where())
