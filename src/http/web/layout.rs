//! Where the nodes of a mesh stand in a picture: around the hop they hang on. It is pure, and the same mesh always gives
//! the same picture, whoever looks at it. Knows no screen: places are in points, with the middle at 0, 0.
//!
//! The nodes are a tree whose root is the middle of the mesh. Each part of the tree has a sector of its own, as wide as
//! its leaves need, and all leaves stand on the outermost ring. So no link of the tree crosses another, and the names of
//! leaves have room outside of the ring.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::f64::consts::{PI, TAU};

/// The room of a leaf and of a hop on its ring, the smallest ring, and the room between two rings.
const LEAF: f64 = 15.0;
const HOP: f64 = 90.0;
const SMALLEST: f64 = 170.0;
const RING: f64 = 90.0;
/// How far out the hops of the outermost leaves stand, as a share of the ring.
const HOPS: f64 = 0.62;
/// How much wider than high a picture is.
const WIDE: f64 = 1.4;
/// Nodes that may turn out to be the middle: each costs a walk through the mesh.
const CANDIDATES: usize = 24;

/// Where a node stands, and the node it hangs on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NodePlace<'a> {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) parent: Option<&'a str>,
}

/// A tree over nodes, which are numbers.
struct PictureTree {
    /// Each after the one it hangs on.
    order: Vec<usize>,
    parents: Vec<Option<usize>>,
    depths: Vec<usize>,
}

/// The place of each node. Ends of links that are no nodes are ignored.
pub(super) fn layout<'a>(
    names: impl IntoIterator<Item = &'a str>,
    links: impl IntoIterator<Item = [&'a str; 2]>,
) -> BTreeMap<&'a str, NodePlace<'a>> {
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    names.dedup();
    let number = |name: &str| names.binary_search(&name).ok();
    let mut near = vec![Vec::new(); names.len()];
    for [a, b] in links {
        if let (Some(a), Some(b)) = (number(a), number(b))
            && a != b
        {
            near[a].push(b);
            near[b].push(a);
        }
    }
    for all in &mut near {
        all.sort_unstable();
        all.dedup();
    }
    let tree = PictureTree::of(&near);
    let places = tree.places();
    let place = |at: usize| {
        let (x, y) = places[at];
        NodePlace { x, y, parent: tree.parents[at].map(|parent| names[parent]) }
    };
    names.iter().enumerate().map(|(at, name)| (*name, place(at))).collect()
}

/// The nodes that can be reached from one, each with the one before it on the way, the nearest first.
fn walk(near: &[Vec<usize>], from: usize) -> Vec<(usize, Option<usize>, usize)> {
    let mut seen = vec![false; near.len()];
    let (mut found, mut next) = (Vec::new(), VecDeque::from([(from, None, 0)]));
    seen[from] = true;
    while let Some((at, parent, depth)) = next.pop_front() {
        found.push((at, parent, depth));
        for &other in &near[at] {
            if !std::mem::replace(&mut seen[other], true) {
                next.push_back((other, Some(at), depth + 1));
            }
        }
    }
    found
}

/// The one of some nodes to which all others are near.
fn middle(near: &[Vec<usize>], part: &[usize]) -> usize {
    let mut candidates: Vec<usize> = part.to_vec();
    candidates.sort_by_key(|&at| (Reverse(near[at].len()), at));
    candidates.truncate(CANDIDATES);
    let far = |at: usize| walk(near, at).iter().map(|(_, _, depth)| depth).sum::<usize>();
    candidates.into_iter().min_by_key(|&at| far(at)).unwrap_or(part[0])
}

impl PictureTree {
    /// The parts of a mesh in one tree: the largest has the root, and the others stand beside its branches.
    fn of(near: &[Vec<usize>]) -> Self {
        let mut tree =
            Self { order: Vec::new(), parents: vec![None; near.len()], depths: vec![0; near.len()] };
        let mut seen = vec![false; near.len()];
        let mut parts = Vec::new();
        for at in 0..near.len() {
            if !seen[at] {
                let part: Vec<usize> = walk(near, at).into_iter().map(|(at, _, _)| at).collect();
                part.iter().for_each(|&at| seen[at] = true);
                parts.push(part);
            }
        }
        parts.sort_by_key(|part| (Reverse(part.len()), part[0]));
        for (number, part) in parts.iter().enumerate() {
            for (at, parent, depth) in walk(near, middle(near, part)) {
                tree.order.push(at);
                (tree.parents[at], tree.depths[at]) = (parent, depth + usize::from(number > 0));
            }
        }
        tree
    }

    fn places(&self) -> Vec<(f64, f64)> {
        let Some(&root) = self.order.first() else { return Vec::new() };
        // The root of another part takes its share of the circle as a branch does.
        let above = |at: usize| self.parents[at].or((at != root).then_some(root));
        let (mut leaves, mut has_branches) =
            (vec![0_usize; self.parents.len()], vec![false; self.parents.len()]);
        for &at in self.order.iter().rev() {
            leaves[at] = leaves[at].max(1);
            if let Some(above) = above(at) {
                leaves[above] += leaves[at];
                has_branches[above] = true;
            }
        }
        let deepest = self.depths.iter().max().copied().unwrap_or_default().max(1) as f64;
        let hops = has_branches.iter().filter(|has| **has).count() as f64;
        let ring = (leaves[root] as f64 * LEAF / TAU).max(hops * HOP / TAU / HOPS);
        let ring = ring.max(SMALLEST).max(deepest * RING);
        // Two leaves leave a sector free, or a link between them would run through the root.
        let sectors = leaves[root].max(3);
        let step = TAU / sectors as f64;
        // Where the free rest of a node's sector begins; the first branch stands at the right.
        let begin = (sectors - leaves[root]) as f64 * step / 2.0 - PI / 2.0;
        let mut free = vec![begin; self.parents.len()];
        let mut places = vec![(0.0, 0.0); self.parents.len()];
        for &at in &self.order {
            let Some(above) = above(at) else { continue };
            let width = leaves[at] as f64 * step;
            let angle = free[above] + width / 2.0;
            (free[at], free[above]) = (free[above], free[above] + width);
            let inner = HOPS * self.depths[at] as f64 / (deepest - 1.0).max(1.0);
            let radius = if has_branches[at] { ring * inner } else { ring };
            let round = |value: f64| (value * 10.0).round() / 10.0;
            places[at] = (round(radius * angle.cos() * WIDE), round(radius * angle.sin()));
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Nodes by number, each linked with the one that a rule names.
    fn mesh(size: usize, parent: impl Fn(usize) -> usize) -> (Vec<String>, Vec<[String; 2]>) {
        let name = |number: usize| format!("n{number:04}");
        let links = (1..size).map(|at| [name(parent(at)), name(at)]).collect();
        ((0..size).map(name).collect(), links)
    }

    fn places<'a>((names, links): &'a (Vec<String>, Vec<[String; 2]>)) -> BTreeMap<&'a str, NodePlace<'a>> {
        let links = links.iter().map(|[a, b]| [a.as_str(), b.as_str()]);
        layout(names.iter().map(String::as_str), links)
    }

    /// A hub, hops around it, and leaves behind those.
    fn hops(size: usize) -> (Vec<String>, Vec<[String; 2]>) {
        mesh(size, |at| if at < 10 { 0 } else { at % 9 + 1 })
    }

    fn distance(one: NodePlace<'_>, other: NodePlace<'_>) -> f64 {
        (one.x - other.x).hypot(one.y - other.y)
    }

    #[test]
    fn no_two_nodes_meet_and_no_link_runs_through_a_node() {
        let meshes = [1, 2, 3, 30, 60, 200, 1000].map(hops).into_iter();
        let meshes = meshes.chain([2, 5, 40].map(|size| mesh(size, |_| 0)));
        let meshes = meshes.chain([3, 12].map(|size| mesh(size, |at| at - 1)));
        for mesh in meshes {
            let places = places(&mesh);
            assert_eq!(places.len(), mesh.0.len());
            let all: Vec<_> = places.values().copied().collect();
            for (at, one) in all.iter().enumerate() {
                assert!(all[at + 1..].iter().all(|other| distance(*one, *other) > 12.0), "{}", all.len());
            }
            for [a, b] in mesh.1.iter().filter(|_| mesh.0.len() <= 200) {
                let (from, to) = (places[a.as_str()], places[b.as_str()]);
                for (name, place) in places.iter().filter(|(name, _)| *name != a && *name != b) {
                    let (dx, dy) = (to.x - from.x, to.y - from.y);
                    let along = ((place.x - from.x) * dx + (place.y - from.y) * dy) / (dx * dx + dy * dy);
                    let on = NodePlace { x: from.x + along * dx, y: from.y + along * dy, parent: None };
                    let is_apart = !(0.0..=1.0).contains(&along) || distance(on, *place) > 6.0;
                    assert!(is_apart, "{a} - {b} runs through {name} of {}", mesh.0.len());
                }
            }
        }
    }

    #[test]
    fn no_link_of_a_triangle_runs_through_a_node() {
        let (names, mut links) = mesh(3, |_| 0);
        links.push(["n0001".to_owned(), "n0002".to_owned()]);
        let triangle = (names, links);
        let places = places(&triangle);
        let middle = (places["n0001"].y + places["n0002"].y) / 2.0;
        assert!(middle > 60.0, "{places:?}");
    }

    #[test]
    fn each_hangs_on_its_hop_and_the_order_of_what_is_told_changes_nothing() {
        let (mut names, mut links) = hops(200);
        let told = (names.clone(), links.clone());
        let before = places(&told);
        assert_eq!((before["n0000"].parent, before["n0000"].x, before["n0000"].y), (None, 0.0, 0.0));
        assert_eq!((before["n0003"].parent, before["n0020"].parent), (Some("n0000"), Some("n0003")));
        names.reverse();
        links.reverse();
        links.iter_mut().for_each(|ends| ends.reverse());
        links.push(["n0003".to_owned(), "n0003".to_owned()]);
        links.push(["n0003".to_owned(), "nobody".to_owned()]);
        assert_eq!(places(&(names, links)), before);
    }

    /// The meshes of tests/browser/stand_in.py, so that the page is tried with the places that a node tells. Writes the
    /// file anew if MESHD_PLACES is set.
    #[test]
    fn the_page_is_tried_with_these_places() {
        let of = |size: usize| {
            let (names, mut links) = hops(size);
            links.extend(
                (1..9.min(size.saturating_sub(1))).map(|at| [names[at].clone(), names[at + 1].clone()]),
            );
            let mesh = (names, links);
            let number = |name: &str| name[1..].parse::<usize>().expect("a name is a number");
            let places = places(&mesh);
            places.values().map(|one| json!([one.x, one.y, one.parent.map(number)])).collect::<Vec<_>>()
        };
        let lines = [3, 8, 30, 200, 1000].map(|size| format!("\"{size}\": {}", Value::from(of(size))));
        let told = format!("{{\n{}\n}}\n", lines.join(",\n"));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/browser/places.json");
        if std::env::var_os("MESHD_PLACES").is_some() {
            std::fs::write(path, &told).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(kept == told, "{path} is of another layout: write it anew with MESHD_PLACES=1");
    }

    #[test]
    fn parts_that_no_link_joins_stand_beside_each_other() {
        let (names, links) = hops(40);
        let split = (names, links.into_iter().filter(|[_, b]| b != "n0003").collect());
        let parts = places(&split);
        assert_eq!(parts["n0003"].parent, None);
        assert!(parts["n0003"].x.hypot(parts["n0003"].y) > 50.0);
        let away = parts.iter().filter(|(_, place)| place.parent == Some("n0003"));
        assert!(away.count() >= 3);
        let nothing = mesh(30, |_| 99);
        assert!(places(&nothing).values().all(|place| place.parent.is_none()));
    }
}
