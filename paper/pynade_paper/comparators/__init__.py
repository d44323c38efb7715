"""Models that the paper's MNIST tables compare with: Pixel RNN, DRAW, DBN and DARN."""
