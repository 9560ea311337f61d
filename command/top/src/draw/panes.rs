//! Panes below or beside the tables: the feed, the page map, details.

use crate::app::App;
use crate::figures::figure;
use crate::rows::level;
use crate::view::{View, passes};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use ulpf_session::words::Seconds;

/// Draws the title of a part of the screen.
fn rule(frame: &mut Frame, app: &App, text: &str, area: Rect) {
    let dash = if app.theme.unicode { "─" } else { "-" };
    let text = format!("{dash}{dash} {} ", app.theme.text(text));
    let fill = usize::from(area.width).saturating_sub(text.chars().count());
    let text = text + &dash.repeat(fill);
    let width = usize::from(area.width);
    frame
        .buffer_mut()
        .set_stringn(area.x, area.y, text, width, app.theme.dim());
}

/// The newest hits, below the watches.
pub fn feed(frame: &mut Frame, app: &mut App, area: Rect) {
    if area.height < 2 {
        return;
    }
    let Some(s) = app.session() else { return };
    let mut title = String::from("hits");
    if !app.feed_filter.is_empty() {
        title += &format!(" of `{}`", app.feed_filter);
    }
    if s.unseen > 0 {
        title += &format!(
            " (a sample: {} more were too fast to show)",
            figure(s.unseen)
        );
    }
    rule(frame, app, &title, Rect { height: 1, ..area });
    let theme = app.theme;
    let room = usize::from(area.height - 1);
    let filter = &app.feed_filter;
    let lines = s.feed.iter().rev();
    let lines = lines.filter(|l| passes(filter, &l.name, &l.place, l.tid));
    let mut shown: Vec<_> = lines.take(room).collect();
    shown.reverse();
    let rows: Vec<Line> = shown
        .iter()
        .map(|l| {
            let style = if l.verb == "read" {
                theme.good()
            } else {
                theme.highlight()
            };
            let time = Seconds(l.nanos);
            Line::from(vec![
                Span::styled(format!("{time:>11} {:>7} ", l.tid), theme.dim()),
                Span::styled(format!("{:<6} ", l.verb), style),
                Span::styled(l.name.to_string(), theme.head()),
                Span::raw(theme.text(&format!(": {}  ", l.change))),
                Span::styled(l.place.to_string(), theme.dim()),
            ])
        })
        .collect();
    let empty = match (rows.is_empty(), filter.is_empty()) {
        (true, true) => Some("no hit yet"),
        (true, false) => Some("no hit that passes the filter; Esc shows all"),
        _ => None,
    };
    let rows = empty.map_or(rows, |text| {
        vec![Line::styled(format!(" {text}"), theme.dim())]
    });
    let below = Rect {
        y: area.y + 1,
        height: area.height - 1,
        ..area
    };
    frame.render_widget(Paragraph::new(rows), below);
}

/// Number of cells in a line of the map. The pages of one line are adjacent.
const CELLS: u64 = 64;

/// Lines of the map: 64 pages each. Lines without a watched page are omitted.
fn map_lines(app: &App) -> Vec<u64> {
    let pages = app.session().map_or(&[][..], |s| &s.pages[..]);
    let mut lines: Vec<u64> = pages.iter().map(|p| p.addr / 4096 / CELLS).collect();
    lines.dedup();
    lines
}

pub fn map_height(app: &App, body: Rect) -> u16 {
    let lines = map_lines(app).len() as u16;
    (lines + 2).min(body.height / 2)
}

/// Draws the page map. Each cell is a page; fuller and redder cells have more hits.
pub fn map(frame: &mut Frame, app: &App, area: Rect) {
    if area.height < 2 {
        return;
    }
    let Some(s) = app.session() else { return };
    rule(
        frame,
        app,
        "page map: a cell is 4 KiB, a line 256 KiB; heat is hits and false positives",
        Rect { height: 1, ..area },
    );
    let heat = |p: &ulpf_session::snapshot::Page| p.hits + p.false_positives;
    let most = s.pages.iter().map(heat).fold(0.0, f64::max);
    let lines = map_lines(app);
    let room = usize::from(area.height - 1);
    let theme = app.theme;
    for (n, base) in lines.iter().take(room).enumerate() {
        let y = area.y + 1 + n as u16;
        if n + 1 == room && lines.len() > room {
            let more = format!("(and {} lines more)", lines.len() - n);
            frame.buffer_mut().set_string(area.x, y, more, theme.dim());
            break;
        }
        let label = format!("{:>14x} ", base * CELLS * 4096);
        frame.buffer_mut().set_string(area.x, y, label, theme.dim());
        let first = s.pages.partition_point(|p| p.addr / 4096 / CELLS < *base);
        let here = s.pages[first..]
            .iter()
            .take_while(|p| p.addr / 4096 / CELLS == *base);
        for page in here {
            let x = area.x + 15 + (page.addr / 4096 % CELLS) as u16;
            if x < area.right() {
                let level = level(heat(page), most);
                let cell = theme.cell(level).to_string();
                frame.buffer_mut().set_string(x, y, cell, theme.heat(level));
            }
        }
    }
}

/// Draws the details of one hit or one site.
pub fn details(frame: &mut Frame, app: &mut App, area: Rect) {
    let theme = app.theme;
    let Some(d) = &app.details else {
        let what = match app.view {
            View::Sites => "select a site",
            View::Heap => "nothing is wrong so far; b looks for blocks",
            _ => "select a hit",
        };
        return frame.render_widget(Paragraph::new(Line::styled(what, theme.dim())), area);
    };
    rule(frame, app, &d.title, Rect { height: 1, ..area });
    let mut lines: Vec<Line> = Vec::new();
    for (name, value) in &d.facts {
        lines.push(Line::from(vec![
            Span::styled(format!(" {name:<9}"), theme.dim()),
            Span::raw(theme.text(value)),
        ]));
    }
    let section = |lines: &mut Vec<Line>, title: &str, text: Vec<Line<'static>>| {
        if !text.is_empty() {
            lines.push(Line::raw(""));
            lines.push(Line::styled(format!(" {title}"), theme.title()));
            lines.extend(text);
        }
    };
    let marked = |(here, text): &(bool, String)| {
        let mark = match (here, theme.unicode) {
            (true, true) => " ▶ ",
            (true, false) => " > ",
            _ => "   ",
        };
        let style = if *here {
            theme.highlight()
        } else {
            Default::default()
        };
        Line::styled(format!("{mark}{text}"), style)
    };
    let stack = d
        .stack
        .iter()
        .map(|f| Line::raw(format!("   {f}")))
        .collect();
    section(&mut lines, "backtrace", stack);
    section(
        &mut lines,
        &d.source_title,
        d.source.iter().map(marked).collect(),
    );
    section(
        &mut lines,
        "instructions",
        d.code.iter().map(marked).collect(),
    );
    let below = Rect {
        y: area.y + 1,
        height: area.height - 1,
        ..area
    };
    // Do not scroll past the end.
    let most = (lines.len() as u16).saturating_sub(below.height / 2);
    app.details_scroll = app.details_scroll.min(most);
    let text = Paragraph::new(lines);
    frame.render_widget(text.scroll((app.details_scroll, 0)), below);
}
