"""The principals of clients that present a certificate."""

from __future__ import annotations

import ssl

from ottla.protocol.model.principal_rules import PrincipalRules
from ottla.protocol.model.principals import ANONYMOUS, Principal
from ottla.protocol.model.x509 import MalformedCertificateError, read_certificate

USER = "User"


class CertificatePrincipals:
    """Forms principals by the rules of one listener (`ssl.principal.mapping.rules`)."""

    def __init__(self, rules: str) -> None:
        self._rules = PrincipalRules(rules)

    def principal_of(self, connection: ssl.SSLObject) -> Principal | str:
        """Returns the principal of the client, which is anonymous without a certificate, or the reason why the
        connection must be closed."""
        certificate = connection.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        try:
            name = read_certificate(certificate).subject
        except MalformedCertificateError as failure:
            return str(failure)
        user = self._rules.user_of(name)
        if not user:
            return f"no rule in ssl.principal.mapping.rules matches its certificate {name!r}"
        return Principal(USER, user)
