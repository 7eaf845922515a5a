"""Trust: which certificates are taken for real."""

import os
import ssl


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
