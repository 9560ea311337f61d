//! Compares whole screens with those in `snapshots/`. `ULPF_BLESS=1 cargo test top` rewrites the snapshots; review the
//! changes.

use super::app::{Action, App, Prompt, Subject};
use super::draw;
use super::heap::{Found, Heap, Sums};
use super::theme::Theme;
use super::view::{Details, View};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{
    KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use ratatui::style::Color;
use std::path::Path;
use ulpf_heap::blocks::Blocks;
use ulpf_session::control_socket::Ask;
use ulpf_session::hit::Line;
use ulpf_session::snapshot::{Page, Rates, Served, Site, Snapshot, State, Thread, Totals, Watch};

const THEME: Theme = Theme {
    colour: true,
    unicode: true,
};

fn watch(number: usize, name: &str, hits: u64, rate: f64, last: &str) -> Watch {
    Watch {
        id: Some(number as u32 - 1),
        number: Some(number),
        name: name.into(),
        addr: 0x5555_5555_8080 + 0x100 * number as u64,
        len: 8,
        kind: "w",
        hits,
        rate,
        silent: hits / 10,
        false_positives: hits / 3,
        last: last.into(),
        ..Watch::default()
    }
}

fn line(number: u64, name: &str, change: &str) -> Line {
    Line {
        number,
        nanos: 1_500_000_000 + number * 1_234_567,
        tid: 4838 + (number % 3) as u32,
        verb: if number % 4 == 3 { "read" } else { "write" },
        name: name.into(),
        change: change.into(),
        place: "transfer+0x3f at bank.c:40".into(),
        ..Line::default()
    }
}

fn session() -> Snapshot {
    let mut session = Snapshot {
        pid: 4831,
        by: 4830,
        how: "run".into(),
        program: "bank".into(),
        seconds: 3723.4,
        totals: Totals {
            hits: 1_234_567,
            silent: 12_345,
            filtered: 99,
            false_positives: 28_295_000,
            faults: 11_420,
            slow: 3,
            syscalls: 57_653,
        },
        rates: Rates {
            hits: 1_020_000.0,
            false_positives: 8_600.0,
            faults: 12.0,
        },
        history: (0..100).map(|n| (n % 20) * 50_000).collect(),
        unseen: 1_233_000,
        ..Snapshot::default()
    };
    session.watches = vec![
        watch(
            1,
            "bank.accounts[0..16]",
            1_200_000,
            1_000_000.0,
            "[14]=-382",
        ),
        watch(2, "bank.fees", 108, 25.0, "102"),
        Watch {
            state: State::Off,
            id: None,
            ..watch(3, "bank.transfers", 5_520, 0.0, "")
        },
        Watch {
            kind: "rw",
            register: true,
            ..watch(4, "audits", 76, 18.2, "36")
        },
        Watch {
            state: State::Refused,
            note: "cannot watch `nonsense`: there is no variable `nonsense`".into(),
            id: None,
            ..watch(5, "nonsense", 0, 0.0, "")
        },
        Watch {
            state: State::Gone,
            ..watch(6, "libplugin`state", 12, 0.0, "\"größer\"")
        },
    ];
    for n in 0..40 {
        session.push(line(
            n,
            ["bank.accounts[3]", "bank.fees"][n as usize % 2],
            "1641 → 1626",
        ));
    }
    let site = |pc: u64, function: &str, served, sampled: u64, traps| Site {
        pc,
        function: function.into(),
        line: "bank.c:41".into(),
        served,
        sampled,
        share: sampled as f64 / 1000.0,
        why: String::new(),
        traps,
        rate: sampled as f64 * 1020.0,
    };
    session.sites = vec![
        site(
            0x5555_5555_52a4,
            "transfer+0x77",
            Served::Patched,
            700,
            Some((16, 4)),
        ),
        site(
            0x5555_5555_526c,
            "transfer+0x3f",
            Served::Trap,
            250,
            Some((20_000, 15_000)),
        ),
        site(0x7fff_f7ec_1a3d, "read+0xd", Served::Syscall, 40, None),
        site(0x5555_5555_5423, "audit+0x3b", Served::Register, 10, None),
    ];
    let page = |n: u64, hits: f64, beside: f64| Page {
        addr: 0x5555_5555_8000 + n * 4096,
        watches: 4,
        bytes: 152,
        hits,
        false_positives: beside,
    };
    session.pages = vec![
        page(0, 1_020_000.0, 2_820.0),
        page(1, 12.0, 0.0),
        page(3, 0.0, 0.0),
        page(90, 900.0, 100_000.0),
    ];
    let thread = |tid, name: &str, state, rate: f64| Thread {
        tid,
        name: name.into(),
        state,
        logged: (rate * 60.0) as u64,
        rate,
        last: "transfer+0x77 at bank.c:41".into(),
    };
    session.threads = vec![
        thread(4831, "bank", 'S', 22.0),
        thread(4838, "anna", 'R', 1_020.0),
        thread(4839, "ben", 'D', 1_010.0),
        thread(4840, "", '\0', 0.0),
    ];
    session
}

fn app() -> App {
    let mut app = App::new(THEME);
    app.sessions = vec![session()];
    app
}

fn screen(app: &mut App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    let mut out = String::new();
    for y in 0..height {
        let row: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        out += row.trim_end();
        out.push('\n');
    }
    out
}

/// Asserts that the screen equals the snapshot of this name.
fn same(name: &str, app: &mut App, width: u16, height: u16) {
    let got = screen(app, width, height);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/snapshots/{name}.txt"));
    if std::env::var_os("ULPF_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &got).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        got == want,
        "{name} differs; it is now:\n{got}\nand was:\n{want}"
    );
}

fn press(app: &mut App, keys: &str) -> Option<Action> {
    let mut last = None;
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            '^' => KeyCode::Up,
            'v' => KeyCode::Down,
            c => KeyCode::Char(c),
        };
        last = app.key(KeyEvent::from(code));
    }
    last
}

#[test]
fn views() {
    for (key, name) in ["watches", "sites", "pages", "threads", "hits"]
        .iter()
        .enumerate()
    {
        for (width, height) in [(80, 24), (160, 50)] {
            let mut app = app();
            press(&mut app, &(key + 1).to_string());
            same(&format!("{name}-{width}x{height}"), &mut app, width, height);
        }
    }
}

#[test]
fn small_terminals() {
    same("small-20x5", &mut app(), 20, 5);
    same("watches-40x10", &mut app(), 40, 10);
    // No size and no state cause a panic.
    for width in (1..=130).step_by(3) {
        for height in [1, 2, 3, 5, 9, 10, 11, 13, 24, 40] {
            for keys in ["1", "2\n", "3", "4", "5\n", "1?", "1a", "1D"] {
                let mut app = app();
                press(&mut app, keys);
                app.details = Some(details());
                screen(&mut app, width, height);
            }
        }
    }
}

fn heap() -> Heap {
    let at = |text: &str| vec![text.to_string(), "main at bank.c:90".into()];
    let blocks = |how: &str, count, bytes, place| Blocks {
        how: how.into(),
        count,
        bytes,
        allocated_by: at(place),
    };
    Heap {
        sums: Sums {
            errors: 4712,
            unreported: 0,
            blocks: 1_233,
            bytes: 987_654,
            most: 1_234_567,
            kept: 67_100_000,
        },
        errors: vec![
            Found {
                kind: "outside",
                what: "read of 4 bytes at 0x7ff6c0030060, 0 bytes behind a block of 96 bytes: [24] of std::vector<int>".into(),
                count: 4711,
                thread: 4838,
                here: at("transfer at bank.c:40"),
                allocated_by: at("std::vector<int>::vector at stl_vector.h:566"),
                ..Found::default()
            },
            // An error that could not be decoded.
            Found::default(),
            Found {
                kind: "freed",
                what: "write of 8 bytes at 0x7ff6c0031010, 16 bytes inside a freed block of 40 bytes".into(),
                count: 1,
                thread: 4839,
                here: at("teller at bank.c:57"),
                freed_by: at("close_account at bank.c:71"),
                allocated_by: at("open_account at bank.c:66"),
            },
        ],
        blocks: vec![
            blocks("reachable", 1_200, 960_000, "open_account at bank.c:66"),
            blocks("lost", 33, 27_654, "statement at bank.c:80"),
        ],
    }
}

#[test]
fn a_checked_heap() {
    let mut app = app();
    press(&mut app, "6");
    assert_eq!(app.view, View::Watches);
    assert!(app.message.as_ref().unwrap().0.contains("ulpf check"));
    app.heap = Some(heap());
    press(&mut app, "6");
    same("heap-80x24", &mut app, 80, 24);
    assert_eq!(press(&mut app, "b"), Some(Action::Blocks));
    press(&mut app, "v\n");
    app.details = app.heap.as_ref().unwrap().details(app.chosen().unwrap());
    same("heap-160x50", &mut app, 160, 50);
    same("heap-details-80x24", &mut app, 80, 24);
    press(&mut app, "\x1bvv");
    let key = app.chosen().unwrap();
    let lost = app.heap.as_ref().unwrap().details(key).unwrap();
    assert_eq!(lost.title, "blocks, lost");
    // The views form a cycle.
    app.key(KeyEvent::from(KeyCode::Tab));
    assert_eq!(app.view, View::Watches);
    app.key(KeyEvent::from(KeyCode::BackTab));
    assert_eq!(app.view, View::Heap);
    for (width, height) in [(1, 1), (20, 5), (40, 10), (79, 11), (130, 3)] {
        for keys in ["6", "6\n", "6/x\n", "6s", "6sssr", "6d", "6D"] {
            press(&mut app, keys);
            screen(&mut app, width, height);
            press(&mut app, "\x1b\x1b");
        }
    }
}

fn details() -> Details {
    Details {
        title: "write of bank.accounts[3]".into(),
        facts: vec![("value", "1641 → 1626".into()), ("thread", "4838".into())],
        stack: vec!["#1 teller+0x5f at bank.c:57".into()],
        code: vec![
            (false, "0x555555555265  mov -0x14(%rbp),%eax".into()),
            (true, "0x55555555526c  mov %rcx,(%rdx,%rax)".into()),
        ],
        source_title: "bank.c:40".into(),
        source: vec![
            (false, "  39  {".into()),
            (true, "  40      bank.accounts[from] -= amount;".into()),
        ],
    }
}

#[test]
fn details_of_a_hit() {
    let mut app = app();
    press(&mut app, "5vv\n");
    app.details = Some(details());
    same("details-80x24", &mut app, 80, 24);
    same("details-160x50", &mut app, 160, 50);
}

#[test]
fn help_and_nothing() {
    let mut help = app();
    press(&mut help, "?");
    same("help-80x24", &mut help, 80, 24);
    press(&mut help, "x");
    assert!(!help.help);
    let mut none = App::new(THEME);
    none.nothing =
        "No program is watched at present.\n\nStart one: ulpf run -w counter ./program".into();
    same("nothing-80x24", &mut none, 80, 24);
    for key in "12345?aDdes/fprnx\n\x1b^v".chars() {
        press(&mut none, &key.to_string());
        press(&mut none, "\x1b\x1b");
    }
}

#[test]
fn the_end_of_a_program() {
    let mut app = app();
    app.sessions[0].ended = Some("the program has ended with status 3".into());
    let text = screen(&mut app, 80, 24);
    assert!(
        text.ends_with(
            " the program has ended with status 3: these are its last figures. q quits, e ex…\n"
        ),
        "{text}"
    );
}

#[test]
fn without_colours_and_letters() {
    let mut app = app();
    app.theme.colour = false;
    let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
    for key in "12345?".chars() {
        press(&mut app, &key.to_string());
        terminal.draw(|frame| draw::draw(frame, &mut app)).unwrap();
        let cells = terminal.backend().buffer().content();
        let plain = |c: &ratatui::buffer::Cell| c.fg == Color::Reset && c.bg == Color::Reset;
        assert!(cells.iter().all(plain), "view {key}");
    }
    press(&mut app, "x1");
    app.theme.unicode = false;
    let text = screen(&mut app, 100, 30).replace(['ö', 'ß'], "o");
    assert!(text.is_ascii(), "{text}");
}

#[test]
fn searching_and_sorting() {
    let mut app = app();
    press(&mut app, "/BANK\x08\x08\x08\x08bank fees\n");
    assert_eq!(app.rows().len(), 1);
    press(&mut app, "\x1b");
    assert_eq!(app.rows().len(), 6);
    let order = |app: &App| {
        app.rows()
            .iter()
            .map(|r| r.cells[0].clone())
            .collect::<String>()
    };
    assert_eq!(order(&app), "123456");
    press(&mut app, "s");
    assert_eq!(order(&app), "412365", "by name");
    press(&mut app, "ssr");
    assert_eq!(order(&app).chars().last(), Some('1'), "by rate, reversed");
    // The selection moves with its row.
    let mut app = self::app();
    press(&mut app, "v");
    assert_eq!(app.table().selected, Some(2));
    press(&mut app, "sr");
    assert_eq!(press(&mut app, "d"), Some(Action::Ask(Ask::Off(2))));
}

#[test]
fn the_feed_and_its_filter() {
    let mut app = app();
    press(&mut app, "5ffees\n");
    assert_eq!(app.rows().len(), 20);
    press(&mut app, "\x1b");
    assert_eq!(app.rows().len(), 40);
    // Its end is followed until a line is selected.
    assert_eq!(app.table().selected, None);
    press(&mut app, "^");
    assert_eq!(app.table().selected, Some(38));
    app.sessions[0].push(line(40, "new", "1"));
    press(&mut app, "^");
    assert_eq!(app.table().selected, Some(37));
    press(&mut app, "G");
    assert_eq!(app.table().selected, None);
    // The selected hit remains known when it has left the feed.
    press(&mut app, "\n");
    assert_eq!(app.table().selected, Some(40));
    app.sessions[0].feed.clear();
    let kept = match app.subject() {
        Some(Subject::Hit(line)) => line.number,
        other => panic!("{other:?}"),
    };
    assert_eq!(kept, 40);
    // Enter on a watch shows its hits.
    press(&mut app, "1v\n");
    assert_eq!(
        (app.view, app.feed_filter.as_str()),
        (View::Hits, "bank.fees")
    );
    press(&mut app, "p");
    assert!(app.paused);
}

#[test]
fn changes() {
    let mut app = app();
    let add = Ask::Add("tab[0..4]:rw if $new > 3".into());
    assert_eq!(
        press(&mut app, "atab[0..4]:rw if $new > 3\n"),
        Some(Action::Ask(add))
    );
    assert_eq!(press(&mut app, "a\n"), None);
    assert_eq!(press(&mut app, "d"), Some(Action::Ask(Ask::Off(1))));
    app.tables[0].selected = Some(3);
    assert_eq!(press(&mut app, "d"), Some(Action::Ask(Ask::On(3))));
    press(&mut app, "D");
    assert!(matches!(app.prompt, Some((Prompt::Delete(3, _), _))));
    assert_eq!(press(&mut app, "n"), None);
    assert_eq!(press(&mut app, "Dy"), Some(Action::Ask(Ask::Delete(3))));
    assert_eq!(
        press(&mut app, "e\n"),
        Some(Action::Export("ulpf-4831.jsonl".into()))
    );
    // gdb's own watches cannot be changed.
    app.sessions[0].watches[0].number = None;
    app.tables[0].selected = Some(1 << 40);
    assert_eq!(press(&mut app, "d"), None);
    assert!(app.message.as_ref().is_some_and(|(_, bad)| *bad));
    assert_eq!(press(&mut app, "q"), Some(Action::Quit));
    // Enter, typed before the terminal was in raw mode.
    press(&mut app, "fnothing");
    app.key(KeyEvent::new(KeyCode::Char('j'), KeyModifiers::CONTROL));
    assert_eq!(app.feed_filter, "nothing");
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    press(&mut app, "a");
    assert_eq!(app.key(ctrl_c), Some(Action::Quit));
}

#[test]
fn the_mouse() {
    let mut app = app();
    let click = |app: &mut App, x: u16, y: u16| {
        screen(app, 80, 24);
        app.mouse(MouseEvent {
            kind: MouseEventKind::Down(MouseButton::Left),
            column: x,
            row: y,
            modifiers: KeyModifiers::NONE,
        })
    };
    click(&mut app, 20, 4);
    assert_eq!(app.table().selected, Some(2));
    click(&mut app, 20, 4);
    assert_eq!(
        (app.view, app.feed_filter.as_str()),
        (View::Hits, "bank.fees")
    );
    let x = screen(&mut app, 80, 24)
        .lines()
        .next()
        .unwrap()
        .find(" 3 Pages")
        .unwrap();
    click(&mut app, x as u16 + 2, 0);
    assert_eq!(app.view, View::Pages);
    click(&mut app, 2, 0);
    assert_eq!(app.view, View::Pages, "one program only");
    press(&mut app, "1");
    click(&mut app, 8, 2);
    assert_eq!((app.table().sort, app.table().reverse), (1, false));
    click(&mut app, 8, 2);
    assert!(app.table().reverse);
}
