/// Whose a connection is, by what the kernel knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    User(u32),
    /// Its other end has been closed: the kernel does not say any more whose it was.
    Closed,
}
