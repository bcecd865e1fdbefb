"""The laboratory's trainer of LSTM-1997 networks."""
