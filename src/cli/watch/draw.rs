//! Draws the picture: the sentence, the two wheels as rows of blocks under a moving hand, the flow, the receivers.

use std::collections::BTreeMap;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::model::{Model, Overview};
use crate::cli::out;
use crate::model::time::UnixMs;
use crate::observe::sentence::grouped;

/// Blocks by height.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// After so long without a frame the picture is old.
const OLD_S: f64 = 3.0;

/// The colours of a terminal, or none.
struct Palette {
    has_colors: bool,
}

impl Palette {
    fn of(&self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }

    fn level(&self, level: &str) -> Style {
        let color = match level {
            "ok" => Color::Green,
            "late" => Color::Yellow,
            _ => Color::Red,
        };
        self.of(color).add_modifier(Modifier::BOLD)
    }
}

/// Draws everything, as far as there is room.
pub fn draw(frame: &mut Frame, model: &Model, has_colors: bool) {
    let area = frame.area();
    let palette = Palette { has_colors };
    let width = usize::from(area.width);
    let mut lines = vec![sentence(model, &palette), moment(model)];
    let second = model.now.div_euclid(1000);
    let rings = [
        ("second wheel", "s", second, model.near, &model.seconds_counts),
        ("minute wheel", "min", second.div_euclid(60), model.minutes, &model.minute_counts),
    ];
    for (name, unit, now, size, counts) in rings {
        lines.push(Line::default());
        lines.extend(ring(name, unit, now, size, counts, width, &palette));
    }
    if let Some(overview) = &model.overview {
        lines.push(Line::default());
        lines.extend(flow(overview, &palette));
    }
    lines.push(Line::default());
    lines.extend(receivers(model, &palette));
    let body = Rect { height: area.height.saturating_sub(1), ..area };
    frame.render_widget(Paragraph::new(lines), body);
    let footer = Rect { y: area.bottom().saturating_sub(1), height: area.height.min(1), ..area };
    frame.render_widget(Paragraph::new(last_line(model, &palette)), footer);
}

fn sentence(model: &Model, palette: &Palette) -> Line<'static> {
    match &model.overview {
        Some(overview) => Line::styled(out::plain(&overview.sentence), palette.level(&overview.level)),
        None => Line::raw("…"),
    }
}

fn moment(model: &Model) -> Line<'static> {
    let at = UnixMs::new(model.now).rfc3339();
    let time = at.get(11..19).unwrap_or_default().to_owned();
    let rates = model.overview.as_ref().map_or_else(String::new, |overview| {
        let p99 = overview.p99.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1} ms"));
        format!("   fired {}/s   p99 {p99}", overview.fired)
    });
    Line::raw(format!("{time} UTC{rates}"))
}

/// One wheel: the hand, the blocks, and what they are. A column stands for a fixed place of the ring, so the hand moves
/// and the slots stand.
fn ring(
    name: &str,
    unit: &str,
    now: i64,
    size: usize,
    counts: &BTreeMap<i64, u64>,
    width: usize,
    palette: &Palette,
) -> [Line<'static>; 3] {
    let per_column = size.div_ceil(width.max(1)).max(1);
    let columns = size.div_ceil(per_column);
    let column_of =
        |tick: i64| usize::try_from(tick.rem_euclid(size.max(1) as i64)).unwrap_or(0) / per_column;
    let (mut sums, mut is_late) = (vec![0_u64; columns], vec![false; columns]);
    for (tick, count) in counts {
        // Slots beyond one turn of the ring would lie on those before them.
        if *tick < now + size as i64 && columns > 0 {
            sums[column_of(*tick)] += count;
            is_late[column_of(*tick)] |= *tick < now;
        }
    }
    let largest = sums.iter().copied().max().unwrap_or(0);
    let block = |column: usize| {
        let (count, is_late) = (sums[column], is_late[column]);
        let style = palette.of(if is_late { Color::Red } else { Color::Cyan });
        match height(count, largest) {
            0 => Span::styled("·", palette.of(Color::DarkGray)),
            height => Span::styled(BLOCKS[height - 1].to_string(), style),
        }
    };
    let hand = if columns == 0 { 0 } else { column_of(now) };
    let total: u64 = counts.values().sum();
    let each = if per_column == 1 { String::new() } else { format!(", {per_column} a column") };
    let fullest = if largest == 0 { String::new() } else { format!(", fullest column {}", grouped(largest)) };
    [
        Line::from(vec![Span::raw(" ".repeat(hand)), Span::styled("▼", palette.of(Color::Blue))]),
        Line::from((0..columns).map(block).collect::<Vec<_>>()),
        Line::raw(format!("{name}: {} timers in {size} {unit}{each}{fullest}", grouped(total))),
    ]
}

/// The height of a bar in eighths: log(1 + n) / log(1 + largest), at least one for one timer.
fn height(count: u64, largest: u64) -> usize {
    if count == 0 {
        return 0;
    }
    let share = (1.0 + count as f64).ln() / (1.0 + largest as f64).ln();
    ((share * 8.0).round() as usize).clamp(1, 8)
}

fn flow(overview: &Overview, palette: &Palette) -> Vec<Line<'static>> {
    let number = |n: i64| grouped(u64::try_from(n).unwrap_or(0));
    let rates = &overview.rates;
    let [hour, day, week, month, later] = overview.bins.map(number);
    let way = if overview.redis {
        format!(
            " → minute {}/s → second {}/s → last mile {}/s ({} held)",
            rates.minute,
            rates.second + rates.cascade,
            rates.last_mile + rates.express,
            number(overview.last_mile)
        )
    } else {
        format!(" → from SQL {}/s, the wheels do not answer", rates.swept)
    };
    let style = if overview.redis { Style::new() } else { palette.of(Color::Yellow) };
    vec![
        Line::from(vec![
            Span::raw(format!("cold store {}", number(overview.cold))),
            Span::styled(way, style),
        ]),
        Line::raw(format!(
            "→ receivers: {} in flight, {} waiting, {} retrying, {} dead",
            number(overview.in_flight),
            number(overview.waiting),
            number(overview.retrying),
            number(overview.dead)
        )),
        Line::raw(format!(
            "due: next hour {hour} · day {day} · week {week} · 30 days {month} · later {later}"
        )),
    ]
}

fn receivers(model: &Model, palette: &Palette) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for one in &model.receivers {
        let error = one.last_error.as_deref().filter(|_| one.state == "failing");
        let text = format!(
            "{}  {}  {:.1}/s, {} in flight, {} waiting{}",
            out::short(&one.receiver, 40),
            out::plain(&one.state),
            one.rate,
            one.in_flight,
            one.waiting,
            error.map_or_else(String::new, |why| format!("  {}", out::short(why, 60)))
        );
        let style = if one.state == "failing" { palette.of(Color::Red) } else { Style::new() };
        lines.push(Line::styled(text, style));
    }
    lines
}

fn last_line(model: &Model, palette: &Palette) -> Line<'static> {
    let silence = model.silence_s();
    if model.heard.is_some() && silence < OLD_S && model.failure.is_none() {
        return Line::styled("q quits", palette.of(Color::DarkGray));
    }
    let why = model.failure.as_deref().map_or_else(String::new, |why| format!(": {}", out::short(why, 120)));
    let text = format!("q quits · OLD: nothing heard for {silence:.0} s{why}");
    Line::styled(text, palette.of(Color::Red).add_modifier(Modifier::REVERSED))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn drawn(model: &Model, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model, true)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let cell = |x, y| buffer.cell((x, y)).map_or(" ", |cell| cell.symbol()).to_owned();
        (0..height)
            .map(|y| (0..width).map(|x| cell(x, y)).collect::<String>().trim_end().to_owned())
            .collect()
    }

    fn model() -> Model {
        let mut model = Model::default();
        let frame = r#"{"now":1000000500,"near":120,"window":3600,"s":[[1000010,7],[1000011,1]],"m":[[16690,1000]],
            "taken":{"s":1000001,"m":16668},"x":{"sentence":"On time. Nothing fired in the last minute.","level":"ok",
            "link":"/","degraded":[],"fired":0.0,"p99":null,"rates":{"registered":1.0,"minute":2.0,"second":0.0,
            "cascade":0.5,"last_mile":0.0,"express":0.0,"swept":0.0,"delivered":0.0},"cold":1204,
            "bins":[1,2,3,4,1194],"last_mile":0,"in_flight":0,"waiting":0,"retrying":0,"dead":0,"redis":true}}"#;
        model.apply("full", frame).unwrap();
        model
    }

    #[test]
    fn the_picture_fits_a_small_terminal() {
        let lines = drawn(&model(), 80, 24);
        assert_eq!(lines[0], "On time. Nothing fired in the last minute.");
        assert_eq!(lines[1], "13:46:40 UTC   fired 0/s   p99 –");
        // 120 seconds in 60 columns; 1000000 mod 120 = 40, 1000010 and 1000011 lie in one column.
        assert_eq!(lines[3], format!("{}▼", " ".repeat(20)));
        assert_eq!(lines[4], format!("{}█{}", "·".repeat(25), "·".repeat(34)));
        assert_eq!(lines[5], "second wheel: 8 timers in 120 s, 2 a column, fullest column 8");
        assert_eq!(lines[8].chars().position(|c| c == '█'), Some(16690 % 60));
        assert!(lines[9].starts_with("minute wheel: 1\u{202f}000 timers in 60 min"), "{}", lines[9]);
        assert!(
            lines[11].starts_with("cold store 1\u{202f}204 → minute 2/s → second 0.5/s"),
            "{}",
            lines[11]
        );
        assert_eq!(lines[23], "q quits");
        for (width, height) in [(1, 1), (20, 5), (300, 100)] {
            assert_eq!(drawn(&model(), width, height).len(), usize::from(height));
        }
    }

    #[test]
    fn a_bar_grows_with_the_logarithm() {
        assert_eq!([0, 1, 7, 1000].map(|count| height(count, 1000)), [0, 1, 2, 8]);
        assert_eq!(height(1, 1), 8);
    }

    #[test]
    fn a_broken_stream_is_said() {
        let mut model = model();
        model.failure = Some("the server is gone".into());
        assert!(drawn(&model, 80, 24)[23].contains("OLD: nothing heard for 0 s: the server is gone"));
    }
}
