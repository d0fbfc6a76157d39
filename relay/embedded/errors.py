"""What can go wrong while a server or a program runs as our child.

EmbeddedError
├── BinaryMissing       no usable server program: install one or name it
├── ProcessDied         a child ended when it should run; its log tail is in the message
└── DeadlineExceeded    something did not happen in time; the message says what
"""


class EmbeddedError(RuntimeError):
    """The root of the tree above."""


class BinaryMissing(EmbeddedError):
    """No usable program was found; the message names the remedy."""


class ProcessDied(EmbeddedError):
    """A child process ended too early, or with an error."""


class DeadlineExceeded(EmbeddedError, TimeoutError):
    """The thing waited for did not happen before the deadline."""
