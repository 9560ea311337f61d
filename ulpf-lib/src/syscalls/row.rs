//! What one row of the table of system calls can say.

/// Most arguments of a system call.
pub const ARGUMENTS: usize = 6;

/// The length of a buffer in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Len {
    /// So many.
    Fixed(u16),
    /// As the argument of that number says.
    Arg(u8),
    /// As many elements as the argument says, and the size of one.
    ArgTimes(u8, u16),
    /// The argument, and so many bytes more.
    ArgAnd(u8, u16),
    /// The bits of an fd_set with as many descriptors as the argument says.
    FdSet(u8),
    /// One byte for each page of as many bytes as the argument says.
    Pages(u8),
    /// A socklen_t that the argument points to.
    Deref(u8),
    /// A structure that begins with its own size, in 32 bits.
    OwnSize,
    /// Text that ends with NUL.
    Str,
}

/// What the kernel does with a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dir {
    /// Read in full.
    In,
    /// As many bytes as the result says are read.
    InRet,
    /// Written in full when the call succeeds.
    Out,
    /// As many bytes as the result says are written.
    OutRet,
    /// As many elements of that size as the result says are written.
    OutRetTimes(u16),
    /// So many bytes, and as many more as the result says, are written.
    OutRetAfter(u16),
    /// Read, and written in full when the call succeeds.
    InOut,
    /// An array of iovec: the kernel reads what it points to.
    IovIn,
    /// An array of iovec: the kernel writes to what it points to.
    IovOut,
    /// A msghdr whose buffers are read.
    MsgIn,
    /// A msghdr whose buffers are written.
    MsgOut,
    /// An array of mmsghdr whose buffers are read.
    MMsgIn,
    /// An array of mmsghdr whose buffers are written.
    MMsgOut,
    /// An array of futex_waitv.
    WaitV,
}

/// A buffer of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buf {
    /// The argument that points to it, from 0.
    pub arg: u8,
    /// What happens to it.
    pub dir: Dir,
    /// How long it is.
    pub len: Len,
}

/// What the kernel does with the structure of a relative time-out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// Nothing but read it.
    Unchanged,
    /// It says what is left of the time, also when a signal has ended the call.
    Written,
    /// It says what is left of the time when the call has succeeded.
    WrittenOnSuccess,
}

/// How a time-out is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// An int of milliseconds; negative: for ever.
    Millis,
    /// A pointer to a timespec.
    Timespec,
    /// A pointer to a timeval.
    Timeval,
}

/// The relative time-out of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeout {
    /// Which argument it is, or which points to it, from 0.
    pub arg: u8,
    /// How it is given.
    pub unit: Unit,
    /// What the kernel does with the structure.
    pub left: Left,
    /// The time-out is relative only where this argument has none of these bits.
    pub unless: Option<(u8, u8)>,
    /// The argument for what is left of a sleep that a signal ends.
    pub remainder: Option<u8>,
}

impl Timeout {
    /// Is it, in a call with these arguments?
    pub fn is_relative(&self, args: &[u64; ARGUMENTS]) -> bool {
        let given = |arg: u8| args.get(arg as usize).copied().unwrap_or(0);
        self.unless
            .is_none_or(|(arg, bits)| given(arg) & bits as u64 == 0)
    }
}

/// What an argument is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A file descriptor.
    Fd,
    /// A signed number. The kernel takes an int, whatever stands in the upper half of the register.
    Int,
    /// A size, or a number of things.
    Uint,
    /// Flags, or what is best read in hexadecimal.
    Hex,
    /// The mode of a file.
    Octal,
    /// A position in a file.
    Position,
    /// A relative time-out in milliseconds.
    Millis,
    /// A structure with a relative time-out.
    Timeout(Unit, Left),
    /// The structure for what is left of a sleep that a signal ends.
    Remainder,
    /// An address as such, or a pointer to what no row can describe.
    Pointer,
    /// A pointer to a buffer of [`Dir::In`].
    In(Len),
    /// A pointer to a buffer of [`Dir::InRet`].
    InRet(Len),
    /// A pointer to a buffer of [`Dir::Out`].
    Out(Len),
    /// A pointer to a buffer of [`Dir::OutRet`].
    OutRet(Len),
    /// A pointer to a buffer of [`Dir::OutRetTimes`].
    OutRetTimes(u16, Len),
    /// A pointer to a buffer of [`Dir::OutRetAfter`].
    OutRetAfter(u16, Len),
    /// A pointer to a buffer of [`Dir::InOut`].
    InOut(Len),
    /// A pointer to a buffer of [`Dir::IovIn`].
    IovIn(Len),
    /// A pointer to a buffer of [`Dir::IovOut`].
    IovOut(Len),
    /// A pointer to a buffer of [`Dir::MsgIn`].
    MsgIn(Len),
    /// A pointer to a buffer of [`Dir::MsgOut`].
    MsgOut(Len),
    /// A pointer to a buffer of [`Dir::MMsgIn`].
    MMsgIn(Len),
    /// A pointer to a buffer of [`Dir::MMsgOut`].
    MMsgOut(Len),
    /// A pointer to a buffer of [`Dir::WaitV`].
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

/// Where it is written which memory a call touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// The row's buffers, and nothing else.
    Buffers,
    /// The arguments are addresses as such: they must reach the kernel unchanged.
    Addresses,
    /// One of the arguments is a command, on which everything depends.
    ByCommand,
    /// Nowhere: pointers to pointers, or sizes that only the kernel knows. Such calls do not block.
    Open,
}

/// Does the call wait?
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
    /// For data to read, or a connection to accept.
    Receives,
    /// For room to write, or a connection to be made.
    Sends,
}

/// A call that ends early only when something is wrong, or when a signal interrupts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whole {
    /// Whatever its arguments are.
    Always,
    /// Where the argument of that number has MSG_WAITALL.
    IfWaitAll(u8),
}

/// What else has to be known to make a call on somebody's behalf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// It makes a thread or a process.
    Clone,
    /// It runs another program.
    Exec,
    /// It changes what lies at an address.
    Mapping,
    /// Waiters and wakers know each other by the address of a word.
    Futex,
    /// It waits under the signal mask that the argument points to.
    Mask(u8),
    /// The same; the last argument points to the mask's address and size.
    MaskPair,
    /// It takes the signals of the set that the argument points to.
    SignalSet(u8),
}

/// What must be true of a call's arguments, beside where its buffers lie, so that a patched site may make
/// it without the stub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Bits of arguments that are null.
    pub null: u8,
    /// Bits of arguments that are looked at as if they pointed to buffers.
    pub near: u8,
    /// An argument has this value.
    pub is: Option<(u8, i32)>,
}

/// One system call.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// As in the manual's section 2, for all but a few.
    pub name: &'static str,
    /// What the arguments are.
    pub roles: &'static [Role],
    /// The buffers among the roles, by argument number.
    pub buffers: &'static [Buf],
    /// Whether the buffers are all that it touches.
    pub memory: Memory,
    /// Whether it waits.
    pub blocks: Blocks,
    /// It takes data from somewhere, or waits: EFAULT is its last word, because part of its work may be
    /// done. All others may be made again with the pages open.
    pub consumes: bool,
    /// Its relative time-out.
    pub timeout: Option<Timeout>,
    /// On a socket, how long it waits is limited by SO_RCVTIMEO or SO_SNDTIMEO.
    pub socket: Option<Socket>,
    /// A short count means that it is not done yet.
    pub whole: Option<Whole>,
    /// The argument with a position in a file.
    pub position: Option<u8>,
    /// The same call with an array of iovec in place of its buffer.
    pub vectored: Option<u32>,
    /// When a patched site may make the call by itself.
    pub slot: Option<Slot>,
    /// What makes it unlike others.
    pub special: Option<Special>,
}

/// The buffers among the roles, and how many there are.
pub const fn buffers(roles: &[Role]) -> ([Buf; ARGUMENTS], usize) {
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

/// `__NR_read` is read.
const fn without_prefix(constant: &'static str) -> &'static str {
    constant.split_at("__NR_".len()).1
}

/// The words of a row.
impl Row {
    /// A call that may block, and whose memory is that of its buffers.
    pub const fn new(
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
            whole: None,
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
    /// Its arguments are addresses as such.
    pub const fn addresses(mut self) -> Row {
        self.memory = Memory::Addresses;
        self
    }
    /// What it touches depends on a command.
    pub const fn by_command(mut self) -> Row {
        self.memory = Memory::ByCommand;
        self
    }
    /// What it touches cannot be described.
    pub const fn open(mut self) -> Row {
        self.memory = Memory::Open;
        self
    }
    /// It never waits for long.
    pub const fn never_blocks(mut self) -> Row {
        self.blocks = Blocks::Never;
        self
    }
    /// No signal ends it.
    pub const fn uninterruptible(mut self) -> Row {
        self.blocks = Blocks::Uninterruptibly;
        self
    }
    /// It takes data from somewhere, or waits.
    pub const fn consumes(mut self) -> Row {
        self.consumes = true;
        self
    }
    /// On a socket, SO_RCVTIMEO limits it.
    pub const fn receives(mut self) -> Row {
        self.socket = Some(Socket::Receives);
        self
    }
    /// On a socket, SO_SNDTIMEO limits it.
    pub const fn sends(mut self) -> Row {
        self.socket = Some(Socket::Sends);
        self
    }
    /// It ends early only when something is wrong, or interrupted.
    pub const fn whole(mut self) -> Row {
        self.whole = Some(Whole::Always);
        self
    }
    /// The same, if argument `arg` has MSG_WAITALL.
    pub const fn whole_if_waitall(mut self, arg: u8) -> Row {
        self.whole = Some(Whole::IfWaitAll(arg));
        self
    }
    /// Call `number` is the same with an array of iovec.
    pub const fn vectored(mut self, number: u32) -> Row {
        self.vectored = Some(number);
        self
    }
    /// Its time-out is relative unless argument `arg` has one of these bits.
    pub const fn relative_unless(mut self, arg: u8, bits: u8) -> Row {
        if let Some(timeout) = &mut self.timeout {
            timeout.unless = Some((arg, bits));
        }
        self
    }
    /// It is unlike others.
    pub const fn special(mut self, special: Special) -> Row {
        self.special = Some(special);
        self
    }
    /// A patched site may make it by itself.
    pub const fn slot(mut self) -> Row {
        self.slot = Some(Slot {
            null: 0,
            near: 0,
            is: None,
        });
        self
    }
    /// … if argument `arg` is null.
    pub const fn if_null(mut self, arg: u8) -> Row {
        if let Some(slot) = &mut self.slot {
            slot.null |= 1 << arg;
        }
        self
    }
    /// … if no page near argument `arg` is guarded.
    pub const fn if_near(mut self, arg: u8) -> Row {
        if let Some(slot) = &mut self.slot {
            slot.near |= 1 << arg;
        }
        self
    }
    /// … if argument `arg` has this value.
    pub const fn if_is(mut self, arg: u8, value: i32) -> Row {
        if let Some(slot) = &mut self.slot {
            slot.is = Some((arg, value));
        }
        self
    }
}
