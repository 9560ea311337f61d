//! Draws the whole screen from the session and the user's choices.
//!
//! ```text
//!     ulpf top  stray (7748) · ulpf run         1 Watches  2 Sites  3 Pages  4 Threads  5 Hits    1:02:03
//!     hits 1,234,567  1.02M/s  silent 12,345  false 0  faults 16                         ▁▂▂▃▅▆▇█▇▆
//!     (the table of the view; below or beside it the feed, the page map, or the details)
//!     ? help  q quit  …
//! ```

mod frame;
mod panes;
pub mod table;

use super::app::App;
use super::view::View;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ulpf_host::foreign::text::is_plain;

/// On a smaller screen only a message is shown.
pub const LEAST: (u16, u16) = (40, 10);
/// Width from which a pane fits beside the table.
pub const WIDE: u16 = 120;

pub fn draw(frame: &mut Frame, app: &mut App) {
    all(frame, app);
    // Final filter: no cell may contain characters that a terminal interprets, whatever their origin.
    for cell in &mut frame.buffer_mut().content {
        if !cell.symbol().chars().all(is_plain) {
            cell.set_char(char::REPLACEMENT_CHARACTER);
        }
    }
}

fn all(frame: &mut Frame, app: &mut App) {
    let area = frame.area();
    app.spots.clear();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        return frame::too_small(frame, area);
    }
    let [head, figures, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(area);
    frame::head(frame, app, head);
    frame::foot(frame, app, foot);
    if app.session().is_none() {
        frame::nothing(frame, app, body);
    } else {
        frame::figures(frame, app, figures);
        view(frame, app, body);
    }
    if app.help {
        frame::help(frame, app, area);
    }
}

fn view(frame: &mut Frame, app: &mut App, body: Rect) {
    let wide = body.width >= WIDE;
    if app.details_open && !wide {
        return panes::details(frame, app, body);
    }
    match app.view {
        View::Watches => {
            let rows = app.session().map_or(0, |s| s.watches.len()).max(1) as u16 + 1;
            // The feed gets the rest of the height, and at least a third.
            let most = (body.height * 2 / 3).max(4);
            let [above, below] =
                Layout::vertical([Constraint::Length(rows.min(most)), Constraint::Min(1)])
                    .areas(body);
            table::draw(frame, app, View::Watches, above);
            panes::feed(frame, app, below);
        }
        View::Pages => {
            let map = panes::map_height(app, body);
            let [above, below] =
                Layout::vertical([Constraint::Length(map), Constraint::Min(1)]).areas(body);
            panes::map(frame, app, above);
            table::draw(frame, app, View::Pages, below);
        }
        View::Sites | View::Hits | View::Heap if wide => {
            let [left, right] =
                Layout::horizontal([Constraint::Percentage(60), Constraint::Min(1)]).areas(body);
            table::draw(frame, app, app.view, left);
            panes::details(frame, app, right);
        }
        view => table::draw(frame, app, view, body),
    }
}
