/// Owner of a connection, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    User(u32),
    /// The other end is closed, so the kernel no longer reports its owner.
    Closed,
}
