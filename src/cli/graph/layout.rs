//! Where each node of a picture of the mesh stands. Pure: nodes, links and where they stood before in, positions out; the
//! same in gives the same out. It draws nothing.
//!
//! Nodes stand in the cells of a grid, one in each, and a cell has room for a label: none overlap. Who stood somewhere stays
//! there, whatever its links do, so that a picture that is drawn again and again is still. A new node gets the free cell that
//! is nearest to its neighbours, the node with the most links the middle.

use std::collections::{BTreeMap, BTreeSet};

/// The most characters of a label.
pub(crate) const LABEL: usize = 20;
/// The picture for up to 204 nodes; more make it higher.
pub(crate) const WIDTH: u32 = 1600;
pub(crate) const HEIGHT: u32 = 1000;

const COLUMNS: i32 = 12;
const ROWS: i32 = 17;
/// Few nodes stand in every second cell, where no link runs through them.
const SPARSE: usize = 40;

/// A cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    row: i32,
    column: i32,
}

impl Cell {
    /// The middle of the cell, in pixels.
    pub(crate) fn middle(self) -> (u32, u32) {
        let at = |index: i32, size: u32, count: i32| {
            (2 * index.unsigned_abs() + 1) * size / (2 * count.unsigned_abs())
        };
        (at(self.column, WIDTH, COLUMNS), at(self.row, HEIGHT, ROWS))
    }

    fn distance(self, other: Self) -> f64 {
        let ((x, y), (a, b)) = (self.middle(), other.middle());
        f64::hypot(f64::from(x) - f64::from(a), f64::from(y) - f64::from(b))
    }

    /// Whether it is on the line between two, or at an end of it.
    fn is_on_line(self, (from, to): (Self, Self)) -> bool {
        let aside = (self.row - from.row) * (to.column - from.column)
            - (self.column - from.column) * (to.row - from.row);
        let is_between = |at: i32, from: i32, to: i32| (at - from) * (at - to) <= 0;
        aside == 0
            && is_between(self.row, from.row, to.row)
            && is_between(self.column, from.column, to.column)
    }
}

/// Where nodes stand, by name.
pub(crate) type Places = BTreeMap<String, Cell>;

/// Places for the nodes of a mesh. Links to unknown nodes are ignored.
pub(crate) fn layout(
    nodes: &BTreeSet<String>,
    links: &BTreeSet<(String, String)>,
    before: &Places,
) -> Places {
    let mut neighbours: BTreeMap<&str, BTreeSet<&str>> =
        nodes.iter().map(|node| (node.as_str(), BTreeSet::new())).collect();
    for (one, other) in
        links.iter().filter(|(one, other)| one != other && nodes.contains(one) && nodes.contains(other))
    {
        for (from, to) in [(one, other), (other, one)] {
            neighbours.entry(from).or_default().insert(to);
        }
    }
    let mut places: Places =
        before.iter().filter(|(name, _)| nodes.contains(*name)).map(|(n, c)| (n.clone(), *c)).collect();
    let mut taken: BTreeSet<Cell> = places.values().copied().collect();
    let rows = ROWS.max(i32::try_from(nodes.len()).unwrap_or(i32::MAX / COLUMNS) / COLUMNS + 1);
    let cells = |step: i32| {
        let all = (0..rows).flat_map(|row| (0..COLUMNS).map(move |column| Cell { row, column }));
        all.filter(move |cell| cell.row % step == 0 && cell.column % step == 0)
    };
    let (centre, is_sparse) = (Cell { row: ROWS / 2, column: COLUMNS / 2 }, nodes.len() <= SPARSE);
    while let Some(next) = next(&neighbours, &places) {
        let placed: Vec<Cell> =
            neighbours[next].iter().filter_map(|other| places.get(*other)).copied().collect();
        let near = if placed.is_empty() { vec![centre] } else { placed };
        let lines: Vec<(Cell, Cell)> =
            links.iter().filter_map(|(one, other)| Some((*places.get(one)?, *places.get(other)?))).collect();
        // A link through somebody else's node would be read as two.
        let hidden = |cell: Cell| {
            let behind =
                near.iter().map(|end| taken.iter().filter(|other| other.is_on_line((cell, *end))).count());
            behind.sum::<usize>() + lines.iter().filter(|line| cell.is_on_line(**line)).count()
        };
        // The middle draws a little, so that what has one neighbour does not stand at the edge.
        let cost = |cell: &Cell| {
            let hidden = if is_sparse { hidden(*cell) as f64 } else { 0.0 };
            let length = near.iter().map(|other| cell.distance(*other)).sum::<f64>();
            length + cell.distance(centre) / 4.0 + hidden * f64::from(WIDTH)
        };
        let steps: &[i32] = if is_sparse { &[2, 1] } else { &[1] };
        let best = steps.iter().find_map(|step| {
            let free = cells(*step).filter(|cell| !taken.contains(cell));
            free.map(|cell| (cost(&cell), cell))
                .min_by(|(a, one), (b, other)| a.total_cmp(b).then(one.cmp(other)))
        });
        // There are more cells than nodes.
        let Some((_, cell)) = best else { break };
        taken.insert(cell);
        places.insert(next.to_owned(), cell);
    }
    places
}

/// Who is placed next: most of its links lead to nodes that are placed; among equals the one with most links, then by name.
fn next<'a>(neighbours: &BTreeMap<&'a str, BTreeSet<&'a str>>, places: &Places) -> Option<&'a str> {
    let left = neighbours.iter().filter(|(node, _)| !places.contains_key(**node));
    let rank = |others: &BTreeSet<&str>| {
        let placed = others.iter().filter(|other| places.contains_key(**other)).count();
        (placed, others.len())
    };
    left.max_by(|(a, one), (b, other)| rank(one).cmp(&rank(other)).then(b.cmp(a))).map(|(node, _)| *node)
}

/// A name as a label.
pub(crate) fn label(name: &str) -> String {
    match name.char_indices().nth(LABEL) {
        None => name.to_owned(),
        Some(_) => name.chars().take(LABEL - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pixels of a character and of a line, in a font of 10 pixels.
    const CHARACTER: u32 = 6;
    const LINE: u32 = 12;

    /// A hub, relays around it, and leaves behind those.
    fn mesh(size: usize) -> (BTreeSet<String>, BTreeSet<(String, String)>) {
        let name = |number: usize| format!("execution-node-{number:03}.example.org");
        let parent = |number: usize| if number < 10 { 0 } else { number % 9 + 1 };
        let links = (1..size).map(|number| (name(parent(number)), name(number)));
        ((0..size).map(name).collect(), links.collect())
    }

    fn overlap(one: Cell, other: Cell) -> bool {
        let ((x, y), (a, b)) = (one.middle(), other.middle());
        x.abs_diff(a) < LABEL as u32 * CHARACTER && y.abs_diff(b) < 2 * LINE
    }

    #[test]
    fn no_two_labels_overlap_and_all_are_in_the_picture() {
        for size in [1, 3, 30, 200] {
            let (nodes, links) = mesh(size);
            let places = layout(&nodes, &links, &Places::new());
            assert_eq!(places.len(), size);
            let cells: Vec<Cell> = places.values().copied().collect();
            for (at, one) in cells.iter().enumerate() {
                let (x, y) = one.middle();
                let half = LABEL as u32 * CHARACTER / 2;
                assert!(
                    (half..WIDTH - half).contains(&x) && (LINE..HEIGHT - LINE).contains(&y),
                    "{size}: {x} {y}"
                );
                assert!(cells[at + 1..].iter().all(|other| !overlap(*one, *other)), "{size}: {one:?}");
            }
        }
    }

    #[test]
    fn no_link_of_a_few_nodes_runs_through_another_node() {
        let star = |size: usize| {
            let name = |number: usize| format!("n{number:02}");
            let links = (1..size).map(|number| (name(0), name(number)));
            ((0..size).map(name).collect::<BTreeSet<_>>(), links.collect::<BTreeSet<_>>())
        };
        for (size, (nodes, links)) in
            (2..=16).map(|size| (size, star(size))).chain([12, 20, 30].map(|size| (size, mesh(size))))
        {
            let places = layout(&nodes, &links, &Places::new());
            for (one, other) in &links {
                let line = (places[one], places[other]);
                let mut others = places.iter().filter(|(name, _)| *name != one && *name != other);
                assert!(others.all(|(_, cell)| !cell.is_on_line(line)), "{size}: {one} {other} {places:?}");
            }
        }
    }

    #[test]
    fn more_nodes_than_cells_find_a_place_as_well() {
        let (nodes, links) = mesh(500);
        let places = layout(&nodes, &links, &Places::new());
        assert_eq!(places.values().collect::<BTreeSet<_>>().len(), 500);
    }

    #[test]
    fn a_link_that_flaps_and_nodes_that_come_and_go_move_nobody_else() {
        let (nodes, mut links) = mesh(30);
        let before = layout(&nodes, &links, &Places::new());
        assert_eq!(layout(&nodes, &links, &Places::new()), before, "the same in, the same out");
        let flapping = links.pop_first().unwrap();
        assert_eq!(layout(&nodes, &links, &before), before);
        links.insert(flapping);
        let (more, more_links) = mesh(31);
        let after = layout(&more, &more_links, &before);
        assert!(before.iter().all(|(name, cell)| after.get(name) == Some(cell)) && after.len() == 31);
        assert_eq!(layout(&nodes, &links, &after), before);
    }

    #[test]
    fn the_hub_is_in_the_middle_and_links_are_short() {
        let (nodes, links) = mesh(30);
        let places = layout(&nodes, &links, &Places::new());
        let hub = places["execution-node-000.example.org"];
        assert!(hub.distance(Cell { row: ROWS / 2, column: COLUMNS / 2 }) < 200.0, "{hub:?}");
        let lengths: Vec<f64> = links.iter().map(|(a, b)| places[a].distance(places[b])).collect();
        let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
        assert!(mean < 400.0, "{mean}");
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(label("hop"), "hop");
        assert_eq!(label("12345678901234567890"), "12345678901234567890");
        assert_eq!(label("123456789012345678901"), "1234567890123456789…");
        assert_eq!(label(&"ö".repeat(30)).chars().count(), LABEL);
    }
}
