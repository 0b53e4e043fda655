"""Decides whether a principal may do something, as the ACLs say: Kafka's rules, without input and output."""

from ottla.machines.authorization.authorizer import AclAuthorizer, AclSession

__all__ = ["AclAuthorizer", "AclSession"]
