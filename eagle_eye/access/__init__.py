"""Who may connect, and as what: people by tokens, processes by certificates.

Importing this loads neither gRPC nor cryptography: those are in credentials.py and authority.py.
"""

from .authorization import Gate
from .roles import Person, Role
from .tokens import Tokens

__all__ = ["Gate", "Person", "Role", "Tokens"]
