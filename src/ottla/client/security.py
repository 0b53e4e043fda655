"""The security of a client's connections: `Producer("host:9093", security=security_from(properties))`."""

from __future__ import annotations

from ottla.net.client_properties import BadClientPropertiesError, security_from
from ottla.net.security import ConnectionSecurity, SaslLogin

__all__ = ["BadClientPropertiesError", "ConnectionSecurity", "SaslLogin", "security_from"]
