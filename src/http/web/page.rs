//! The page: files that are part of the program. A browser keeps them for as long as they are the same.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use http::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};

use super::refusal::{Code, Refusal};
use crate::http::answer::{Answer, whole, with};

struct File {
    name: &'static str,
    content_type: &'static str,
    text: &'static str,
}

/// What is at `/`; every file is at `/page/NAME`.
const FIRST: &str = "index.html";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! files {
    ($($name:literal $content_type:ident,)*) => {
        const FILES: [File; [$($name),*].len()] =
            [$(File { name: $name, content_type: $content_type, text: include_str!(concat!("../page/", $name)) }),*];
    };
}

files! {
    "index.html" HTML,
    "style.css" CSS,
    "api.js" SCRIPT,
    "app.js" SCRIPT,
    "dom.js" SCRIPT,
    "jobs.js" SCRIPT,
    "launch.js" SCRIPT,
    "mesh.js" SCRIPT,
    "output.js" SCRIPT,
    "topology.js" SCRIPT,
}

static ETAGS: LazyLock<[HeaderValue; FILES.len()]> = LazyLock::new(|| {
    FILES.map(|file| {
        let hash = digest(&SHA256, file.text.as_bytes());
        let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        HeaderValue::try_from(format!("\"{hex}\"")).expect("digits")
    })
});

/// The file of that name, or the first.
///
/// # Errors
/// There is none.
pub(super) fn file(name: Option<&str>, headers: &HeaderMap) -> Result<Answer, Refusal> {
    let name = name.unwrap_or(FIRST);
    let found = FILES.iter().zip(ETAGS.iter()).find(|(file, _)| file.name == name);
    let (file, etag) = found.ok_or_else(|| Refusal::new(Code::NotFound, "there is no such file"))?;
    let is_known = headers.get(IF_NONE_MATCH) == Some(etag);
    let mut answer = match is_known {
        true => whole(StatusCode::NOT_MODIFIED, file.content_type, ""),
        false => whole(StatusCode::OK, file.content_type, file.text),
    };
    answer.headers_mut().insert(ETAG, etag.clone());
    Ok(with(answer, CACHE_CONTROL, "no-cache"))
}
