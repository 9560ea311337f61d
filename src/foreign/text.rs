//! A text that somebody else wrote: written so that it is only text.
