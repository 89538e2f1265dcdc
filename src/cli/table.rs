//! Plain columns under headings, for people and for `grep`. Owns spacing; no borders, no colours.

use comfy_table::{ContentArrangement, Row, Table, presets};

/// Lays `rows` out under `headings`; two spaces between columns, none at the ends of lines.
pub(super) fn render(headings: impl Into<Row>, rows: impl IntoIterator<Item = impl Into<Row>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// A size for people: `999 B`, `1.2 KiB`, `3.4 GiB`.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    format!("{value:.1} {unit}")
}

/// Seconds for people: `12s`, `5m03s`, `2h05m`, `3d04h`.
pub(super) fn age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, ..) => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_lines_end_clean() {
        let rows = [["a".to_owned(), "1".to_owned()], ["longer".to_owned(), "22".to_owned()]];
        assert_eq!(render(["NODE", "COST"], rows), "NODE    COST\na       1\nlonger  22");
    }

    #[test]
    fn sizes_and_ages_are_short() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (50 << 20, "50.0 MiB")] {
            assert_eq!(size(bytes), text);
        }
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (63, "1m03s"), (7500, "2h05m"), (3 * 86_400 + 4 * 3600, "3d04h")]
        {
            assert_eq!(age(seconds), text);
        }
    }
}
