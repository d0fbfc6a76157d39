"""In which calls the messages of a batch are written. Pure.

outbox_write() takes the keys of one call in sorted order, so two calls that share keys wait for each other and never
deadlock; and it writes all of a call or, when the database refuses a message, nothing. A batch of several calls would
keep neither promise. So everything with a key or a time goes in one call, before the rest, which cannot be refused.
"""

from collections.abc import Sequence

from outbox.message import Message


def needs_write(message: Message) -> bool:
    """Keys, delays and relative times need outbox_write(); everything else is one INSERT."""
    return not (
        message.dedup_key is None
        and message.unique_key is None
        and message.ordering_key is None
        and message.due_at is None
        and message.delay is None
        and message.expires_in is None
    )


def calls(messages: Sequence[Message], chunk_size: int) -> list[list[int]]:
    """The places of the messages, call by call, in the order in which they are to be written."""
    places = range(len(messages))
    special = [place for place in places if needs_write(messages[place])]
    if special and len(messages) <= chunk_size:
        return [list(places)]
    plain = [place for place in places if not needs_write(messages[place])]
    chunks = [plain[at : at + chunk_size] for at in range(0, len(plain), chunk_size)]
    return [special, *chunks] if special else chunks
