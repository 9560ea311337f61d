"""What the tests share: the server under test, gdb as a conversation, a raw protocol client."""
