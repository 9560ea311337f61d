//! Line charts on logarithmic axes, as SVG.

use std::fmt::Write;

pub struct Line {
    pub name: &'static str,
    pub points: Vec<(f64, f64)>,
    /// Published by others, not measured here.
    pub published: bool,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 210.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 56.0;
const COLOURS: [&str; 8] = [
    "#0b6e4f", "#c1440e", "#28536b", "#7a4988", "#8a6d0b", "#5c5c5c", "#b3123f", "#1a8fb4",
];

/// Powers of `base` from the one below `low` to the one above `high`.
fn ticks(low: f64, high: f64, base: f64) -> Vec<f64> {
    let first = (low.ln() / base.ln() + 1e-9).floor() as i32;
    let last = ((high.ln() / base.ln() - 1e-9).ceil() as i32).max(first + 1);
    (first..=last).map(|n| base.powi(n)).collect()
}

pub fn chart(title: &str, x_label: &str, y_label: &str, lines: &[Line]) -> Option<String> {
    let points = || {
        lines
            .iter()
            .flat_map(|l| &l.points)
            .filter(|p| p.0 > 0.0 && p.1 > 0.0)
    };
    let range = |pick: fn(&(f64, f64)) -> f64| {
        let low = points().map(pick).min_by(f64::total_cmp)?;
        Some((low, points().map(pick).max_by(f64::total_cmp)?))
    };
    let (x_low, x_high) = range(|p| p.0)?;
    let (y_low, y_high) = range(|p| p.1)?;
    let xs = ticks(x_low, x_high, 2.0);
    let ys = ticks(y_low, y_high, 10.0);
    let scale = |ticks: &[f64], value: f64| {
        let (low, high) = (ticks[0].ln(), ticks[ticks.len() - 1].ln());
        (value.ln() - low) / (high - low)
    };
    let x = |value: f64| LEFT + scale(&xs, value) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - scale(&ys, value) * (HEIGHT - TOP - BOTTOM);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n",
        escape(title)
    );
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for &tick in &xs {
        let at = x(tick);
        let _ = writeln!(
            out,
            "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#e4e4e4\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            number(tick)
        );
    }
    for &tick in &ys {
        let at = y(tick);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#e4e4e4\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            at + 4.0,
            number(tick)
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 14.0,
        escape(x_label),
        (TOP + bottom) / 2.0,
        escape(y_label)
    );
    for (n, line) in lines.iter().filter(|l| !l.points.is_empty()).enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let dashes = if line.published {
            " stroke-dasharray=\"5 4\""
        } else {
            ""
        };
        let path: Vec<String> = line
            .points
            .iter()
            .map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1)))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
            path.join(" ")
        );
        for p in &line.points {
            let _ = writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                x(p.0),
                y(p.1)
            );
        }
        let at = TOP + 10.0 + 20.0 * n as f64;
        let _ = writeln!(
            out,
            "<path d=\"M{} {at}h24\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/><text x=\"{}\" y=\"{}\">{}</text>",
            right + 14.0,
            right + 44.0,
            at + 4.0,
            escape(line.name)
        );
    }
    out += "</svg>\n";
    Some(out)
}

fn number(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", v / 1e6),
        v if v >= 1e3 => format!("{}k", v / 1e3),
        v => format!("{v}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_draw() {
        assert_eq!(chart("t", "x", "y", &[]), None);
    }

    #[test]
    fn one_point_has_axes() {
        let line = Line {
            name: "a & b",
            points: vec![(1.0, 1.0)],
            published: true,
        };
        let text = chart("t <1>", "x", "y", &[line]).unwrap();
        assert!(text.contains("a &amp; b") && text.contains("t &lt;1&gt;"));
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }
}
