//! One error with its places resolved, as a text and as a line of JSON.

use super::element::Element;
use super::kind::word;
use super::pattern::Frame;
use super::suppress::{Case, make};
use serde::Serialize;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use ulpf_host::foreign::text::Text;
use ulpf_host::say::json::{self, Address};
use ulpf_lib::ring::findings::{Asked, By, COPIES, Report, Trace, Wrong};
use ulpf_lib::{AccessKind, syscalls};
use ulpf_session::hit::place::{Place, written};
use ulpf_session::words::count;
use ulpf_symbols::Program;

const POISONED: &str = "where the program itself forbids it";

/// One error with its places resolved.
pub struct Error<'a> {
    pub wrong: Wrong,
    report: &'a Report,
    pub count: u64,
    pub addr: u64,
    pub len: u64,
    pub place: Rc<Place>,
    pub callers: Vec<Rc<Place>>,
    pub allocated_by: Vec<Rc<Place>>,
    pub freed_by: Vec<Rc<Place>>,
    /// Place that allocated the other block, which an access through a pointer to this block has hit.
    pub other_allocated_by: Vec<Rc<Place>>,
    /// The element of the block's container.
    pub element: Option<Element>,
    /// The access, or the function that frees or allocated, and all callers.
    frames: Vec<Frame>,
    /// Number of the first frames that may be missing.
    inner: usize,
    /// Number of `frames` that belong to the program.
    own: usize,
    /// A matching entry for a suppression file.
    pub suppression: Option<String>,
    /// The process, if there are several; `who` is its text for people: `process 42 (sh): `.
    pub pid: Option<i32>,
    pub who: String,
}

/// Whether the place is C library code that calls main. Static programs contain it themselves.
fn calls_main(place: &Place) -> bool {
    const NAMES: [&str; 5] = [
        "_start",
        "_start_c",
        "__libc_start_main",
        "__libc_start_call_main",
        "libc_start_main_stage2",
    ];
    let name = place.function.as_deref();
    name.is_some_and(|name| NAMES.contains(&name) || name.starts_with("__libc_start_main"))
}

/// A place and the functions that it is inlined in; the last one is the function itself.
fn chain(program: &Program, pc: u64, caller: bool) -> Vec<Rc<Place>> {
    let around = program.around(pc, caller);
    let mut chain = vec![Rc::new(Place::innermost(program, pc, caller))];
    chain.extend(around.iter().map(|at| Rc::new(Place::of(at))));
    chain
}

/// Places of a call stack.
struct Callers {
    places: Vec<Rc<Place>>,
    /// Number of omitted callers.
    rest: usize,
}

fn callers(program: &Program, trace: &Trace) -> Callers {
    let all = trace.callers().map(|pc| chain(program, pc, true));
    let mut all: Vec<_> = all.collect();
    let mut rest = 0;
    // The callers of main are omitted.
    let before_main = |chain: &Vec<Rc<Place>>| {
        let first = chain.first();
        first.is_some_and(|c| c.is_runtime() || calls_main(c))
    };
    while let Some(chain) = all.pop_if(|chain| before_main(chain)) {
        rest += chain.len();
    }
    Callers {
        places: all.into_iter().flatten().collect(),
        rest,
    }
}

/// The functions of an instruction: those that are inlined there, and the one that contains it.
fn frames_at(program: &Program, pc: u64, caller: bool, out: &mut Vec<Frame>) {
    let spot = program.spot(pc, caller);
    let object = spot
        .as_ref()
        .map(|s| s.object.to_string_lossy().into_owned());
    let linked = spot.as_ref().map_or(pc, |s| s.linked);
    let mut chain = chain(program, pc, caller);
    let Some(place) = chain.pop() else { return };
    out.extend(chain.into_iter().map(|place| Frame {
        names: Vec::from_iter(place.name().map(str::to_string)),
        object: object.clone(),
        linked,
        source: place.file.clone(),
        line: place.line,
    }));
    let mut names = Vec::new();
    if let Some(symbol) = spot.and_then(|s| s.symbol) {
        let own = program.static_executable();
        if (place.is_runtime() || own.is_some()) && !symbol.starts_with("_Z") {
            names.push(written(symbol).to_string());
        }
        names.push(symbol.split('@').next().unwrap_or(symbol).to_string());
    }
    if let Some(function) = &place.function {
        let path = function.split('(').next().unwrap_or(function);
        names.extend([function.clone(), path.to_string()]);
    }
    names.dedup();
    out.push(Frame {
        names,
        object,
        linked,
        source: place.file.clone(),
        line: place.line,
    });
}

fn is_new(frame: &Frame) -> bool {
    let name = frame.names.first();
    name.is_some_and(|n| n.starts_with("_Znw") || n.starts_with("_Zna"))
}

/// The call stack in memcheck's form: the function that frees or allocates is innermost. Also the number of innermost
/// frames that may be missing.
fn frames(wrong: Wrong, report: &Report, program: &Program) -> (Vec<Frame>, usize) {
    let mut frames = Vec::new();
    let mut inner = 0;
    let callers = match wrong.is_leak() {
        true => &report.allocated_at,
        false => &report.here,
    };
    if !wrong.is_leak() {
        frames_at(program, report.pc.load(Relaxed), false, &mut frames);
    }
    if wrong.is_free()
        && let Some(first) = frames.first_mut()
        && let Some(name) = match By::of(report.kind.load(Relaxed)) {
            By::Malloc => Some("free"),
            By::Realloc => Some("realloc"),
            By::New | By::NewArray | By::Client => None,
        }
    {
        // (It has several names, and a symbol table may have any of them.)
        first.names.insert(0, name.into());
    }
    if let (Wrong::Overlap, Some(first)) = (wrong, frames.first_mut()) {
        // (memmove is the same function in some C libraries.)
        first
            .names
            .insert(0, copying(report.kind.load(Relaxed)).into());
    }
    for pc in callers.callers() {
        frames_at(program, pc, true, &mut frames);
    }
    if wrong.is_leak() {
        let count = frames.iter().take_while(|f| is_new(f)).count();
        let called = frames.drain(..count).next_back();
        let by = By::of(report.by.load(Relaxed));
        let allocators = allocators(by, report, called);
        inner = allocators.len().saturating_sub(1);
        frames.splice(0..0, allocators);
    }
    (frames, inner)
}

/// The function that the program called for a block, with memcheck's inner frames before it. `called`: the `operator
/// new` among the callers, which the other forms of `operator new` call.
fn allocators(by: By, report: &Report, called: Option<Frame>) -> Vec<Frame> {
    // (A suppression is made with the first name. Some versions of memcheck name the functions that these call in
    // turn.)
    let names: &[&[&str]] = match by {
        By::Malloc | By::Realloc => match Asked::of(report.asked.load(Relaxed)) {
            Asked::Malloc => &[&["malloc"]],
            Asked::Calloc => &[&["calloc"]],
            Asked::Realloc => &[&["realloc"]],
            Asked::ReallocOfNothing => &[&["realloc", "malloc"]],
            Asked::Reallocarray => &[&["reallocarray", "realloc", "malloc"]],
            // (If they are one function, the called name is unknown.)
            Asked::Memalign => &[&["*align*", "memalign", "aligned_alloc"]],
            Asked::PosixMemalign => &[&["memalign"], &["posix_memalign"]],
            Asked::Valloc => &[&["valloc", "memalign"]],
            Asked::Pvalloc => &[&["pvalloc"]],
        },
        By::New => &[&["_Znw*", "_Znwm", "operator new(unsigned long)"]],
        By::NewArray => &[&["_Zna*", "_Znam", "operator new[](unsigned long)"]],
        // (The program's own function is among the callers.)
        By::Client => &[],
    };
    let known = |f: &Frame| match by {
        By::Malloc | By::Realloc | By::Client => false,
        By::New => f.names.iter().any(|n| n.starts_with("_Znw")),
        By::NewArray => f.names.iter().any(|n| n.starts_with("_Zna")),
    };
    if let Some(called) = called.filter(known) {
        return vec![called];
    }
    let frame = |names: &&[&str]| Frame {
        names: names.iter().map(|n| n.to_string()).collect(),
        ..Frame::default()
    };
    names.iter().map(frame).collect()
}

impl Error<'_> {
    pub fn of<'a>(wrong: Wrong, report: &'a Report, program: &Program) -> Error<'a> {
        let here = callers(program, &report.here);
        let allocated = callers(program, &report.allocated_at);
        let (frames, inner) = frames(wrong, report, program);
        let rest = match wrong.is_leak() {
            true => allocated.rest,
            false => here.rest,
        };
        let mut at = chain(program, report.pc.load(Relaxed), false).into_iter();
        let place = at.next().unwrap_or_default();
        let mut error = Error {
            wrong,
            report,
            count: report.count.load(Relaxed),
            addr: report.addr.load(Relaxed),
            len: report.len.load(Relaxed),
            place,
            callers: here.places,
            allocated_by: allocated.places,
            freed_by: callers(program, &report.freed_at).places,
            other_allocated_by: callers(program, &report.other_allocated_at).places,
            element: None,
            own: frames.len().saturating_sub(rest),
            frames,
            inner,
            suppression: None,
            pid: None,
            who: String::new(),
        };
        if error.is_at_place() {
            error.callers.splice(0..0, at);
        }
        if let (true, Some(block)) = (error.is_access(), error.block()) {
            let names = error.allocated_by.iter().filter_map(|p| p.name());
            error.element = Element::at(error.addr, block, names, program);
        }
        error
    }

    /// The properties that suppressions are compared with.
    pub fn case(&self) -> Case<'_> {
        Case {
            wrong: self.wrong,
            syscall: self.syscall(),
            frames: &self.frames,
            inner: self.inner,
        }
    }

    /// Makes an entry for a suppression file.
    pub fn make_suppression(&mut self) {
        self.suppression = Some(make(&self.case(), self.len, self.own));
    }

    /// The system call that made the access.
    pub fn syscall(&self) -> Option<&'static str> {
        let call = self.report.syscall.load(Relaxed);
        let row = call
            .checked_sub(1)
            .and_then(|nr| syscalls::row(nr.into()))?;
        Some(row.name)
    }

    pub fn is_access(&self) -> bool {
        self.wrong.is_access()
    }

    /// Whether the place is in the program, not the called function.
    pub fn is_at_place(&self) -> bool {
        let by_client = By::of(self.report.kind.load(Relaxed)) == By::Client;
        self.is_access() || self.wrong.is_free() && by_client
    }

    pub fn writes(&self) -> bool {
        self.report.kind.load(Relaxed) != AccessKind::Read as u32
    }

    pub fn thread(&self) -> u32 {
        self.report.here.thread.load(Relaxed)
    }

    /// The object of `frames` that contains the instruction.
    pub fn object_of(&self, place: &Place) -> Option<&str> {
        let frame = self.frames.iter().find(|f| {
            let name = f.object.as_deref().and_then(|o| o.rsplit('/').next());
            name.is_some() && name == place.object.as_deref()
        });
        frame.and_then(|f| f.object.as_deref())
    }

    /// The block: its first byte, and its length.
    pub fn block(&self) -> Option<(u64, u64)> {
        let start = self.report.block.load(Relaxed);
        (start != 0).then(|| (start, self.report.size.load(Relaxed)))
    }

    /// The other block, which an access through a pointer to the first one has hit: its first byte, and its length.
    pub fn other(&self) -> Option<(u64, u64)> {
        let start = self.report.other.load(Relaxed);
        let there = self.wrong == Wrong::Far && start != 0;
        there.then(|| (start, self.report.other_size.load(Relaxed)))
    }

    /// `8 bytes behind a block of 24 bytes`
    pub fn where_in_block(&self) -> String {
        let Some((start, size)) = self.block() else {
            return "which is in no block".into();
        };
        let freed = match self.report.freed.load(Relaxed) {
            0 => "",
            _ => "freed ",
        };
        let what = format!("a {freed}block of {}", count(size, "byte"));
        let end = start.saturating_add(size);
        let mut text = match self.addr {
            at if at < start => format!("{} before {what}", count(start - at, "byte")),
            at if at >= end => format!("{} behind {what}", count(at - end, "byte")),
            at => format!("{} inside {what}", count(at - start, "byte")),
        };
        if let Some(Element { index, container }) = &self.element {
            let _ = write!(text, ": [{index}] of {}", Text(container));
        }
        text
    }

    pub fn what(&self) -> String {
        let by = self.report.kind.load(Relaxed);
        match self.wrong {
            Wrong::Twice => format!("{} of what was freed before: {:#x}", freeing(by), self.addr),
            Wrong::NoBlock => match self.block() {
                Some(_) => format!(
                    "{} of {:#x}, {}",
                    freeing(by),
                    self.addr,
                    self.where_in_block()
                ),
                None => format!("{} of {:#x}, where no block begins", freeing(by), self.addr),
            },
            Wrong::Mismatch => format!(
                "{} of {:#x}, which was allocated by {}",
                freeing(by),
                self.addr,
                allocating(self.report.by.load(Relaxed))
            ),
            Wrong::Overlap => {
                let len = count(self.len, "byte");
                let (to, from) = (self.addr, self.report.from.load(Relaxed));
                format!(
                    "{} of {len} from {from:#x} to {to:#x}, which overlap",
                    copying(by)
                )
            }
            Wrong::Lost => self.left("lost: nothing points there any more"),
            Wrong::LostWith => self.left("lost with a block that pointed there"),
            Wrong::PerhapsLost => self.left("perhaps lost: only their inside is pointed to"),
            Wrong::Reachable => self.left("not freed, but reachable"),
            // (An access.)
            _ => {
                let access = match by {
                    n if n == AccessKind::Read as u32 => "read",
                    n if n == AccessKind::Write as u32 => "write",
                    _ => "update",
                };
                let by = self
                    .syscall()
                    .map_or(String::new(), |name| format!(" by {name}(2)"));
                let len = count(self.len, "byte");
                let place = match (self.wrong, self.block()) {
                    (Wrong::Poisoned, None) => POISONED.into(),
                    (Wrong::Poisoned, _) => format!("{POISONED}, {}", self.where_in_block()),
                    _ => self.where_in_block(),
                };
                let other = self.other().map_or(String::new(), |(start, size)| {
                    let inside = count(self.addr.saturating_sub(start), "byte");
                    format!(": {inside} inside another one of {}", count(size, "byte"))
                });
                format!("{access} of {len}{by} at {:#x}, {place}{other}", self.addr)
            }
        }
    }

    fn left(&self, how: &str) -> String {
        format!("{} ({} bytes) {how}", count(self.count, "block"), self.len)
    }

    pub fn text(&self, number: usize) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "ulpf: #{number} {}{}", self.who, self.what());
        if !self.wrong.is_leak() {
            if self.is_at_place() {
                let _ = writeln!(out, "        {}", self.place.text);
            }
            lines(&mut out, "", &self.callers);
        }
        self.tell_block(&mut out);
        out.push_str(self.suppression.as_deref().unwrap_or_default());
        out
    }

    /// Appends where the block was freed and allocated.
    fn tell_block(&self, out: &mut String) {
        let here = self.report.here.thread.load(Relaxed);
        let thread = |of: &Trace| match of.thread.load(Relaxed) {
            0 => String::new(),
            _ if self.wrong.is_leak() => String::new(),
            of if of == here => String::new(),
            of => format!(" (thread {of})"),
        };
        let (freed, allocated) = (&self.report.freed_at, &self.report.allocated_at);
        lines(out, &format!("freed by{}", thread(freed)), &self.freed_by);
        lines(
            out,
            &format!("allocated by{}", thread(allocated)),
            &self.allocated_by,
        );
        let other = &self.report.other_allocated_at;
        lines(
            out,
            &format!("the other one allocated by{}", thread(other)),
            &self.other_allocated_by,
        );
    }

    /// Text of a report that tells which block contains a byte.
    pub fn block_text(&self) -> String {
        let start = self.block().map_or(0, |(start, _)| start);
        let mut out = format!(
            "{:#x} is {}, which begins at {start:#x}\n",
            self.addr,
            self.where_in_block()
        );
        self.tell_block(&mut out);
        out
    }

    pub fn json(&self) -> String {
        let block = self.block();
        let access = self.is_access();
        let leak = self.wrong.is_leak();
        json::line(&Line {
            r#type: "error",
            error: word(self.wrong),
            pid: self.pid,
            what: self.what(),
            count: self.count,
            tid: (!leak).then(|| self.report.here.thread.load(Relaxed)),
            addr: (!leak).then_some(Address(self.addr)),
            len: (access || leak).then_some(self.len),
            place: self.is_at_place().then_some(&*self.place),
            callers: &self.callers,
            block: block.map(|b| Address(b.0)),
            size: block.map(|b| b.1),
            element: self.element.as_ref(),
            allocated_by: &self.allocated_by,
            freed_by: &self.freed_by,
            other: self.other().map(|b| Address(b.0)),
            other_size: self.other().map(|b| b.1),
            other_allocated_by: self.other().map(|_| &*self.other_allocated_by),
            suppression: self.suppression.as_deref(),
        })
    }
}

fn lines(out: &mut String, title: &str, places: &[Rc<Place>]) {
    if !title.is_empty() && !places.is_empty() {
        let _ = writeln!(out, "    {title}");
    }
    for place in places {
        let _ = writeln!(out, "        {}", place.caller);
    }
}

fn copying(which: u32) -> &'static str {
    COPIES.get(which as usize).unwrap_or(&"a copy")
}

fn freeing(by: u32) -> &'static str {
    match By::of(by) {
        By::Malloc => "free",
        By::Realloc => "realloc",
        By::New => "delete",
        By::NewArray => "delete[]",
        By::Client => "the program's own freeing",
    }
}

fn allocating(by: u32) -> &'static str {
    match By::of(by) {
        By::Malloc | By::Realloc => "malloc",
        By::New => "new",
        By::NewArray => "new[]",
        By::Client => "the program's own allocator",
    }
}

#[derive(Serialize)]
struct Line<'a> {
    r#type: &'static str,
    error: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    what: String,
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    addr: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    len: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<&'a Place>,
    callers: &'a [Rc<Place>],
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    element: Option<&'a Element>,
    allocated_by: &'a [Rc<Place>],
    freed_by: &'a [Rc<Place>],
    #[serde(skip_serializing_if = "Option::is_none")]
    other: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    other_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    other_allocated_by: Option<&'a [Rc<Place>]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    suppression: Option<&'a str>,
}
