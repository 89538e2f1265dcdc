//! Lays out lists and single things for people: columns under headings, keys beside values. A column is a function of a
//! type. Owns spacing, what is left out, and what is cut so that a line fits; no borders, no colours.

use clap::{Args, ValueEnum};
use comfy_table::{ContentArrangement, Row, Table, presets};
use jiff::Zoned;

use super::terminal::one_line;

/// Width of a line if no terminal tells it.
pub(super) const WIDTH: usize = 80;
/// Width to which columns are cut before one is left out.
const LEAST: usize = 12;
/// The same for a column that says why, of which so much is worth more than the last [`ShownIn::Telling`] column.
const LEAST_SAID: usize = 40;
const GAP: usize = 2;

/// How a list is printed.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(super) struct Layout {
    /// Format of the list; wide prints all columns and complete texts
    #[arg(long = "output", short = 'o', value_name = "FORMAT", value_enum)]
    format: Option<Format>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Wide,
}

/// Where a column stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShownIn {
    /// In every list.
    Always,
    /// In a list where it is not empty, even if it is the same in all lines.
    Said,
    /// In a list whose lines differ in it, or that has only one line. If there is no room, the last of these columns is
    /// left out first.
    Telling,
    /// In wide lists only.
    Wide,
    /// Where one thing is shown alone.
    Alone,
}

/// A column of a list of `T`, or a line where one `T` is shown.
pub(super) struct Column<T> {
    heading: &'static str,
    place: ShownIn,
    /// Left out where one thing is shown alone.
    is_of_lists: bool,
    cell: Cell<T>,
}

/// Returns a column's text for one thing, as of this time.
type Cell<T> = fn(&T, &Zoned) -> String;

/// A column of each list.
pub(super) const fn always<T>(heading: &'static str, cell: Cell<T>) -> Column<T> {
    Column { heading, place: ShownIn::Always, is_of_lists: false, cell }
}

/// A column of lists in which it is not empty.
pub(super) const fn said<T>(heading: &'static str, cell: Cell<T>) -> Column<T> {
    Column { heading, place: ShownIn::Said, is_of_lists: false, cell }
}

/// A column of lists whose lines differ in it.
pub(super) const fn telling<T>(heading: &'static str, cell: Cell<T>) -> Column<T> {
    Column { heading, place: ShownIn::Telling, is_of_lists: false, cell }
}

/// A column of wide lists.
pub(super) const fn wide<T>(heading: &'static str, cell: Cell<T>) -> Column<T> {
    Column { heading, place: ShownIn::Wide, is_of_lists: false, cell }
}

/// A line where one thing is shown alone.
pub(super) const fn alone<T>(heading: &'static str, cell: Cell<T>) -> Column<T> {
    Column { heading, place: ShownIn::Alone, is_of_lists: false, cell }
}

/// The same column, but only in lists.
pub(super) const fn of_lists<T>(column: Column<T>) -> Column<T> {
    Column { is_of_lists: true, ..column }
}

impl<T> Column<T> {
    /// Its text for one thing.
    pub(super) fn text(&self, one: &T, now: &Zoned) -> String {
        (self.cell)(one, now)
    }
}

/// A list under headings, in lines of this width.
pub(super) fn list<T>(
    rows: &[T],
    columns: &[Column<T>],
    layout: Layout,
    width: usize,
    now: &Zoned,
) -> String {
    let is_wide = layout.format == Some(Format::Wide);
    let cells = |column: &Column<T>| rows.iter().map(|one| line(&column.text(one, now))).collect::<Vec<_>>();
    let all = columns.iter().filter(|column| column.place != ShownIn::Alone);
    let mut shown: Vec<_> = all.map(|column| (column.heading, column.place, cells(column))).collect();
    if !is_wide {
        shown.retain(|(_, place, cells)| match place {
            ShownIn::Always => true,
            ShownIn::Said => cells.iter().any(|cell| !cell.is_empty()),
            ShownIn::Telling => is_telling(cells),
            ShownIn::Wide | ShownIn::Alone => false,
        });
        while !fit(&mut shown, width, LEAST_SAID) {
            let Some(last) = shown.iter().rposition(|(_, place, _)| *place == ShownIn::Telling) else {
                fit(&mut shown, width, LEAST);
                break;
            };
            shown.remove(last);
        }
    }
    let row = |at: usize| shown.iter().map(|(.., cells)| cells[at].clone()).collect::<Vec<_>>();
    render(shown.iter().map(|(heading, ..)| *heading).collect::<Vec<_>>(), (0..rows.len()).map(row))
}

/// Whether a column is worth showing: it is not empty, and its lines differ if there are several.
fn is_telling(cells: &[String]) -> bool {
    let differs = cells.len() == 1 || cells.iter().any(|cell| *cell != cells[0]);
    differs && cells.iter().any(|cell| !cell.is_empty())
}

/// Cuts the widest columns until a line fits; false if that is not enough. The first column is never cut, because the
/// user types its text again. One that says why keeps `least_said`.
fn fit(columns: &mut [(&str, ShownIn, Vec<String>)], width: usize, least_said: usize) -> bool {
    let length = |text: &str| text.chars().count();
    let widest = |(heading, _, cells): &(&str, ShownIn, Vec<String>)| {
        cells.iter().map(|cell| length(cell)).chain([length(heading)]).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = columns.iter().map(widest).collect();
    let room = width.saturating_sub(GAP * columns.len().saturating_sub(1));
    while widths.iter().sum::<usize>() > room {
        let places = columns.iter().map(|(_, place, _)| *place);
        let all = widths.iter_mut().zip(places).skip(1).rev();
        let may_be_cut = all.filter(|(width, place)| match place {
            ShownIn::Said => **width > least_said,
            _ => **width > LEAST,
        });
        let Some((most, _)) = may_be_cut.max_by_key(|(width, _)| **width) else { return false };
        *most -= 1;
    }
    for ((.., cells), width) in columns.iter_mut().zip(widths) {
        for cell in cells.iter_mut().filter(|cell| length(cell) > width) {
            *cell = cell.chars().take(width - 1).chain(['…']).collect();
        }
    }
    true
}

/// The first line of a text.
fn line(text: &str) -> String {
    text.lines().next().unwrap_or_default().replace('\t', " ")
}

/// Keys and values of one thing, without those that are empty.
pub(super) fn fields<T>(one: &T, columns: &[Column<T>], now: &Zoned) -> Vec<[String; 2]> {
    let here = columns.iter().filter(|column| !column.is_of_lists);
    let all = here.map(|column| [column.heading.to_lowercase(), column.text(one, now)]);
    all.filter(|[_, value]| !value.is_empty()).collect()
}

/// Keys beside their values, which may have several lines.
pub(super) fn described(fields: Vec<[String; 2]>) -> String {
    let lines = fields.iter().flat_map(|[key, value]| {
        let keys = std::iter::once(key.as_str()).chain(std::iter::repeat(""));
        keys.zip(value.lines()).map(|(key, line)| [key.to_owned(), line.to_owned()])
    });
    // The headings are empty.
    render(["", ""], lines).trim_start_matches('\n').to_owned()
}

/// Lays `rows` out under `headings`; two spaces between columns, none at the ends of lines. Each row is one line.
pub(super) fn render(
    headings: impl Into<Row>,
    rows: impl IntoIterator<Item = impl IntoIterator<Item = impl AsRef<str>>>,
) -> String {
    lay_out(Table::new().set_content_arrangement(ContentArrangement::Disabled), headings, rows)
}

/// As [`render`], but a text that fills its line goes on in the next one.
pub(super) fn wrapped(
    headings: impl Into<Row>,
    rows: impl IntoIterator<Item = impl IntoIterator<Item = impl AsRef<str>>>,
    width: usize,
) -> String {
    let mut table = Table::new();
    // A gap follows the last column, too.
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width((width + GAP) as u16);
    lay_out(&mut table, headings, rows)
}

fn lay_out(
    table: &mut Table,
    headings: impl Into<Row>,
    rows: impl IntoIterator<Item = impl IntoIterator<Item = impl AsRef<str>>>,
) -> String {
    // A line break in a foreign text must not look like a row.
    let rows =
        rows.into_iter().map(|row| row.into_iter().map(|cell| one_line(cell.as_ref())).collect::<Vec<_>>());
    table.load_style(presets::NOTHING).set_header(headings).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP as u16));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// A size: `999 B`, `1.2 KiB`, `3.4 GiB`.
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

/// A number of things: `1 job`, `2 jobs`.
pub(super) fn count(number: impl TryInto<u64>, what: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Yes or no.
pub(super) fn yes(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.to_owned()
}

/// A text; empty if it is missing.
pub(super) fn given(text: &Option<String>) -> String {
    text.clone().unwrap_or_default()
}

/// A number; empty if it is 0.
pub(super) fn above_zero(number: impl Into<u64>) -> String {
    match number.into() {
        0 => String::new(),
        number => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Job = (u32, &'static str, &'static str, &'static str);

    const COLUMNS: &[Column<Job>] = &[
        always("ID", |one, _| one.0.to_string()),
        always("STATE", |one, _| one.1.to_owned()),
        said("WHY", |one, _| one.2.to_owned()),
        telling("NODE", |one, _| one.3.to_owned()),
        of_lists(wide("HALF", |one, _| (one.0 / 2).to_string())),
        alone("TWICE", |one, _| (one.0 * 2).to_string()),
    ];

    fn shown(rows: &[Job], layout: Option<Format>, width: usize) -> String {
        list(rows, COLUMNS, Layout { format: layout }, width, &Zoned::default())
    }

    #[test]
    fn whoever_wrote_a_cell_makes_no_row() {
        let rows = [["a\nforged  7".to_owned(), "1\r\n2".to_owned()]];
        assert_eq!(render(["NODE", "COST"], rows.clone()).lines().count(), 2);
        assert_eq!(wrapped(["NODE", "COST"], rows, 80).lines().count(), 2);
    }

    #[test]
    fn columns_align_and_lines_end_clean() {
        let rows = [["a".to_owned(), "1".to_owned()], ["longer".to_owned(), "22".to_owned()]];
        assert_eq!(render(["NODE", "COST"], rows), "NODE    COST\na       1\nlonger  22");
    }

    #[test]
    fn columns_that_say_nothing_are_left_out() {
        let same = [(1, "failed", "", "e1"), (20, "failed", "", "e1")];
        assert_eq!(shown(&same, None, 80), "ID  STATE\n1   failed\n20  failed");
        assert_eq!(shown(&same[..1], None, 80), "ID  STATE   NODE\n1   failed  e1");
        let wide = "ID  STATE   WHY  NODE  HALF\n1   failed       e1    0\n20  failed       e1    10";
        assert_eq!(shown(&same, Some(Format::Wide), 80), wide);
    }

    #[test]
    fn a_line_fits_and_a_wide_one_is_whole() {
        let why = "a host failed, and then another one failed";
        let rows = [(1, "failed", why, "a-node-with-a-name"), (2, "ok", "\tb\nc", "e2")];
        let expected = "\
ID  STATE   WHY                                       NODE
1   failed  a host failed, and then another one fai…  a-node-with-a-n…
2   ok       b                                        e2";
        assert_eq!(shown(&rows, None, 70), expected);
        // Why something failed is worth more than where.
        let said = "ID  STATE   WHY\n1   failed  a host failed, and then another one …\n2   ok       b";
        assert_eq!(shown(&rows, None, 49), said);
        let least = "ID  STATE   WHY\n1   failed  a host faile…\n2   ok       b";
        assert_eq!(shown(&rows, None, 25), least);
        assert!(shown(&rows, Some(Format::Wide), 10).contains(why));
        // Required columns stay, even if they do not fit.
        assert!(shown(&rows, None, 1).starts_with("ID  STATE   WHY"));
    }

    #[test]
    fn one_thing_is_keys_and_values() {
        let fields = fields(&(4, "failed", "a\nb", ""), COLUMNS, &Zoned::default());
        assert_eq!(described(fields), "id     4\nstate  failed\nwhy    a\n       b\ntwice  8");
    }

    #[test]
    fn long_texts_go_on_in_the_next_line() {
        let text = wrapped(["NODE", "CONNECTED TO"], [["hop", "a: 1, b: 1, c: 1"]], 18);
        assert_eq!(text, "NODE  CONNECTED TO\nhop   a: 1, b: 1,\n      c: 1");
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (50 << 20, "50.0 MiB")] {
            assert_eq!(size(bytes), text);
        }
    }
}
