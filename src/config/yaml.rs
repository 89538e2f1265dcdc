//! Reads a YAML file into directives as written.
//!
//! Owns the notation: YAML 1.1 scalars as go-yaml reads them, places, duplicate keys (the last one counts,
//! with a warning) and the forms an item can take. The reader's budget bounds what a hostile file can cost.
//! It refuses to know which directives exist.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};

use super::error::{Location, shown};
use super::raw::{RawItem, RawParam, Report};
use super::value::{Located, Value};
use super::version2;

/// What a file holds.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub(super) items: Vec<RawItem>,
    /// True if it is in the second notation.
    pub(super) version2: bool,
}

/// Reads the text of a file; errors and warnings go to the report.
pub(super) fn read(path: &Arc<Path>, text: &str, report: &mut Report) -> Document {
    let mut reader = Reader { path, report };
    match parse(text) {
        Ok(tree) => {
            let root = reader.node(tree);
            reader.document(root)
        }
        Err(error) => {
            let line = error.location().map_or(0, |location| location.line());
            let fault = format!("not valid YAML: {}", explain(&error));
            reader.report.general(&reader.place(line), fault);
            Document::default()
        }
    }
}

fn parse(text: &str) -> Result<Spanned<Tree>, serde_saphyr::Error> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        // Both of two equal keys reach the visitor, so that the reader can warn.
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options)
}

/// The parser's words without the position, which the place already says.
fn explain(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    if text.contains("multiple YAML documents") {
        return "it holds more than one YAML document: remove the `---` between them".to_owned();
    }
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}

struct Reader<'a> {
    path: &'a Arc<Path>,
    report: &'a mut Report,
}

impl Reader<'_> {
    fn place(&self, line: u64) -> Location {
        Location::File { path: Arc::clone(self.path), line }
    }

    /// The configuration is a list, or a map with a version; an empty file is an empty list.
    fn document(&mut self, root: Located) -> Document {
        match root.value {
            Value::List(items) => {
                let items = items.into_iter().filter_map(|item| self.item(item)).collect();
                Document { items, version2: false }
            }
            Value::Null => Document::default(),
            Value::Map(map) if version2::is_meant(&map) => {
                Document { items: version2::items(map, self.report), version2: true }
            }
            Value::Map(_) | Value::Text(_) | Value::Int(_) | Value::Float(_) | Value::Flag(_) => {
                let problem = "a configuration is a list of directives, such as `- node: foo`";
                self.report.general(&root.at, problem);
                Document::default()
            }
        }
    }

    /// One item: a name, or a map of one name to its parameters.
    fn item(&mut self, item: Located) -> Option<RawItem> {
        let (at, given) = (item.at.clone(), item.show());
        let problem = match item.value {
            Value::Text(name) => return Some(RawItem { at, name, params: Vec::new() }),
            Value::Map(map) => match <[_; 1]>::try_from(map) {
                Ok([(name, params)]) => {
                    return self.params(&name, params).map(|params| RawItem { at, name, params });
                }
                Err(map) if map.is_empty() => "an item is empty".to_owned(),
                Err(map) => {
                    let names: Vec<_> = map.iter().take(4).map(|(name, _)| shown(name)).collect();
                    format!("an item holds one directive, this one holds {}: {}", map.len(), names.join(", "))
                }
            },
            Value::Null => "an item is empty".to_owned(),
            Value::List(_) => "an item is a directive, this one is a list".to_owned(),
            Value::Int(_) | Value::Float(_) | Value::Flag(_) => format!("{given} is no directive"),
        };
        self.report.general(&at, problem);
        None
    }

    fn params(&mut self, directive: &str, node: Located) -> Option<Vec<RawParam>> {
        let at = node.at.clone();
        match node.value {
            Value::Null => Some(Vec::new()),
            Value::Map(map) => {
                let named = |(name, value): (String, Located)| RawParam {
                    name: Some(name),
                    at: value.at.clone(),
                    value,
                };
                Some(map.into_iter().map(named).collect())
            }
            Value::Text(_) | Value::Int(_) | Value::Float(_) | Value::Flag(_) => {
                Some(vec![RawParam { name: None, at, value: node }])
            }
            Value::List(_) => {
                let problem = format!(
                    "{}: parameters are a map, such as `{{name: value}}`, not a list",
                    shown(directive)
                );
                self.report.general(&at, problem);
                None
            }
        }
    }

    fn node(&mut self, tree: Spanned<Tree>) -> Located {
        let at = self.place(tree.referenced.line());
        let value = match tree.value {
            Tree::Null => Value::Null,
            Tree::Flag(flag) => Value::Flag(flag),
            Tree::Int(number) => Value::Int(number),
            Tree::Float(number) => Value::Float(number),
            Tree::Text(text) => Value::Text(text),
            Tree::List(items) => Value::List(items.into_iter().map(|item| self.node(item)).collect()),
            Tree::Map(entries) => Value::Map(self.map(entries)),
        };
        Located { at, value }
    }

    /// Of equal keys the last one counts.
    fn map(&mut self, entries: Vec<(Spanned<Tree>, Spanned<Tree>)>) -> Vec<(String, Located)> {
        let mut map: Vec<(String, Located)> = Vec::with_capacity(entries.len());
        let mut known = BTreeMap::new();
        for (key, value) in entries {
            let Some((at, key)) = self.key(key) else { continue };
            // A value's own place may be an anchor's; the key's line is where a person looks.
            let value = Located { at: at.clone(), ..self.node(value) };
            match known.get(&key) {
                Some(&index) => {
                    self.report
                        .warn(&at, format!("`{}` is given more than once, the last one counts", shown(&key)));
                    map[index] = (key, value);
                }
                None => {
                    known.insert(key.clone(), map.len());
                    map.push((key, value));
                }
            }
        }
        map
    }

    fn key(&mut self, key: Spanned<Tree>) -> Option<(Location, String)> {
        let node = self.node(key);
        let problem = match &node.value {
            Value::Text(key) => return Some((node.at.clone(), key.clone())),
            Value::Int(number) => return Some((node.at.clone(), number.to_string())),
            Value::Flag(_) => {
                "a name reads as true or false, as y, n, yes, no, on and off do in YAML: quote it".to_owned()
            }
            Value::Null | Value::Float(_) | Value::List(_) | Value::Map(_) => {
                format!("a name must be text, not {}", node.show())
            }
        };
        self.report.general(&node.at, problem);
        None
    }
}

/// What the parser yields, before keys are unique.
enum Tree {
    Null,
    Flag(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Spanned<Tree>>),
    Map(Vec<(Spanned<Tree>, Spanned<Tree>)>),
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Tree, E> {
        Ok(Tree::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Tree, E> {
        Ok(Tree::Int(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Tree, E> {
        Ok(i64::try_from(number).map_or(Tree::Float(number as f64), Tree::Int))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Tree, E> {
        Ok(Tree::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Tree, E> {
        Ok(Tree::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }
}
