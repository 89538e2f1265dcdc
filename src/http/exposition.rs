//! The text of a scrape (Prometheus' exposition format, version 0.0.4). Owns the grammar, and the most series of a
//! scrape: further series are left out, and the last line says how many. Knows no metric.

use std::fmt::{self, Write as _};

use crate::counters::{BOUNDS, Lengths};

/// The most series of one node. Prometheus advises a tenth of this number for a target.
const MOST_SERIES: usize = 20_000;
/// The most bytes of a label's value.
const LONGEST_VALUE: usize = 256;

/// The type of the text.
pub(super) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text so far.
pub(super) struct Exposition {
    text: String,
    series: usize,
    left_out: usize,
}

/// One metric, whose series are being written.
pub(super) struct Family<'a> {
    page: &'a mut Exposition,
    name: &'static str,
}

/// The labels of a series, in their order.
type Labels<'a> = &'a [(&'static str, &'a str)];

impl Exposition {
    pub(super) fn new() -> Self {
        Self { text: String::new(), series: 0, left_out: 0 }
    }

    pub(super) fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "counter", help)
    }

    pub(super) fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "gauge", help)
    }

    pub(super) fn histogram(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "histogram", help)
    }

    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { page: self, name }
    }

    /// The whole text, which ends with the number of series that were left out.
    pub(super) fn finish(mut self) -> String {
        let left_out = self.left_out;
        let help = "Series that were left out, because a node has at most 20000.";
        self.gauge("meshd_series_left_out", help).line("", &[], None, left_out);
        self.text
    }

    /// Whether there is room for so many more series. Counts them as written, or as left out.
    fn has_room(&mut self, more: usize) -> bool {
        let fits = self.series + more < MOST_SERIES;
        if fits {
            self.series += more;
        } else {
            self.left_out += more;
        }
        fits
    }
}

impl Family<'_> {
    /// A series with its value, which is finite.
    pub(super) fn put(&mut self, labels: Labels<'_>, value: impl fmt::Display) -> &mut Self {
        if self.page.has_room(1) {
            self.line("", labels, None, value);
        }
        self
    }

    /// A series for each value; `label` tells them apart.
    pub(super) fn put_each<N: AsRef<str>, V: fmt::Display>(
        &mut self,
        label: &'static str,
        values: impl IntoIterator<Item = (N, V)>,
    ) {
        for (name, value) in values {
            self.put(&[(label, name.as_ref())], value);
        }
    }

    /// The series of a histogram.
    pub(super) fn put_lengths(&mut self, labels: Labels<'_>, lengths: &Lengths) -> &mut Self {
        if !self.page.has_room(BOUNDS.len() + 3) {
            return self;
        }
        let mut sum = 0;
        for (bound, count) in BOUNDS.iter().zip(lengths.counts) {
            sum += count;
            self.line("_bucket", labels, Some(&bound.to_string()), sum);
        }
        sum += lengths.counts[BOUNDS.len()];
        self.line("_bucket", labels, Some("+Inf"), sum);
        self.line("_sum", labels, None, lengths.seconds);
        self.line("_count", labels, None, sum);
        self
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, bound: Option<&str>, value: impl fmt::Display) {
        let text = &mut self.page.text;
        let _ = write!(text, "{}{suffix}", self.name);
        let mut before = '{';
        for (name, value) in labels.iter().copied().chain(bound.map(|bound| ("le", bound))) {
            let _ = write!(text, "{before}{name}=\"");
            escape(value, text);
            text.push('"');
            before = ',';
        }
        let end = if before == ',' { "}" } else { "" };
        let _ = writeln!(text, "{end} {value}");
    }
}

fn escape(value: &str, text: &mut String) {
    let mut end = value.len().min(LONGEST_VALUE);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    for letter in value[..end].chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            letter => text.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::counters::Durations;

    #[test]
    fn values_are_escaped_and_cut_and_histograms_add_up() {
        let mut page = Exposition::new();
        page.gauge("a", "Help.").put(&[], 1.5).put(&[("x", "\"\\\n{}"), ("y", &"ä".repeat(200))], 7);
        let durations = Durations::default();
        [1, 200, 100_000_000].map(Duration::from_millis).iter().for_each(|d| durations.note(*d));
        page.histogram("h_seconds", "Help.").put_lengths(&[("t", "")], &durations.lengths());
        let text = page.finish();
        assert!(text.starts_with("# HELP a Help.\n# TYPE a gauge\na 1.5\n"), "{text}");
        assert!(
            text.contains(&format!("a{{x=\"\\\"\\\\\\n{{}}\",y=\"{}\"}} 7\n", "ä".repeat(128))),
            "{text}"
        );
        for line in [
            "h_seconds_bucket{t=\"\",le=\"0.001\"} 1\n",
            "h_seconds_bucket{t=\"\",le=\"0.1\"} 1\n",
            "h_seconds_bucket{t=\"\",le=\"0.5\"} 2\n",
            "h_seconds_bucket{t=\"\",le=\"86400\"} 2\n",
            "h_seconds_bucket{t=\"\",le=\"+Inf\"} 3\n",
            "h_seconds_sum{t=\"\"} 100000.201\n",
            "h_seconds_count{t=\"\"} 3\n",
            "meshd_series_left_out 0\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }

    #[test]
    fn there_are_never_more_series_than_the_bound_and_what_is_missing_is_told() {
        let mut page = Exposition::new();
        let mut family = page.gauge("a", "Help.");
        for n in 0..2 * MOST_SERIES {
            family.put(&[("n", &n.to_string())], n);
        }
        page.histogram("h", "Help.").put_lengths(&[], &Lengths::default());
        let text = page.finish();
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(series, MOST_SERIES);
        let left_out = 2 * MOST_SERIES - (MOST_SERIES - 1) + BOUNDS.len() + 3;
        assert!(
            text.ends_with(&format!("meshd_series_left_out {left_out}\n")),
            "{}",
            &text[text.len() - 60..]
        );
    }
}
