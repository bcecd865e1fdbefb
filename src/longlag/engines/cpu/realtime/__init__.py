"""Learning in real time, compiled."""
