//! A number that somebody else sent: checked before it is used.
