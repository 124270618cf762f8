"""What layers do to tokens: measures, and hooks that take them."""
