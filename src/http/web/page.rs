//! The page: files that are part of the program. A browser keeps a file until its content changes.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};

use super::refusal::{ApiRefusal, Code};
use crate::http::answer::{HttpAnswer, TEXT, whole, with};

struct File {
    name: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($name:literal)*) => {
        &[$(File { name: $name, text: include_str!(concat!("../page/", $name)) },)*
            // The page makes submissions too.
            File { name: "no_terminal.py", text: include_str!("../../controller/pack/no_terminal.py") }]
    };
}

/// The file at `/`. Every file is at `/page/NAME`.
const FIRST: &str = "index.html";

const FILES: &[File] = files! {
    "index.html" "style.css" "api.js" "app.js" "dom.js" "enrol.js" "folds.js" "follow.js" "job.js" "jobs.js" "labels.js" "launch.js" "mesh.js" "outages.js" "output.js" "overview.js" "runner.js" "saved.js" "tasks.js" "topology.js"
};

impl File {
    fn content_type(&self) -> &'static str {
        match self.name.rsplit_once('.') {
            Some((_, "css")) => "text/css; charset=utf-8",
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "py")) => TEXT,
            Some(_) | None => "text/html; charset=utf-8",
        }
    }
}

static ETAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| {
    let tag = |file: &File| {
        let hash = URL_SAFE_NO_PAD.encode(digest(&SHA256, file.text.as_bytes()));
        HeaderValue::try_from(format!("\"{hash}\"")).expect("letters and digits")
    };
    FILES.iter().map(tag).collect()
});

/// The file of that name, or without a name the first.
pub(super) fn file(name: Option<&str>, headers: &HeaderMap) -> Result<HttpAnswer, ApiRefusal> {
    let name = name.unwrap_or(FIRST);
    let found = FILES.iter().zip(ETAGS.iter()).find(|(file, _)| file.name == name);
    let (file, etag) = found.ok_or_else(|| ApiRefusal::new(Code::NotFound, "there is no such file"))?;
    let is_known = headers.get(IF_NONE_MATCH) == Some(etag);
    let mut answer = match is_known {
        true => whole(StatusCode::NOT_MODIFIED, file.content_type(), ""),
        false => whole(StatusCode::OK, file.content_type(), file.text),
    };
    answer.headers_mut().insert(ETAG, etag.clone());
    Ok(with(answer, CACHE_CONTROL, "no-cache"))
}
