"""The shop of `outbox demo`: an ordinary application that uses the outbox and the inbox."""
