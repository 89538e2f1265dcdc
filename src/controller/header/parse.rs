//! The rule of each key of a header (the table in the controller's contract), in the order of the keys.

use std::collections::BTreeMap;

use serde_json::Value;

use super::fields::{Field, Fields, is_plain, plain_rule};
use super::{Dependency, Header, ProjectSync, Pull, RunnerWords};
use crate::controller::core::{GroupName, JobId, JobKind, LaunchGroups, Level, Retry, Slice, Word};
use crate::controller::credentials::{CredentialName, Url};
use crate::controller::refusal::HeaderFault;

const LONGEST_NAME: usize = 512;
const LONGEST_KEY: usize = 255;
const MOST_LABELS: usize = 32;
const MOST_GROUPS: usize = 100;
const MOST_DEPENDENCIES: usize = 1_000;
const MOST_WORDS: usize = 16;
const MOST_OPTIONS: usize = 100;
const LONGEST_OPTION: usize = 4_096;
const MOST_RETRIES: i64 = 10;
const MOST_PRIORITY: i64 = 100;
const COUNT: i64 = i32::MAX as i64;

type Read<T> = Result<T, HeaderFault>;

impl TryFrom<Value> for Header {
    type Error = HeaderFault;

    fn try_from(value: Value) -> Read<Self> {
        let mut fields = Fields::of_header(value)?;
        if fields.take("controller").is_none_or(|field| field.value != 1) {
            return Err(HeaderFault::Version);
        }
        let key = read(fields.optional("key"), |field| field.text(LONGEST_KEY))?;
        let header = Self {
            kind: read(fields.take("kind"), kind)?.unwrap_or(JobKind::Job),
            name: read(fields.optional("name"), |field| field.text(LONGEST_NAME))?,
            labels: read(fields.take("labels"), labels)?.unwrap_or_default(),
            forks: read(fields.optional("forks"), |field| field.int(0, COUNT))?,
            hosts: read(fields.optional("hosts"), |field| field.int(0, COUNT))?,
            slice: read(fields.optional("slice"), slice)?,
            impact: read(fields.optional("impact"), |field| field.int(0, COUNT))?,
            groups: read(fields.take("groups"), groups)?.unwrap_or_default(),
            priority: read(fields.take("priority"), |field| field.int(-MOST_PRIORITY, MOST_PRIORITY))?
                .unwrap_or(0),
            depends_on: read(fields.take("depends_on"), |field| {
                field.list(MOST_DEPENDENCIES, |item| dependency(item, key.as_deref()))
            })?
            .unwrap_or_default(),
            exclusive: read(fields.take("exclusive"), words)?.unwrap_or_default(),
            pending_timeout: read(fields.optional("pending_timeout"), Field::duration)?,
            timeout: read(fields.optional("timeout"), Field::duration)?,
            output_limit: read(fields.optional("output_limit"), |field| field.int(1, i64::MAX))?,
            lost_after: read(fields.optional("lost_after"), Field::duration)?,
            retry: read(fields.take("retry"), retry)?.unwrap_or_default(),
            runner: read(fields.optional("runner"), runner)?,
            sync: read(fields.optional("sync"), sync)?,
            rerun: read(fields.take("rerun"), Field::flag)?.unwrap_or(true),
            cleanup: read(fields.take("cleanup"), Field::flag)?.unwrap_or(true),
            key,
        };
        fields.end()?;
        Ok(header)
    }
}

fn read<T>(field: Option<Field>, read: impl FnOnce(Field) -> Read<T>) -> Read<Option<T>> {
    field.map(read).transpose()
}

fn kind(field: Field) -> Read<JobKind> {
    let path = field.path.clone();
    let kind = field.choice(&JobKind::ALL, JobKind::name)?;
    if kind.is_submitted() {
        return Ok(kind);
    }
    Err(HeaderFault::Value {
        path,
        wanted: format!("jobs of kind {} are made by the controller", kind.name()),
    })
}

fn labels(field: Field) -> Read<BTreeMap<String, String>> {
    let Value::Object(map) = &field.value else { return field.refuse("it is a map of texts") };
    if map.len() > MOST_LABELS {
        return field.refuse(format!("there may be at most {MOST_LABELS}"));
    }
    let mut labels = BTreeMap::new();
    for (name, value) in map {
        if !is_plain(name, LONGEST_KEY) {
            return field.refuse(format!("a label's name: {}", plain_rule(LONGEST_KEY)));
        }
        let value = value.as_str().filter(|text| text.is_empty() || is_plain(text, LONGEST_NAME));
        let Some(value) = value else {
            return field.refuse(format!("a label's value may be empty, else {}", plain_rule(LONGEST_NAME)));
        };
        labels.insert(name.clone(), value.to_owned());
    }
    Ok(labels)
}

fn slice(field: Field) -> Read<Slice> {
    let path = field.path.clone();
    let numbers = field.list(2, |item| item.int::<u32>(1, COUNT))?;
    match numbers[..] {
        [number, count] if number <= count => Ok(Slice { number, count }),
        _ => Err(HeaderFault::Value {
            path,
            wanted: "it is [number, count]: number from 1 to count".to_owned(),
        }),
    }
}

fn groups(field: Field) -> Read<LaunchGroups> {
    let mut fields = field.fields()?;
    let mut names = |key| -> Read<Vec<GroupName>> {
        let list = |field: Field| field.list(MOST_GROUPS, |item| item.text(LONGEST_KEY));
        let names = read(fields.take(key), list)?.unwrap_or_default();
        Ok(names.iter().map(|name| GroupName::from(name.as_str())).collect())
    };
    let launch = names("launch")?;
    let template = names("template")?;
    let inventory = names("inventory")?;
    let organization = names("organization")?;
    let levels = [Level::Template, Level::Inventory, Level::Organization];
    let prevent_fallback = read(fields.take("prevent_fallback"), |field| {
        field.list(levels.len(), |item| item.choice(&levels, Level::name))
    })?;
    fields.end()?;
    let prevent_fallback = prevent_fallback.unwrap_or_default();
    Ok(LaunchGroups { launch, template, inventory, organization, prevent_fallback })
}

fn dependency(field: Field, own_key: Option<&str>) -> Read<Dependency> {
    if field.value.is_number() {
        return field.int(1, i64::MAX).map(JobId).map(Dependency::Job);
    }
    let mut fields = field.fields()?;
    let path = "depends_on".to_owned();
    let wanted = |wanted: &str| HeaderFault::Value { path: path.clone(), wanted: wanted.to_owned() };
    let key = read(fields.take("key"), |field| field.text(LONGEST_KEY))?;
    fields.end()?;
    let key = key.ok_or_else(|| wanted("an entry is a job's number or {\"key\": KEY}"))?;
    if own_key == Some(&key) {
        return Err(wanted("a job cannot depend on its own key"));
    }
    Ok(Dependency::Key(key))
}

fn words(field: Field) -> Read<Vec<Word>> {
    let words = field.list(MOST_WORDS, |item| item.text(LONGEST_KEY))?;
    Ok(words.iter().map(|word| Word::from(word.as_str())).collect())
}

fn retry(field: Field) -> Read<Retry> {
    let mut fields = field.fields()?;
    let mut retry = Retry::default();
    if let Some(max) = read(fields.take("max"), |field| field.int(0, MOST_RETRIES))? {
        retry.max = max;
    }
    let endings = |field: Field| field.list(3, |item| item.choice(&["lost", "error", "failed"], |name| name));
    if let Some(on) = read(fields.take("on"), endings)? {
        retry.on_lost = on.contains(&"lost");
        retry.on_error = on.contains(&"error");
        retry.on_failed = on.contains(&"failed");
    }
    retry.unconfirmed = read(fields.take("unconfirmed"), Field::flag)?.unwrap_or(false);
    fields.end()?;
    Ok(retry)
}

fn runner(field: Field) -> Read<RunnerWords> {
    let mut fields = field.fields()?;
    let options = |field: Field| field.list(MOST_OPTIONS, |item| item.text(LONGEST_OPTION));
    let words = RunnerWords {
        image: read(fields.optional("image"), image)?,
        pull: read(fields.optional("pull"), |field| field.choice(&Pull::ALL, Pull::name))?,
        isolation: read(fields.optional("isolation"), Field::flag)?,
        options: read(fields.optional("options"), options)?,
        registry: read(fields.optional("registry"), credential)?,
        keepalive: read(fields.optional("keepalive"), |field| field.int(1, 86_400))?,
    };
    fields.end()?;
    Ok(words)
}

/// An image stands among the arguments of podman, which must not take it for an option.
fn image(field: Field) -> Read<String> {
    let path = field.path.clone();
    let image = field.text(LONGEST_NAME)?;
    if image.starts_with('-') || image.contains(char::is_whitespace) {
        return Err(HeaderFault::Value { path, wanted: "it is no name of an image".to_owned() });
    }
    Ok(image)
}

fn credential(field: Field) -> Read<CredentialName> {
    field.parsed(CredentialName::new)
}

fn sync(field: Field) -> Read<ProjectSync> {
    let mut fields = field.fields()?;
    let path = "sync.url".to_owned();
    let url = read(fields.take("url"), repository)?;
    let sync = ProjectSync {
        url: url.ok_or(HeaderFault::Value { path, wanted: "it is needed".to_owned() })?,
        revision: read(fields.optional("revision"), revision)?,
        credential: read(fields.optional("credential"), credential)?,
        submodules: read(fields.take("submodules"), Field::flag)?.unwrap_or(true),
        requirements: read(fields.take("requirements"), Field::flag)?.unwrap_or(true),
    };
    fields.end()?;
    Ok(sync)
}

fn repository(field: Field) -> Read<Url> {
    let path = field.path.clone();
    let wanted = |wanted: &str| HeaderFault::Value { path: path.clone(), wanted: wanted.to_owned() };
    let url = field.parsed(Url::parse)?;
    match url.scheme() {
        "ssh" | "file" => {}
        "https" if url.user().is_none() => {}
        "https" => return Err(wanted("it holds a user name: put it into a credential")),
        _ => return Err(wanted("a repository is reached by https, ssh or file")),
    }
    Ok(url)
}

/// A revision is an argument of git, which must not take it for an option.
fn revision(field: Field) -> Read<String> {
    let path = field.path.clone();
    let text = field.text(LONGEST_KEY)?;
    if text.starts_with('-') || text.contains(char::is_whitespace) {
        return Err(HeaderFault::Value { path, wanted: "it is no branch, tag or commit".to_owned() });
    }
    Ok(text)
}
