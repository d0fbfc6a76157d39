"""Other people's libraries, each in a script that the interpreter of their own environment runs."""
