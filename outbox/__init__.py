"""Write a message in your own transaction."""
