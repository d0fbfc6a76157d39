"""Speed, always as a ratio of two things measured in turn in one run: absolute times on shared machines are noise."""
