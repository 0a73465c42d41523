"""Where a server may be: one address, or those of all servers that may lead."""


def addresses_of(text: str) -> tuple[str, ...]:
    """host:port, several with commas, in the order in which they are tried.

    >>> addresses_of("a:1, b:2")
    ('a:1', 'b:2')
    """
    return tuple(address for address in (part.strip() for part in text.split(",")) if address)
