"""Trust: which certificates a client of this machine takes for the service's."""

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
