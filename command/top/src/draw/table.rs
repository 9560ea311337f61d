//! A table: header, rows, selection. Columns that do not fit are omitted, the least important first.

use crate::app::{App, Spot};
use crate::rows::{self, Column, Row, Tone};
use crate::view::View;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use unicode_width::UnicodeWidthStr;

/// Minimum width of the column without a width of its own.
const ROOM: u16 = 14;

/// The visible columns, each with its position and width.
pub fn fit(columns: &[Column], width: u16) -> Vec<(usize, u16, u16)> {
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let need = |shown: &[usize]| -> u16 {
        let one = |i: &usize| {
            columns[*i]
                .width
                .max(if columns[*i].width == 0 { ROOM } else { 0 })
        };
        shown.iter().map(one).sum::<u16>() + shown.len() as u16
    };
    while need(&shown) > width {
        let last = shown
            .iter()
            .enumerate()
            .filter(|(_, i)| columns[**i].spare > 0);
        match last.max_by_key(|(at, i)| (columns[**i].spare, *at)) {
            Some((at, _)) => drop(shown.remove(at)),
            None => break,
        }
    }
    let rest = width.saturating_sub(need(&shown)) + ROOM;
    let mut at = 0;
    let mut out = Vec::new();
    for i in shown {
        let wide = match columns[i].width {
            0 => rest,
            n => n,
        };
        let wide = wide.min(width.saturating_sub(at));
        out.push((i, at, wide));
        at += wide + 1;
    }
    out
}

/// Fits `text` into `width` columns; a cut text ends with a mark.
pub fn cut(text: &str, width: u16, right: bool, unicode: bool) -> String {
    let width = usize::from(width);
    let long = text.width();
    if long <= width {
        let pad = " ".repeat(width - long);
        return match right {
            true => pad + text,
            false => text.to_string() + &pad,
        };
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let w = unicode_width::UnicodeWidthChar::width(c).unwrap_or(0);
        if used + w + 1 > width {
            break;
        }
        used += w;
        out.push(c);
    }
    if used < width {
        out.push(if unicode { '…' } else { '~' });
        used += 1;
    }
    out + &" ".repeat(width.saturating_sub(used))
}

pub fn draw(frame: &mut Frame, app: &mut App, view: View, area: Rect) {
    if area.height == 0 {
        return;
    }
    let theme = app.theme;
    let columns = rows::columns(view);
    let places = fit(columns, area.width);
    let table = &app.tables[view as usize];
    for (i, at, width) in &places {
        let column = &columns[*i];
        let sorted = table.sort == *i && view != View::Hits;
        let mut title = column.title.to_string();
        if sorted {
            let mark = match (theme.unicode, table.reverse) {
                (true, false) => "▾",
                (true, true) => "▴",
                (false, false) => "v",
                (false, true) => "^",
            };
            title = format!("{title}{mark}");
        }
        let style = match sorted {
            true => theme.title(),
            false => theme.dim().add_modifier(Modifier::UNDERLINED),
        };
        let rect = Rect::new(area.x + at, area.y, *width, 1);
        let text = cut(&title, *width, column.right, theme.unicode);
        frame.buffer_mut().set_string(rect.x, rect.y, text, style);
        app.spots.push((rect, Spot::Header(*i)));
    }
    let all = app.rows();
    let room = usize::from(area.height - 1);
    app.height = room;
    if all.is_empty() {
        let text = theme.text(empty(app, view));
        let style = theme.dim();
        frame.buffer_mut().set_stringn(
            area.x,
            area.y + 1,
            text,
            usize::from(area.width) * usize::from(room > 0),
            style,
        );
        return;
    }
    let feed = view == View::Hits;
    let chosen = app.tables[view as usize].selected;
    let mut at = chosen.and_then(|key| all.iter().position(|r| r.key == key));
    if at.is_none() && !feed {
        at = Some(0);
    }
    let last = all.len().saturating_sub(room);
    let offset = &mut app.tables[view as usize].offset;
    *offset = match at {
        None => last,
        Some(at) => (*offset).clamp((at + 1).saturating_sub(room), at).min(last),
    };
    let offset = *offset;
    for (n, row) in all.iter().enumerate().skip(offset).take(room) {
        let y = area.y + 1 + (n - offset) as u16;
        line(
            frame,
            app,
            view,
            (row, at == Some(n)),
            &places,
            Rect::new(area.x, y, area.width, 1),
        );
        app.spots
            .push((Rect::new(area.x, y, area.width, 1), Spot::Row(row.key)));
    }
}

fn empty(app: &App, view: View) -> &'static str {
    let searched = !app.tables[view as usize].search.is_empty();
    match view {
        _ if searched => "nothing fits the search; Esc shows all again",
        View::Hits if !app.feed_filter.is_empty() => "no hit that passes the filter; Esc shows all",
        View::Watches => "no watch yet: press a to add one",
        View::Sites | View::Hits => "no hit yet",
        View::Pages => "no watched page",
        View::Threads => "no thread is left",
        View::Heap => "nothing is wrong so far; b looks for all blocks",
    }
}

fn line(
    frame: &mut Frame,
    app: &App,
    view: View,
    (row, selected): (&Row, bool),
    places: &[(usize, u16, u16)],
    area: Rect,
) {
    let theme = app.theme;
    let base = match row.tone {
        Tone::Plain | Tone::Heat(_) => Style::new(),
        Tone::Good => theme.good(),
        Tone::Dim => theme.dim(),
        Tone::Bad => theme.bad(),
    };
    if selected {
        frame.buffer_mut().set_style(area, theme.selected());
    }
    for (i, at, width) in places {
        let mut style = match (view, *i) {
            // Names always stay readable.
            (View::Watches, 1) if row.tone == Tone::Good => Style::new(),
            (View::Hits, 2) if row.cells[2] == "read" => theme.good(),
            (View::Hits, 2) => theme.highlight(),
            (View::Hits, 0 | 1) => theme.dim(),
            (View::Heap, 1..) => Style::new(),
            (View::Sites | View::Pages, 3) => match row.tone {
                Tone::Heat(level) => theme.heat(level),
                _ => base,
            },
            _ => base,
        };
        if selected {
            style = theme.selected();
        }
        let mut text = theme.text(&row.cells[*i]);
        if let (View::Pages, 5, Tone::Heat(level)) = (view, *i, row.tone) {
            let full = (f64::from(*width) * level).round() as usize;
            let block = if theme.unicode { "█" } else { "#" };
            text = block.repeat(full);
            if !selected {
                style = theme.heat(level);
            }
        }
        let right = rows::columns(view)[*i].right;
        let text = cut(&text, *width, right, theme.unicode);
        frame
            .buffer_mut()
            .set_string(area.x + at, area.y, text, style);
    }
    if let (View::Watches, true) = (view, row.tone == Tone::Dim && !selected) {
        frame.buffer_mut().set_style(area, theme.dim());
    }
}
