//! What `meshctl top` shows: a header, one of three tables, and the keys. Pure: snapshots and keys in, a frame out.
//! Owns what counts as wrong, and which row is selected in each table.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::tz::TimeZone;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Row, Table, TableState};

use crate::cli::table::size;
use crate::cli::terminal::{self, Colours};
use crate::cli::times::zoned;
use crate::rpc::report::JobState;
use crate::rpc::report::events::{Snapshot, nodes};

const TABS: [&str; 3] = ["Nodes", "Links", "Jobs"];
const KEYS: &str = " q quit  Tab 1 2 3 table  arrows PgUp PgDn Home End move  ! only what is wrong";

/// What a pressed key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Redraw,
    NextTab,
    LastTab,
    Tab(usize),
    Move(isize),
    Page(isize),
    OnlyWrong,
}

/// Everything that is shown.
pub(super) struct View {
    now: Snapshot,
    /// That of the times that are shown.
    zone: TimeZone,
    /// Bytes in and out of each session, in a second.
    rates: BTreeMap<u64, (u64, u64)>,
    /// All nodes that were ever seen, so that a lost one is still shown.
    seen: BTreeSet<String>,
    /// Why the last update failed, if it did.
    lost: Option<String>,
    tab: usize,
    places: [TableState; TABS.len()],
    only_wrong: bool,
    /// Rows that fit.
    page: usize,
}

/// A row, and whether something is wrong with it.
type ShownRow = (Vec<String>, bool);

impl View {
    pub(super) fn new(now: Snapshot, zone: TimeZone) -> Self {
        let seen = nodes(&now.mesh);
        let places = std::array::from_fn(|_| TableState::new().with_selected(0));
        Self {
            now,
            zone,
            rates: BTreeMap::new(),
            seen,
            lost: None,
            tab: 0,
            places,
            only_wrong: false,
            page: 1,
        }
    }

    /// Takes over a new snapshot.
    pub(super) fn update(&mut self, now: Snapshot) {
        let before = std::mem::replace(&mut self.now, now);
        let seconds = self.now.time.duration_since(before.time).as_secs_f64().max(0.001);
        let bytes = |snapshot: &Snapshot| -> BTreeMap<u64, (u64, u64)> {
            let links = snapshot.mesh.links.iter().flatten();
            links.map(|link| (link.session, (link.bytes_in, link.bytes_out))).collect()
        };
        let then = bytes(&before);
        let rate = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds) as u64;
        self.rates = bytes(&self.now)
            .into_iter()
            .filter_map(|(session, now)| {
                let then = then.get(&session)?;
                Some((session, (rate(now.0, then.0), rate(now.1, then.1))))
            })
            .collect();
        self.now.instances = self.now.instances.take().or(before.instances);
        self.now.jobs = self.now.jobs.take().or(before.jobs);
        self.seen.extend(nodes(&self.now.mesh));
        self.lost = None;
    }

    /// Takes note that the node does not answer, and why.
    pub(super) fn lose(&mut self, why: String) {
        self.lost = Some(why);
    }

    pub(super) fn press(&mut self, key: Key) {
        let page = isize::try_from(self.page).unwrap_or(1);
        match key {
            Key::Quit | Key::Redraw => {}
            Key::NextTab => self.tab = (self.tab + 1) % TABS.len(),
            Key::LastTab => self.tab = (self.tab + TABS.len() - 1) % TABS.len(),
            Key::Tab(tab) => self.tab = tab.min(TABS.len() - 1),
            Key::Move(by) => self.go(by),
            Key::Page(by) => self.go(by.saturating_mul(page)),
            Key::OnlyWrong => self.only_wrong = !self.only_wrong,
        }
    }

    fn go(&mut self, by: isize) {
        let place = &mut self.places[self.tab];
        let row = place.selected().unwrap_or_default().saturating_add_signed(by);
        place.select(Some(row));
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [header, tabs, body, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.header(), header);
        frame.render_widget(self.tabs(), tabs);
        self.table(frame, body);
        frame.render_widget(Line::from(KEYS).style(Style::new().add_modifier(Modifier::DIM)), keys);
    }

    fn header(&self) -> Line<'static> {
        let mesh = &self.now.mesh;
        let text = |text: &Option<String>| shown(text.as_deref().unwrap_or_default());
        if let Some(why) = &self.lost {
            let text = format!(
                " {} has not answered since {}: {}",
                text(&mesh.node_id),
                zoned(self.now.time, &self.zone),
                shown(why)
            );
            return Line::from(text).style(Style::new().fg(Color::Red));
        }
        let store = self.now.controller.as_ref().filter(|controller| !controller.store.up);
        let store = store.map(|_| ", its store is away").unwrap_or_default();
        Line::from(format!(
            " {}, version {}, {}{store}",
            text(&mesh.node_id),
            text(&mesh.version),
            zoned(self.now.time, &self.zone)
        ))
    }

    fn tabs(&self) -> Line<'static> {
        let mut numbers = [self.nodes(), self.links(), self.jobs()].map(|rows| {
            let wrong = rows.iter().filter(|(_, is_wrong)| *is_wrong).count();
            if wrong == 0 { rows.len().to_string() } else { format!("{}, {wrong} wrong", rows.len()) }
        });
        // A full list may lack older jobs that have ended.
        if self.now.jobs.as_ref().is_some_and(|jobs| jobs.len() >= Snapshot::JOBS as usize) {
            numbers[2].insert_str(0, "newest ");
        }
        let tab = |(at, (name, number)): (usize, (&&str, String))| {
            let style =
                if at == self.tab { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            Span::styled(format!(" {} {name} ({number}) ", at + 1), style)
        };
        TABS.iter().zip(numbers).enumerate().map(tab).collect::<Vec<_>>().into()
    }

    fn table(&mut self, frame: &mut Frame<'_>, area: Rect) {
        use Constraint::Length;
        // The rest of 80 columns is enough for most names; a wider terminal shows longer ones.
        const REST: Constraint = Constraint::Fill(1);
        let (head, widths, mut rows): (&[&str], &[Constraint], _) = match self.tab {
            0 => (
                &["NODE", "VIA", "STATE", "USED", "JOBS"],
                &[REST, Length(20), Length(14), Length(9), Length(5)],
                self.nodes(),
            ),
            1 => (
                &["NODE", "LINK", "RTT", "LOSS", "IN/s", "OUT/s", "QUEUED"],
                &[REST, Length(20), Length(8), Length(5), Length(8), Length(8), Length(8)],
                self.links(),
            ),
            _ => (
                &["JOB", "STATE", "NAME", "NODE", "TIME"],
                &[Length(7), Length(11), REST, Length(20), Length(8)],
                self.jobs(),
            ),
        };
        rows.retain(|(_, is_wrong)| *is_wrong || !self.only_wrong);
        self.page = usize::from(area.height.saturating_sub(1)).max(1);
        let place = &mut self.places[self.tab];
        let last = rows.len().saturating_sub(1);
        place.select(Some(place.selected().unwrap_or_default().min(last)));
        let row = |(cells, is_wrong): ShownRow| {
            let style = if is_wrong { Style::new().fg(Color::Red) } else { Style::new() };
            Row::new(cells.into_iter().map(|cell| shown(&cell))).style(style)
        };
        let table = Table::new(rows.into_iter().map(row), widths.iter().copied())
            .header(Row::new(head.iter().copied()).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, place);
    }

    /// Nodes that are lost or have errors come first.
    fn nodes(&self) -> Vec<ShownRow> {
        let mesh = &self.now.mesh;
        let here = nodes(mesh);
        let instances: BTreeMap<&str, _> =
            self.now.instances.iter().flatten().map(|one| (one.name.as_str(), one)).collect();
        let all: BTreeSet<&str> =
            self.seen.iter().map(String::as_str).chain(instances.keys().copied()).collect();
        let row = |name: &str| {
            let routes = mesh.routing_table.as_ref();
            let via = routes.and_then(|routes| routes.get(name)).cloned().unwrap_or_default();
            let via = if via == name { String::new() } else { via };
            let instance = instances.get(name);
            let is_lost = !here.contains(name);
            let state = match instance {
                _ if is_lost => "lost".to_owned(),
                Some(one) if !one.enabled => "disabled".to_owned(),
                Some(one) => one.node_state.clone(),
                None => String::new(),
            };
            let is_wrong = is_lost || instance.is_some_and(|one| !one.errors.is_empty());
            let used =
                instance.map(|one| format!("{}/{}", one.consumed_capacity, one.capacity)).unwrap_or_default();
            let jobs = instance.filter(|one| one.jobs_running > 0).map(|one| one.jobs_running.to_string());
            (vec![name.to_owned(), via, state, used, jobs.unwrap_or_default()], is_wrong)
        };
        sorted(all.into_iter().map(row).collect())
    }

    fn links(&self) -> Vec<ShownRow> {
        let row = |link: &crate::rpc::report::node::LinkReport| {
            let (bytes_in, bytes_out) = self.rates.get(&link.session).copied().unwrap_or_default();
            let rtt =
                link.rtt.map(|nanos| format!("{:.1?}", Duration::from_nanos(nanos))).unwrap_or_default();
            let loss = format!("{:.0} %", link.probe_loss * 100.0);
            let cells = vec![
                link.node_id.clone(),
                format!("{} {}", link.transport, link.address),
                rtt,
                loss,
                size(bytes_in),
                size(bytes_out),
                size(link.queued_bytes),
            ];
            (cells, link.probe_loss > 0.0)
        };
        sorted(self.now.mesh.links.iter().flatten().map(row).collect())
    }

    /// Jobs that have not ended, then those that have, the newest first in each part.
    fn jobs(&self) -> Vec<ShownRow> {
        let mut jobs: Vec<_> = self.now.jobs.iter().flatten().collect();
        jobs.sort_by_key(|job| (job.state.known().is_some_and(JobState::is_final), -job.id));
        let row = |job: &crate::rpc::report::controller::JobReport| {
            let time = job.elapsed.map(|seconds| crate::cli::times::span(seconds as u64)).unwrap_or_default();
            let is_wrong = matches!(job.state.known(), Some(JobState::Failed | JobState::Error));
            let node = job.execution_node.clone().unwrap_or_default();
            (vec![job.id.to_string(), job.state.to_string(), job.name.clone(), node, time], is_wrong)
        };
        jobs.into_iter().map(row).collect()
    }
}

/// Puts rows that are wrong first; apart from that the order stays.
fn sorted(mut rows: Vec<ShownRow>) -> Vec<ShownRow> {
    rows.sort_by_key(|(_, is_wrong)| !is_wrong);
    rows
}

fn shown(text: &str) -> String {
    terminal::shown(text, Colours::Dropped)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::{Value, json};

    use super::*;
    use crate::rpc::report::read;

    fn snapshot(second: i64, size: usize) -> Snapshot {
        let routes: serde_json::Map<String, Value> =
            (0..size).map(|number| (format!("e{number:03}"), json!("hop"))).collect();
        let mesh = read(&json!({
            "NodeID": "control", "Version": "1.2.3", "RoutingTable": routes,
            "Links": [{"NodeID": "hop", "Session": 1, "Transport": "tcp", "Address": "10.0.0.1:27199", "RTT": 1_500_000,
                "BytesIn": second * 1024, "BytesOut": 0}]}))
        .unwrap();
        let job = |id: i64, state: &str| {
            read(&json!({"id": id, "state": state, "name": "site.yml", "elapsed": 75.0})).unwrap()
        };
        Snapshot {
            time: Timestamp::from_second(second).unwrap(),
            mesh,
            instances: Some(vec![
                read(&json!({"name": "e000", "node_state": "ready", "enabled": true, "capacity": 57, "consumed_capacity": 6}))
                    .unwrap(),
            ]),
            jobs: Some(vec![job(9, "failed"), job(8, "running")]),
            ..Snapshot::default()
        }
    }

    /// The lines of a terminal of 80 by 24.
    fn screen(view: &mut View) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let cells = terminal.backend().buffer().content().chunks(80);
        cells
            .map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned())
            .collect()
    }

    #[test]
    fn two_hundred_nodes_are_reached_by_keys_on_a_small_terminal() {
        let mut view = View::new(snapshot(1, 199), TimeZone::UTC);
        let lines = screen(&mut view);
        assert_eq!(lines.len(), 24);
        assert_eq!(lines[0], " control, version 1.2.3, 1970-01-01T00:00:01Z");
        assert_eq!(lines[1], " 1 Nodes (200)  2 Links (1)  3 Jobs (2, 1 wrong)");
        assert!(lines[2].starts_with("NODE") && lines[3].starts_with("control"), "{lines:?}");
        assert_eq!(lines[4].split_whitespace().collect::<Vec<_>>(), ["e000", "hop", "ready", "6/57"]);
        assert!(lines[23].contains("q quit"), "{lines:?}");
        view.press(Key::Move(isize::MAX));
        let lines = screen(&mut view);
        assert!(lines[22].starts_with("e198"), "{lines:?}");
        view.press(Key::Page(-1));
        screen(&mut view);
        assert_eq!(view.places[0].selected(), Some(179));
        view.press(Key::Move(isize::MIN));
        assert!(screen(&mut view)[3].starts_with("control"));
    }

    #[test]
    fn a_node_that_is_lost_comes_first_and_is_counted() {
        let mut view = View::new(snapshot(1, 30), TimeZone::UTC);
        view.update(snapshot(2, 29));
        let lines = screen(&mut view);
        assert!(lines[1].starts_with(" 1 Nodes (31, 1 wrong)"), "{lines:?}");
        assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["e029", "lost"]);
        view.press(Key::OnlyWrong);
        let lines = screen(&mut view);
        assert!(lines[3].starts_with("e029") && lines[4].is_empty(), "{lines:?}");
    }

    #[test]
    fn links_have_rates_and_jobs_that_run_come_first() {
        let mut view = View::new(snapshot(1, 3), TimeZone::UTC);
        view.update(snapshot(3, 3));
        view.press(Key::NextTab);
        let lines = screen(&mut view);
        assert!(
            lines[3].starts_with("hop ")
                && lines[3].contains(" tcp 10.0.0.1:27199 ")
                && lines[3].contains(" 1.0 KiB "),
            "{lines:?}"
        );
        view.press(Key::Tab(2));
        let lines = screen(&mut view);
        assert!(
            lines[3].starts_with("8       running     site.yml") && lines[3].ends_with("1m15s"),
            "{lines:?}"
        );
        assert!(lines[4].starts_with("9       failed"), "{lines:?}");
        view.press(Key::NextTab);
        assert!(screen(&mut view)[2].starts_with("NODE  "));
    }

    #[test]
    fn a_node_that_does_not_answer_is_told_with_since_when() {
        let mut view = View::new(snapshot(1, 3), TimeZone::UTC);
        view.lose("no answer".to_owned());
        assert_eq!(screen(&mut view)[0], " control has not answered since 1970-01-01T00:00:01Z: no answer");
        view.update(snapshot(2, 3));
        assert_eq!(screen(&mut view)[0], " control, version 1.2.3, 1970-01-01T00:00:02Z");
    }

    #[test]
    fn a_terminal_of_any_size_is_enough_not_to_panic() {
        for (width, height) in [(1, 1), (10, 3), (300, 100)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| View::new(snapshot(1, 50), TimeZone::UTC).draw(frame)).unwrap();
        }
    }
}
