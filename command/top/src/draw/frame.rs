//! Everything around the tables: header, counters, prompt line, help, and the screen without data.

use crate::app::{App, Prompt, Spot};
use crate::figures::{figure, short};
use crate::heap::Sums;
use crate::view::View;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};
use unicode_width::UnicodeWidthStr;

pub fn too_small(frame: &mut Frame, area: Rect) {
    let (w, h) = super::LEAST;
    let text = format!(
        "{}x{} is too small: ulpf top needs {w}x{h} (or --plain). q quits.",
        area.width, area.height
    );
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
}

pub fn head(frame: &mut Frame, app: &mut App, area: Rect) {
    let theme = app.theme;
    frame.buffer_mut().set_style(area, theme.bar());
    let narrow = area.width < 100;
    let mut left = String::from(" ulpf top");
    if let Some(s) = app.session() {
        left += &format!("  {}", s.title());
        if !narrow {
            left += &theme.text(&format!(" · ulpf {}", s.how));
        }
        if app.sessions.len() > 1 {
            left += &format!(" {}/{}", app.current + 1, app.sessions.len());
        }
    }
    let tab = |(i, view): (usize, &View)| {
        let title = match (area.width < 72, *view == app.view) {
            (true, false) => format!(" {} ", i + 1),
            (_, true) => format!("[{} {}]", i + 1, view.title()),
            (_, false) => format!(" {} {} ", i + 1, view.title()),
        };
        (*view, title)
    };
    let tabs: Vec<_> = app.views().iter().enumerate().map(tab).collect();
    let wide: u16 = tabs.iter().map(|(_, t)| t.len() as u16).sum();
    let clock = match app.session() {
        Some(s) if !narrow => {
            let n = s.seconds as u64;
            format!(" {}:{:02}:{:02} ", n / 3600, n / 60 % 60, n % 60)
        }
        _ => String::new(),
    };
    let mut x = area.right().saturating_sub(wide + clock.len() as u16);
    let room = x.saturating_sub(area.x);
    let left = super::table::cut(&left, room, false, theme.unicode);
    let buffer = frame.buffer_mut();
    buffer.set_string(area.x, area.y, &left, theme.bar());
    app.spots
        .push((Rect::new(area.x, area.y, room, 1), Spot::Session));
    for (view, title) in tabs {
        let style = match view == app.view {
            true => theme.bar().add_modifier(ratatui::style::Modifier::BOLD),
            false => theme.bar(),
        };
        let width = title.len() as u16;
        buffer.set_string(x, area.y, title, style);
        app.spots
            .push((Rect::new(x, area.y, width, 1), Spot::Tab(view)));
        x += width;
    }
    buffer.set_string(x, area.y, clock, theme.bar());
}

pub fn figures(frame: &mut Frame, app: &App, area: Rect) {
    let Some(s) = app.session() else { return };
    let theme = app.theme;
    if let (View::Heap, Some(heap)) = (app.view, &app.heap) {
        return heap_figures(frame, app, heap.sums, area);
    }
    let (t, r) = (&s.totals, &s.rates);
    let rate = Span::styled(format!("{}/s", short(r.hits)), theme.highlight());
    let mut spans = vec![
        Span::raw(" hits "),
        Span::styled(figure(t.hits), theme.head()),
    ];
    spans.extend([Span::raw("  "), rate]);
    let mut add = |name: &str, n: u64, show: bool| {
        if show {
            spans.push(Span::styled(format!("  {name} "), theme.dim()));
            spans.push(Span::raw(figure(n)));
        }
    };
    add("silent", t.silent, true);
    add("filtered", t.filtered, t.filtered > 0);
    add("false", t.false_positives, true);
    let wide = area.width >= 100;
    add("faults", t.faults, true);
    add("slow", t.slow, wide);
    add("calls", t.syscalls, wide);
    if r.false_positives > 0.0 && wide {
        spans.push(Span::styled("  false/s ", theme.dim()));
        spans.push(Span::raw(short(r.false_positives)));
    }
    if app.paused {
        spans.push(Span::styled("  feed paused", theme.highlight()));
    }
    let used: usize = spans.iter().map(|s| s.content.width()).sum();
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
    // The chart uses the remaining width.
    let room = usize::from(area.width).saturating_sub(used + 3).min(60);
    if room >= 8 {
        let most = s.history.iter().copied().max().unwrap_or(0).max(1) as f64;
        let bars = s.history.iter().skip(s.history.len().saturating_sub(room));
        let chart: String = bars.map(|n| theme.height(*n as f64 / most)).collect();
        let x = area.right() - 1 - chart.chars().count() as u16;
        frame
            .buffer_mut()
            .set_string(x, area.y, chart, theme.good());
    }
}

fn heap_figures(frame: &mut Frame, app: &App, sums: Sums, area: Rect) {
    let theme = app.theme;
    let errors = match sums.errors {
        0 => theme.good(),
        _ => theme.bad(),
    };
    let mut spans = vec![
        Span::raw(" errors "),
        Span::styled(figure(sums.errors), errors),
    ];
    for (name, n) in [
        ("blocks", sums.blocks),
        ("bytes", sums.bytes),
        ("most", sums.most),
        ("quarantine", sums.kept),
        ("unreported", sums.unreported),
    ] {
        if name == "unreported" && n == 0 {
            continue;
        }
        spans.push(Span::styled(format!("  {name} "), theme.dim()));
        spans.push(Span::raw(figure(n)));
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
}

const KEYS: &str =
    " ? help  q quit  / search  s sort  a add  d off/on  D delete  p pause  e export";
const FEED_KEYS: &str = " ? help  q quit  / filter  p pause  Enter details  Esc all  e export";
const HEAP_KEYS: &str =
    " ? help  q quit  / search  s sort  r reverse  b blocks by place  Enter callers";
const SITE_KEYS: &str = " ? help  q quit  / search  s sort  r reverse  Enter code and source";

pub fn foot(frame: &mut Frame, app: &App, area: Rect) {
    let theme = app.theme;
    if let Some((prompt, text)) = &app.prompt {
        let (label, hint) = match prompt {
            Prompt::Search => ("search: ", ""),
            Prompt::Filter => ("hits of (watch, place, thread): ", ""),
            Prompt::Add => ("watch: ", "tab[0..16]:rw if $new > 3"),
            Prompt::Export => ("write to: ", ".jsonl, .csv or .trace.json"),
            Prompt::Delete(..) => ("", ""),
        };
        if let Prompt::Delete(n, name) = prompt {
            let question =
                format!(" delete watch {n}, {name}? y deletes it, any other key does not");
            let line = Line::styled(question, theme.highlight());
            return frame.render_widget(Paragraph::new(line), area);
        }
        let hint = if text.is_empty() { hint } else { "" };
        let line = Line::from(vec![
            Span::styled(format!(" {label}"), theme.title()),
            Span::raw(text.clone()),
            Span::styled(format!(" {hint}"), theme.dim()),
        ]);
        frame.render_widget(Paragraph::new(line), area);
        let x = 1 + label.width() + text.width();
        frame.set_cursor_position((area.x + (x as u16).min(area.width - 1), area.y));
        return;
    }
    let ended = app.session().and_then(|s| s.ended.as_ref());
    let (text, style) = match (&app.message, ended) {
        (Some((text, bad)), _) => {
            let style = if *bad { theme.bad() } else { theme.good() };
            (format!(" {text}"), style)
        }
        (None, Some(why)) => (
            format!(" {why}: these are its last figures. q quits, e exports"),
            theme.highlight(),
        ),
        (None, None) => {
            let keys = match app.view {
                View::Hits => FEED_KEYS,
                View::Sites => SITE_KEYS,
                View::Heap => HEAP_KEYS,
                _ => KEYS,
            };
            (keys.to_string(), theme.dim())
        }
    };
    let text = super::table::cut(&theme.text(&text), area.width, false, theme.unicode);
    frame.buffer_mut().set_string(area.x, area.y, text, style);
}

pub fn nothing(frame: &mut Frame, app: &App, area: Rect) {
    let mut lines: Vec<Line> = vec![Line::raw("")];
    lines.extend(app.nothing.lines().map(|l| Line::raw(format!("  {l}"))));
    if !app.output.is_empty() {
        lines.push(Line::raw(""));
        lines.extend(
            app.output
                .iter()
                .map(|l| Line::styled(format!("  {l}"), app.theme.bad())),
        );
    }
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
}

const HELP: &[(&str, &str)] = &[
    (
        "1 … 6, Tab, ← →",
        "views: watches, sites, pages, threads, hits, heap",
    ),
    (
        "↑ ↓ PgUp PgDn Home End",
        "move (also k j g G, the wheel, a click)",
    ),
    ("Enter", "a watch's hits; a hit's or site's code, source"),
    ("Esc", "back; then the search and the filter go"),
    ("s · r", "sort by the next column · reverse (or click)"),
    ("/ · f", "search the table · filter the hits: words of"),
    ("", "watch and place, or a thread's number"),
    ("b", "in the heap (ulpf check): its blocks, by place"),
    ("p, Space", "pause the feed; counting goes on"),
    ("a", "add a watch: counter, p->x, tab[0..16]:rw"),
    ("d · D", "switch the watch off or on · delete it"),
    ("e", "export to FILE.jsonl, .csv, .trace.json"),
    ("n", "the next program"),
    ("q, Ctrl-C", "quit; the program goes on"),
];

pub fn help(frame: &mut Frame, app: &App, area: Rect) {
    let theme = app.theme;
    let (w, h) = (76.min(area.width), (HELP.len() as u16 + 6).min(area.height));
    let rect = Rect::new(
        area.x + (area.width - w) / 2,
        area.y + (area.height - h) / 2,
        w,
        h,
    );
    let mut lines: Vec<Line> = Vec::new();
    for (key, what) in HELP {
        lines.push(Line::from(vec![
            Span::styled(format!(" {:<23} ", theme.text(key)), theme.title()),
            Span::raw(*what),
        ]));
    }
    lines.push(Line::raw(""));
    let words = " A silent store writes the value that was there; false: an access to a guarded page beside every watch. Figures are exact, the feed is a sample when hits come faster than anybody reads.";
    lines.push(Line::styled(words, theme.dim()));
    frame.render_widget(Clear, rect);
    let block = match theme.unicode {
        true => Block::bordered(),
        false => Block::bordered().border_set(ASCII),
    };
    let block = block.title(" keys; any key goes back ").style(Style::new());
    let text = Paragraph::new(lines)
        .block(block)
        .wrap(Wrap { trim: false });
    frame.render_widget(text, rect);
}

const ASCII: ratatui::symbols::border::Set = ratatui::symbols::border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};
