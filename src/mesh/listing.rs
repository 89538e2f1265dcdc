//! A table as clients ask for it: in order, handed out at little cost, and printed anew only where it has changed.
//!
//! Owns the order of the entries, which stand in pages, and the text of each page once somebody has printed it.
//! Whoever holds a copy shares both; a change touches one page. What an entry means and how it is printed is its
//! own business.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Index;
use std::sync::{Arc, OnceLock};

/// Entries in a page at most. A change prints that many again, and a copy of the listing counts the pages.
const PAGE: usize = 32;

/// What stands in a listing under a key of type `K`.
pub trait Entry<K> {
    /// Appends the entry as JSON has it: an element, or a key and what belongs to it.
    fn print(&self, key: &K, text: &mut Vec<u8>);
}

/// Entries by key, in order.
#[derive(Debug, Clone)]
pub struct Listing<K, V> {
    /// None of them is empty.
    pages: Vec<Arc<Page<K, V>>>,
    len: usize,
}

#[derive(Debug)]
struct Page<K, V> {
    entries: Vec<(K, V)>,
    text: OnceLock<Box<[u8]>>,
}

impl<K, V> Page<K, V> {
    fn new(entries: Vec<(K, V)>) -> Arc<Self> {
        Arc::new(Self { entries, text: OnceLock::new() })
    }
}

/// A page is copied to be changed: the text stays behind.
impl<K: Clone, V: Clone> Clone for Page<K, V> {
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone(), text: OnceLock::new() }
    }
}

impl<K: Ord, V> Listing<K, V> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.pages.iter().flat_map(|page| &page.entries).map(|(key, value)| (key, value))
    }

    /// The same without their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// What stands under a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let entries = &self.pages.get(self.page_of(key))?.entries;
        let at = entries.binary_search_by(|(known, _)| known.borrow().cmp(key)).ok()?;
        Some(&entries[at].1)
    }

    /// True if something stands there.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Appends all entries with commas between them.
    pub fn print(&self, text: &mut Vec<u8>)
    where
        V: Entry<K>,
    {
        for (i, page) in self.pages.iter().enumerate() {
            if i > 0 {
                text.push(b',');
            }
            text.extend_from_slice(page.text.get_or_init(|| printed(&page.entries)));
        }
    }

    /// The only page in which a key may stand, or the place of the first one.
    fn page_of<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        let begins_before =
            |page: &Arc<Page<K, V>>| page.entries.first().is_some_and(|e| e.0.borrow() <= key);
        self.pages.partition_point(begins_before).saturating_sub(1)
    }
}

fn printed<K, V: Entry<K>>(entries: &[(K, V)]) -> Box<[u8]> {
    let mut text = Vec::new();
    for (i, (key, value)) in entries.iter().enumerate() {
        if i > 0 {
            text.push(b',');
        }
        value.print(key, &mut text);
    }
    text.into()
}

impl<K: Ord + Clone, V: PartialEq + Clone> Listing<K, V> {
    /// Puts a value under a key, in place of another one.
    pub(super) fn set(&mut self, key: K, value: V) {
        let at = self.page_of(&key);
        let Some(page) = self.pages.get_mut(at) else {
            self.pages.push(Page::new(vec![(key, value)]));
            self.len = 1;
            return;
        };
        let place = page.entries.binary_search_by(|(known, _)| known.cmp(&key));
        if place.is_ok_and(|place| page.entries[place].1 == value) {
            return;
        }
        let page = changed(page);
        match place {
            Ok(place) => page.entries[place].1 = value,
            Err(place) => {
                page.entries.insert(place, (key, value));
                self.len += 1;
                if page.entries.len() > PAGE {
                    let rest = page.entries.split_off(PAGE / 2);
                    self.pages.insert(at + 1, Page::new(rest));
                }
            }
        }
    }

    /// Takes out what stands under a key, if anything does.
    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        let at = self.page_of(key);
        let Some(page) = self.pages.get_mut(at) else { return };
        let Ok(place) = page.entries.binary_search_by(|(known, _)| known.borrow().cmp(key)) else { return };
        self.len -= 1;
        if page.entries.len() == 1 {
            self.pages.remove(at);
        } else {
            changed(page).entries.remove(place);
        }
    }
}

/// A page that is nobody else's, and whose text is no longer true.
fn changed<K: Clone, V: Clone>(page: &mut Arc<Page<K, V>>) -> &mut Page<K, V> {
    let page = Arc::make_mut(page);
    page.text.take();
    page
}

impl<K, V> Default for Listing<K, V> {
    fn default() -> Self {
        Self { pages: Vec::new(), len: 0 }
    }
}

impl<K: Ord, V: PartialEq> PartialEq for Listing<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for Listing<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut entries = BTreeMap::from_iter(entries).into_iter().peekable();
        let mut listing = Self::default();
        while entries.peek().is_some() {
            let page: Vec<_> = entries.by_ref().take(PAGE).collect();
            listing.len += page.len();
            listing.pages.push(Page::new(page));
        }
        listing
    }
}

impl<K: Ord + Borrow<Q>, V, Q: Ord + ?Sized> Index<&Q> for Listing<K, V> {
    type Output = V;

    /// # Panics
    /// If nothing stands there.
    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("no entry under this key")
    }
}

#[cfg(test)]
impl<K, V> Listing<K, V> {
    /// How many pages it does not share with another one.
    pub(super) fn pages_unlike(&self, other: &Self) -> usize {
        let shared = |page: &Arc<Page<K, V>>| other.pages.iter().any(|one| Arc::ptr_eq(one, page));
        self.pages.iter().filter(|page| !shared(page)).count()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    thread_local! {
        static PRINTED: Cell<usize> = const { Cell::new(0) };
    }

    impl Entry<u16> for u8 {
        fn print(&self, key: &u16, text: &mut Vec<u8>) {
            PRINTED.set(PRINTED.get() + 1);
            text.extend_from_slice(format!("\"{key}\":{self}").as_bytes());
        }
    }

    fn text(listing: &Listing<u16, u8>) -> String {
        let mut text = Vec::new();
        listing.print(&mut text);
        String::from_utf8(text).unwrap()
    }

    fn texts(entries: &BTreeMap<u16, u8>) -> String {
        entries.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect::<Vec<_>>().join(",")
    }

    /// How many entries a call has printed.
    fn count(print: impl FnOnce()) -> usize {
        let before = PRINTED.get();
        print();
        PRINTED.get() - before
    }

    #[test]
    fn only_what_stands_beside_a_change_is_printed_again() {
        let mut listing: Listing<u16, u8> = (0..10_000).map(|key| (key, 0)).collect();
        assert_eq!(count(|| drop(text(&listing))), 10_000);
        let copy = listing.clone();
        assert_eq!(count(|| drop((text(&listing), text(&copy)))), 0, "nothing has changed");
        listing.set(5_000, 0);
        assert_eq!(count(|| drop(text(&listing))), 0, "it stood there already");
        listing.set(5_000, 1);
        listing.remove(&7_000);
        assert!((2..=2 * PAGE).contains(&count(|| drop(text(&listing)))));
        assert_eq!(count(|| drop(text(&copy))), 0, "whoever has taken it before has it as it was");
        assert_eq!((copy[&5_000], copy.get(&7_000), copy.len()), (0, Some(&0), 10_000));
    }

    #[test]
    fn what_is_put_in_in_order_does_not_leave_pages_almost_empty() {
        let mut listing = Listing::<u16, u8>::default();
        (0..1_000).for_each(|key| listing.set(key, 0));
        assert!(listing.pages.len() <= 1_000 / (PAGE / 2), "{} pages", listing.pages.len());
        (0..1_000).for_each(|key| listing.remove(&key));
        assert_eq!((listing.len(), listing.pages.len()), (0, 0));
    }

    proptest! {
        #[test]
        fn a_listing_is_a_map_and_copies_stay_as_they_were(
            steps in prop::collection::vec((0..300_u16, prop::option::weighted(0.6, any::<u8>())), 0..600),
        ) {
            let (mut listing, mut map) = (Listing::default(), BTreeMap::new());
            let (mut early, mut early_map) = (listing.clone(), map.clone());
            for (i, (key, value)) in steps.into_iter().enumerate() {
                match value {
                    Some(value) => {
                        listing.set(key, value);
                        map.insert(key, value);
                    }
                    None => {
                        listing.remove(&key);
                        map.remove(&key);
                    }
                }
                if i % 7 == 0 {
                    prop_assert_eq!(text(&listing), texts(&map));
                }
                if i % 50 == 0 {
                    (early, early_map) = (listing.clone(), map.clone());
                }
                prop_assert_eq!((listing.len(), listing.get(&key)), (map.len(), map.get(&key)));
            }
            prop_assert!(listing.iter().eq(&map));
            prop_assert_eq!(text(&listing), texts(&map));
            prop_assert_eq!(text(&early), texts(&early_map));
            prop_assert!(listing == map.into_iter().collect());
        }
    }
}
