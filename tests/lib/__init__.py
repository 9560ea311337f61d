"""Shared by the tests: the server under test, gdb as a conversation, a raw protocol client."""
