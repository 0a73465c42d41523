"""Who may connect, and as what: people by tokens, processes by certificates.

Importing this loads neither gRPC nor cryptography: those are in credentials.py and certificate_authority.py.
"""

from .authorization import Authorization
from .caller import Caller
from .roles import Person, Role
from .tokens import Tokens

__all__ = ["Authorization", "Caller", "Person", "Role", "Tokens"]
