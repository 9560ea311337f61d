//! Colours, and their substitutes in terminals without colours (NO_COLOR, dumb terminals).

use ratatui::style::{Color, Modifier, Style};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    pub colour: bool,
    /// The terminal can show more than ASCII.
    pub unicode: bool,
}

impl Theme {
    pub fn of_environment() -> Theme {
        let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|n| set(n));
        let locale = locale.unwrap_or_default().to_string_lossy().to_lowercase();
        Theme {
            colour: set("NO_COLOR").is_none() && set("TERM").is_some_and(|t| t != "dumb"),
            unicode: locale.contains("utf-8") || locale.contains("utf8"),
        }
    }

    fn with(self, colour: Color, otherwise: Modifier) -> Style {
        match self.colour {
            true => Style::new().fg(colour),
            false => Style::new().add_modifier(otherwise),
        }
    }
    pub fn head(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
    pub fn dim(self) -> Style {
        self.with(Color::DarkGray, Modifier::DIM)
    }
    pub fn title(self) -> Style {
        self.with(Color::Cyan, Modifier::BOLD)
            .add_modifier(Modifier::BOLD)
    }
    pub fn bar(self) -> Style {
        match self.colour {
            true => Style::new().fg(Color::Black).bg(Color::Cyan),
            false => Style::new().add_modifier(Modifier::REVERSED),
        }
    }
    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
    pub fn good(self) -> Style {
        self.with(Color::Green, Modifier::empty())
    }
    pub fn highlight(self) -> Style {
        self.with(Color::Yellow, Modifier::BOLD)
    }
    pub fn bad(self) -> Style {
        self.with(Color::Red, Modifier::BOLD)
    }
    /// The style for a heat `level` from 0 to 1.
    pub fn heat(self, level: f64) -> Style {
        match (self.colour, level) {
            (false, l) if l > 0.5 => Style::new().add_modifier(Modifier::BOLD),
            (false, _) => Style::new(),
            (true, l) if l > 0.75 => Style::new().fg(Color::Red),
            (true, l) if l > 0.4 => Style::new().fg(Color::LightRed),
            (true, l) if l > 0.15 => Style::new().fg(Color::Yellow),
            (true, l) if l > 0.0 => Style::new().fg(Color::Green),
            (true, _) => Style::new().fg(Color::DarkGray),
        }
    }
    /// A character of a bar chart with eight heights.
    pub fn height(self, level: f64) -> char {
        let all: &[char; 9] = match self.unicode {
            true => &[' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
            false => &[' ', '.', ':', '-', '=', '+', '*', '#', '@'],
        };
        let at = (level.clamp(0.0, 1.0) * 8.0).ceil() as usize;
        all[at.min(8)]
    }
    /// A cell of the page map.
    pub fn cell(self, level: f64) -> char {
        let all: &[char; 5] = match self.unicode {
            true => &['·', '░', '▒', '▓', '█'],
            false => &['.', ':', '+', '*', '#'],
        };
        let at = (level.clamp(0.0, 1.0) * 4.0).ceil() as usize;
        all[at.min(4)]
    }
    /// Our own text, with ASCII substitutes if the terminal needs them.
    pub fn text(self, text: &str) -> String {
        match self.unicode {
            true => text.to_string(),
            false => {
                let text = text.replace('→', "->").replace('…', "~").replace('·', "-");
                text.replace(['│', '─'], "|")
                    .replace('▶', ">")
                    .replace('×', "x")
            }
        }
    }
}
