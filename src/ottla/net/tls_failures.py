"""Describes failures of TLS in words that say what to do."""

from __future__ import annotations

import ssl

_HINTS = (
    ("HTTP_REQUEST", "spoke HTTP on a port for TLS"),
    ("WRONG_VERSION_NUMBER", "did not speak TLS; its security.protocol should be SSL or SASL_SSL"),
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "sent no certificate, which ssl.client.auth=required demands"),
    ("CERTIFICATE_UNKNOWN", "does not accept the certificate of this broker; does its trust store have the authority?"),
    ("UNKNOWN_CA", "does not know the authority of this broker's certificate; it belongs into its trust store"),
    ("UNSUPPORTED_PROTOCOL", "offers no version of TLS in ssl.enabled.protocols"),
    ("NO_SHARED_CIPHER", "offers no cipher suite in ssl.cipher.suites"),
    ("CERTIFICATE_VERIFY_FAILED", "sent a certificate that is not valid here"),
)


def describe_tls_failure(error: BaseException) -> str:
    """Returns a sentence without a subject about a handshake that failed."""
    reason = getattr(error, "reason", None) or str(error)
    hint = next((words for code, words in _HINTS if code in str(reason) or code in str(error)), None)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{hint or 'sent a certificate that is not valid here'}: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return hint or f"failed in its TLS handshake: {reason}"
    return f"did not complete its TLS handshake: {error}"
