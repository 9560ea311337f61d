//! A file that somebody else named: opened only if it is one that can do no harm.
