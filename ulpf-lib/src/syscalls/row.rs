//! The fields of a row of the table of system calls.

/// Most arguments of a system call.
pub const ARGUMENTS: usize = 6;

/// The length of a buffer in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Len {
    /// This number.
    Fixed(u16),
    /// The value of the argument with this number.
    Arg(u8),
    /// The value of the argument, times the size of an element.
    ArgTimes(u8, u16),
    /// The value of the argument, plus this number of bytes.
    ArgAnd(u8, u16),
    /// The bits of an fd_set with the number of descriptors in the argument.
    FdSet(u8),
    /// One byte for each page of the number of bytes in the argument.
    Pages(u8),
    /// A socklen_t that the argument points to.
    Deref(u8),
    /// A structure that begins with its own size, in 32 bits.
    OwnSize,
    /// Text that ends with NUL.
    Str,
}

/// The kernel's use of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dir {
    /// All of it is read.
    In,
    /// The kernel reads the number of bytes in the result.
    InRet,
    /// Written in full when the call succeeds.
    Out,
    /// The kernel writes the number of bytes in the result.
    OutRet,
    /// The kernel writes the number of elements in the result, of this size.
    OutRetTimes(u16),
    /// The kernel writes this number of bytes, plus the number in the result.
    OutRetAfter(u16),
    /// All of it is read, and perhaps written.
    InOut,
    /// An array of iovec: the kernel reads what it points to.
    IovIn,
    /// An array of iovec: the kernel writes what it points to.
    IovOut,
    /// A msghdr that is sent.
    MsgIn,
    /// A msghdr that is received.
    MsgOut,
    /// An array of mmsghdr that are sent.
    MMsgIn,
    /// An array of mmsghdr that are received.
    MMsgOut,
    /// An array of futex_waitv.
    WaitV,
}

/// A buffer: the number of the argument that points to it, its use, and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buf {
    /// Number of the argument, from 0.
    pub arg: u8,
    /// The kernel's use of the buffer.
    pub dir: Dir,
    /// Length of the buffer.
    pub len: Len,
}

/// The kernel's use of the structure of a relative time-out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// It is only read.
    Unchanged,
    /// It receives the remaining time, also when a signal has ended the call.
    Written,
    /// It receives the remaining time when the call has succeeded.
    WrittenOnSuccess,
}

/// Form of a time-out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// The argument itself, in milliseconds.
    Millis,
    /// A pointer to a timespec.
    Timespec,
    /// A pointer to a timeval.
    Timeval,
}

/// The relative time-out of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeout {
    /// Number of the argument, from 0.
    pub arg: u8,
    /// Its form.
    pub unit: Unit,
    /// The kernel's use of the structure.
    pub left: Left,
    /// The time-out is relative only if this argument has none of these bits.
    pub unless: Option<(u8, u8)>,
    /// The argument for the remaining time of a sleep that a signal ends.
    pub remainder: Option<u8>,
}

impl Timeout {
    /// Whether it is relative in a call with these arguments.
    pub fn is_relative(&self, args: &[u64; ARGUMENTS]) -> bool {
        let given = |arg: u8| args.get(arg as usize).copied().unwrap_or(0);
        self.unless
            .is_none_or(|(arg, bits)| given(arg) & bits as u64 == 0)
    }
}

/// Role of an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A file descriptor.
    Fd,
    /// A signed number. The kernel takes an int and ignores the upper half of the register.
    Int,
    /// A size, or a count.
    Uint,
    /// Flags, or a value best read in hexadecimal.
    Hex,
    /// The mode of a file.
    Octal,
    /// A position in a file.
    Position,
    /// A relative time-out in milliseconds.
    Millis,
    /// A structure with a relative time-out.
    Timeout(Unit, Left),
    /// The structure for the remaining time of a sleep that a signal ends.
    Remainder,
    /// A plain address, or a pointer to data that no row can describe.
    Pointer,
    /// Points to a buffer, [`Dir::In`].
    In(Len),
    /// Points to a buffer, [`Dir::InRet`].
    InRet(Len),
    /// Points to a buffer, [`Dir::Out`].
    Out(Len),
    /// Points to a buffer, [`Dir::OutRet`].
    OutRet(Len),
    /// Points to a buffer, [`Dir::OutRetTimes`].
    OutRetTimes(u16, Len),
    /// Points to a buffer, [`Dir::OutRetAfter`].
    OutRetAfter(u16, Len),
    /// Points to a buffer, [`Dir::InOut`].
    InOut(Len),
    /// Points to a buffer, [`Dir::IovIn`].
    IovIn(Len),
    /// Points to a buffer, [`Dir::IovOut`].
    IovOut(Len),
    /// Points to a buffer, [`Dir::MsgIn`].
    MsgIn(Len),
    /// Points to a buffer, [`Dir::MsgOut`].
    MsgOut(Len),
    /// Points to a buffer, [`Dir::MMsgIn`].
    MMsgIn(Len),
    /// Points to a buffer, [`Dir::MMsgOut`].
    MMsgOut(Len),
    /// Points to a buffer, [`Dir::WaitV`].
    WaitV(Len),
}

/// The size of a timespec and of a timeval.
pub const TIME_SIZE: u16 = 16;

impl Role {
    const fn buffer(self) -> Option<(Dir, Len)> {
        let time = Len::Fixed(TIME_SIZE);
        Some(match self {
            Role::In(len) => (Dir::In, len),
            Role::InRet(len) => (Dir::InRet, len),
            Role::Out(len) => (Dir::Out, len),
            Role::OutRet(len) => (Dir::OutRet, len),
            Role::OutRetTimes(size, len) => (Dir::OutRetTimes(size), len),
            Role::OutRetAfter(size, len) => (Dir::OutRetAfter(size), len),
            Role::InOut(len) => (Dir::InOut, len),
            Role::IovIn(len) => (Dir::IovIn, len),
            Role::IovOut(len) => (Dir::IovOut, len),
            Role::MsgIn(len) => (Dir::MsgIn, len),
            Role::MsgOut(len) => (Dir::MsgOut, len),
            Role::MMsgIn(len) => (Dir::MMsgIn, len),
            Role::MMsgOut(len) => (Dir::MMsgOut, len),
            Role::WaitV(len) => (Dir::WaitV, len),
            Role::Timeout(_, Left::Unchanged) => (Dir::In, time),
            Role::Timeout(..) => (Dir::InOut, time),
            Role::Remainder => (Dir::Out, time),
            _ => return None,
        })
    }
}

/// Source of the knowledge about the memory of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// The row's buffers, and nothing else.
    Buffers,
    /// The arguments are addresses as such: they must reach the kernel unchanged.
    Addresses,
    /// One of the arguments is a command that determines it.
    ByCommand,
    /// Unknown: pointers to pointers, or sizes that only the kernel knows. Such calls do not block.
    Open,
}

/// Whether the call waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocks {
    /// Never for long: it may run with all signals blocked.
    Never,
    /// Perhaps, but no signal ends it.
    Uninterruptibly,
    /// Perhaps, and a signal ends it with EINTR.
    Interruptibly,
}

/// The end of a socket's connection for which a call waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Socket {
    /// For data to arrive (SO_RCVTIMEO).
    Receives,
    /// For room to send (SO_SNDTIMEO).
    Sends,
}

/// A call that ends early only when something is wrong, or when a signal interrupts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FullTransfer {
    /// With any arguments.
    Always,
    /// If the argument of that number has MSG_WAITALL.
    IfWaitAll(u8),
}

/// A property that matters when a call is made on the program's behalf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// It makes a thread or a process.
    Clone,
    /// It replaces the program.
    Exec,
    /// It changes what lies at an address.
    Mapping,
    /// It locks memory against paging, or unlocks it.
    Lock,
    /// The stub intervenes in it, or answers it alone.
    Stub,
    /// It changes the program's rights.
    Rights,
    /// futex(2): its arguments depend on the operation.
    Futex,
    /// It waits under the signal mask that the argument points to.
    Mask(u8),
    /// As `Mask`; the last argument points to the mask's address and size.
    MaskPair,
    /// It accepts the signals of the set that the argument points to.
    SignalSet(u8),
}

/// Conditions on a call's arguments, beside those on its buffers, under which a patched site may make it without the
/// stub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Bits of arguments that are null.
    pub null: u8,
    /// Bits of arguments that are checked as if they pointed to buffers.
    pub near: u8,
    /// An argument that must have this value.
    pub is: Option<(u8, i32)>,
}

/// One system call.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// As in the manual, without the prefix of the constant.
    pub name: &'static str,
    /// Roles of the arguments, in order.
    pub roles: &'static [Role],
    /// The buffers among the roles, by argument number.
    pub buffers: &'static [Buf],
    /// Source of the knowledge about the memory of the call.
    pub memory: Memory,
    /// Whether the call waits.
    pub blocks: Blocks,
    /// It consumes data, or waits. EFAULT is then final, because part of its work may be done. All other calls may be
    /// repeated with the pages open.
    pub consumes: bool,
    /// How long it waits, if an argument says so.
    pub timeout: Option<Timeout>,
    /// On a socket, how long it waits is limited by SO_RCVTIMEO or SO_SNDTIMEO.
    pub socket: Option<Socket>,
    /// It ends early only when something is wrong.
    pub full: Option<FullTransfer>,
    /// The argument with a position in a file.
    pub position: Option<u8>,
    /// The same call with an array of iovec in place of its buffer.
    pub vectored: Option<u32>,
    /// A patched site may make it without the stub, under these conditions.
    pub slot: Option<Slot>,
    /// A further property.
    pub special: Option<Special>,
}

/// The buffers among the roles, and how many there are.
pub(super) const fn buffers(roles: &[Role]) -> ([Buf; ARGUMENTS], usize) {
    let none = Buf {
        arg: 0,
        dir: Dir::In,
        len: Len::Fixed(0),
    };
    let (mut all, mut n, mut arg) = ([none; ARGUMENTS], 0, 0);
    while arg < roles.len() {
        if let Some((dir, len)) = roles[arg].buffer() {
            all[n] = Buf {
                arg: arg as u8,
                dir,
                len,
            };
            n += 1;
        }
        arg += 1;
    }
    (all, n)
}

/// `__NR_read` becomes `read`.
const fn without_prefix(constant: &'static str) -> &'static str {
    constant.split_at("__NR_".len()).1
}

/// The words of a row.
impl Row {
    /// A call that may block, and whose memory is that of its buffers.
    pub(super) const fn new(
        constant: &'static str,
        roles: &'static [Role],
        buffers: &'static [Buf],
    ) -> Row {
        let mut row = Row {
            name: without_prefix(constant),
            roles,
            buffers,
            memory: Memory::Buffers,
            blocks: Blocks::Interruptibly,
            consumes: false,
            timeout: None,
            socket: None,
            full: None,
            position: None,
            vectored: None,
            slot: None,
            special: None,
        };
        let (mut n, mut remainder) = (0, None);
        while n < roles.len() {
            let arg = n as u8;
            match roles[n] {
                Role::Position => row.position = Some(arg),
                Role::Remainder => remainder = Some(arg),
                Role::Millis => row = row.with_timeout(arg, Unit::Millis, Left::Unchanged),
                Role::Timeout(unit, left) => row = row.with_timeout(arg, unit, left),
                _ => {}
            }
            n += 1;
        }
        if let Some(timeout) = &mut row.timeout {
            timeout.remainder = remainder;
        }
        row
    }
    const fn with_timeout(mut self, arg: u8, unit: Unit, left: Left) -> Row {
        self.timeout = Some(Timeout {
            arg,
            unit,
            left,
            unless: None,
            remainder: None,
        });
        self
    }
    pub(super) const fn addresses(mut self) -> Row {
        self.memory = Memory::Addresses;
        self
    }
    pub(super) const fn by_command(mut self) -> Row {
        self.memory = Memory::ByCommand;
        self
    }
    pub(super) const fn open(mut self) -> Row {
        self.memory = Memory::Open;
        self
    }
    pub(super) const fn never_blocks(mut self) -> Row {
        self.blocks = Blocks::Never;
        self
    }
    pub(super) const fn uninterruptible(mut self) -> Row {
        self.blocks = Blocks::Uninterruptibly;
        self
    }
    pub(super) const fn consumes(mut self) -> Row {
        self.consumes = true;
        self
    }
    pub(super) const fn receives(mut self) -> Row {
        self.socket = Some(Socket::Receives);
        self
    }
    pub(super) const fn sends(mut self) -> Row {
        self.socket = Some(Socket::Sends);
        self
    }
    pub(super) const fn full(mut self) -> Row {
        self.full = Some(FullTransfer::Always);
        self
    }
    pub(super) const fn full_if_waitall(mut self, arg: u8) -> Row {
        self.full = Some(FullTransfer::IfWaitAll(arg));
        self
    }
    pub(super) const fn vectored(mut self, number: u32) -> Row {
        self.vectored = Some(number);
        self
    }
    pub(super) const fn relative_unless(mut self, arg: u8, bits: u8) -> Row {
        if let Some(timeout) = &mut self.timeout {
            timeout.unless = Some((arg, bits));
        }
        self
    }
    pub(super) const fn special(mut self, special: Special) -> Row {
        self.special = Some(special);
        self
    }
    pub(super) const fn slot(mut self) -> Row {
        self.slot = Some(Slot {
            null: 0,
            near: 0,
            is: None,
        });
        self
    }
    pub(super) const fn if_null(mut self, arg: u8) -> Row {
        if let Some(slot) = &mut self.slot {
            slot.null |= 1 << arg;
        }
        self
    }
    pub(super) const fn if_near(mut self, arg: u8) -> Row {
        if let Some(slot) = &mut self.slot {
            slot.near |= 1 << arg;
        }
        self
    }
    pub(super) const fn if_is(mut self, arg: u8, value: i32) -> Row {
        if let Some(slot) = &mut self.slot {
            slot.is = Some((arg, value));
        }
        self
    }
}
