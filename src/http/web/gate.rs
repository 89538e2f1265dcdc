//! Who asks, and what he may do: a token, the session of a browser, or a client certificate says so. Owns how clients
//! show these, and what a change needs besides. Wrong tokens are answered late, and few at a time. Knows no routes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, Version};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

use super::refusal::{ApiRefusal, Code};
use super::sessions::{BrowserSessions, LASTS};
use crate::http::answer::bearer;
use crate::http::hosts::{is_own_page, only};
use crate::http::server::HttpClient;
use crate::os::address::network_of;
use crate::os::places::Places;
use crate::tls::access::{AccessError, AccessToken, AccessTokens};
use crate::tls::{AccessLevel, Names};
use crate::work::Caller;

/// The beginning of the cookie's name. The server's port follows, because browsers share cookies between a host's
/// ports.
const SESSION: &str = "meshd-session-";
/// Comes before the name if there is TLS. Browsers accept such a cookie only over TLS and from this very host, so that
/// no server without TLS, on another port or of another name, can set it.
const OF_HOST: &str = "__Host-";
const FORM_TOKEN: HeaderName = HeaderName::from_static("x-form-token");
/// How long a wrong token waits for its answer, and how many of one network may wait.
const DELAY: Duration = Duration::from_secs(1);
const DELAYED: usize = 16;
/// Headers that proxies add to requests which they pass on, and the beginning of the other ones. Old proxies that add
/// none speak HTTP/1.0.
const OF_PROXIES: [&str; 6] =
    ["forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"];
const OF_OTHER_PROXIES: &str = "x-forwarded-";
/// The most looks at the file of tokens at a time, and how long one may take: the file system may hang.
const LOOKS: usize = 2;
const LOOKED_WITHIN: Duration = Duration::from_secs(5);

pub(super) struct WebGate {
    tokens: AccessTokens,
    client_level: AccessLevel,
    /// Common names of the certificates that have `client_level`; if empty, all certificates but those of nodes have
    /// it.
    client_names: Vec<String>,
    /// The highest level that anybody gets.
    pub(super) allow: AccessLevel,
    sessions: BrowserSessions,
    delayed: Places<IpAddr>,
    looks: Arc<Semaphore>,
}

/// Who asks.
#[derive(Debug, Clone)]
pub(super) struct Visitor {
    pub(super) level: AccessLevel,
    /// A program or a browser of this machine.
    pub(super) is_here: bool,
    proof: Proof,
}

#[derive(Debug, Clone)]
enum Proof {
    None,
    Token(AccessToken),
    /// A cookie's word, and the token that it stands for.
    Session(String, AccessToken),
    Certificate(String),
}

impl Visitor {
    /// Somebody who shows nothing, and may do what needs no level.
    pub(super) fn nobody() -> Self {
        Self { level: AccessLevel::None, is_here: false, proof: Proof::None }
    }

    /// The name of the visitor's token or certificate.
    pub(super) fn name(&self) -> Option<&str> {
        match &self.proof {
            Proof::None => None,
            Proof::Token(token) | Proof::Session(_, token) => Some(&token.name),
            Proof::Certificate(name) => Some(name),
        }
    }

    /// The name under which the visitor submits jobs and is audited. Tokens cannot take a certificate's, because their
    /// names have no colon.
    pub(super) fn caller(&self) -> Caller {
        let name = match &self.proof {
            Proof::None => String::new(),
            Proof::Token(token) | Proof::Session(_, token) => token.name.clone(),
            Proof::Certificate(name) => format!("cert:{name}"),
        };
        Caller::of_page(name, self.level >= AccessLevel::Admin)
    }

    /// What the visitor's form token is made for. `None` if none is needed: a browser adds cookies and certificates to
    /// the requests of foreign pages too, but not tokens.
    fn form(&self) -> Option<String> {
        match &self.proof {
            Proof::None | Proof::Token(_) => None,
            Proof::Session(word, _) => Some(format!("session:{word}")),
            Proof::Certificate(name) => Some(format!("cert:{name}")),
        }
    }
}

impl WebGate {
    pub(super) fn new(
        tokens: AccessTokens,
        (client_level, client_names): (AccessLevel, Vec<String>),
        allow: AccessLevel,
    ) -> Self {
        Self {
            tokens,
            client_level,
            client_names,
            allow,
            sessions: BrowserSessions::new(),
            delayed: Places::new(DELAYED),
            looks: Arc::new(Semaphore::new(LOOKS)),
        }
    }

    /// Who sends these headers.
    ///
    /// # Errors
    /// The token is wrong, or the file of tokens cannot be used. A session that has ended counts as none.
    pub(super) async fn identify(
        &self,
        client: &HttpClient,
        head: &Parts,
        called: &Authority,
    ) -> Result<Visitor, ApiRefusal> {
        let proof = self.proof(client, &head.headers, called).await?;
        let level = match &proof {
            Proof::None => AccessLevel::None,
            Proof::Token(token) | Proof::Session(_, token) => token.level,
            Proof::Certificate(_) => self.client_level,
        };
        let is_here = client.host.is_loopback() && !is_forwarded(head);
        Ok(Visitor { level: level.min(self.allow), is_here, proof })
    }

    async fn proof(
        &self,
        client: &HttpClient,
        headers: &HeaderMap,
        called: &Authority,
    ) -> Result<Proof, ApiRefusal> {
        if headers.contains_key(AUTHORIZATION) {
            let shown = only(headers, &AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
            return self.token(client, shown.unwrap_or_default()).await.map(Proof::Token);
        }
        if let Some(word) = session_of(headers, &cookie(called), client.is_secured)
            && let Some(token) = self.sessions.find(word)
        {
            if self.has(&token).await? {
                return Ok(Proof::Session(word.to_owned(), token));
            }
            self.sessions.end(word);
        }
        match &client.certificate {
            Some(names) if self.knows(names) => Ok(Proof::Certificate(names.subject.clone())),
            Some(_) | None => Ok(Proof::None),
        }
    }

    /// Whether a certificate has a level. Certificates of nodes are for links: although the same authority may have
    /// signed them, they have a level only if they are named.
    fn knows(&self, names: &Names) -> bool {
        let is_named = match self.client_names.is_empty() {
            true => names.node_ids.is_empty(),
            false => self.client_names.contains(&names.subject),
        };
        is_named && self.client_level != AccessLevel::None
    }

    /// The line of the file for a token that a client shows.
    async fn token(&self, client: &HttpClient, shown: &[u8]) -> Result<AccessToken, ApiRefusal> {
        let shown = shown.to_vec();
        if !shown.is_empty()
            && let Some(token) = self.look(move |tokens| tokens.find(&shown)).await?
        {
            return Ok(token);
        }
        Err(self.refuse_late(client, Instant::now(), "there is no such token").await)
    }

    /// Refuses a wrong token or signature, at the same time after the request whatever was looked at meanwhile.
    pub(super) async fn refuse_late(
        &self,
        client: &HttpClient,
        asked: Instant,
        why: &'static str,
    ) -> ApiRefusal {
        let Some(_place) = self.delayed.take(&network_of(client.host)) else {
            return ApiRefusal::new(Code::TooMany, "too many wrong tokens: wait a second");
        };
        tracing::debug!(host = %client.host, "a client of the page's API gave a wrong token");
        sleep_until(asked + DELAY).await;
        ApiRefusal::new(Code::Unauthorized, why)
    }

    async fn has(&self, token: &AccessToken) -> Result<bool, ApiRefusal> {
        let token = token.clone();
        self.look(move |tokens| tokens.has(&token)).await
    }

    /// Whether there is a token to sign in with.
    pub(super) async fn has_tokens(&self) -> bool {
        self.look(|tokens| tokens.list()).await.is_ok_and(|tokens| !tokens.is_empty())
    }

    /// Looks at the file of tokens.
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(AccessTokens) -> Result<T, AccessError> + Send + 'static,
    ) -> Result<T, ApiRefusal> {
        let (tokens, looks) = (self.tokens.clone(), self.looks.clone());
        let looked = async move {
            let turn = looks.acquire_owned().await.ok()?;
            let look = move || {
                // A look that hangs keeps its turn, so that no more than `LOOKS` threads hang.
                let _turn = turn;
                look(tokens)
            };
            tokio::task::spawn_blocking(look).await.ok()?.ok()
        };
        match timeout(LOOKED_WITHIN, looked).await {
            Ok(Some(found)) => Ok(found),
            // A client without a good token is not told what is wrong with the file.
            Ok(None) | Err(_) => {
                let message = "the node cannot use its file of tokens: meshd check says why";
                Err(ApiRefusal::new(Code::StoreAway, message))
            }
        }
    }

    /// Whether the token or session that a visitor has shown is still valid.
    pub(super) async fn still_admits(&self, visitor: &Visitor) -> bool {
        match &visitor.proof {
            // When a certificate is revoked, the TLS profile cuts the connection.
            Proof::None | Proof::Certificate(_) => true,
            Proof::Token(token) => self.has(token).await.unwrap_or(false),
            Proof::Session(word, token) => {
                self.sessions.find(word).is_some() && self.has(token).await.unwrap_or(false)
            }
        }
    }

    /// Refuses a change that a foreign page may have made a browser ask for.
    ///
    /// # Errors
    /// [`Code::Forbidden`]
    pub(super) fn check_form(
        &self,
        visitor: &Visitor,
        headers: &HeaderMap,
        called: &Authority,
        client: &HttpClient,
    ) -> Result<(), ApiRefusal> {
        let Some(form) = visitor.form() else { return Ok(()) };
        if !is_own_page(headers, called, client.is_secured) {
            return Err(ApiRefusal::new(
                Code::Forbidden,
                "Origin: a change must come from a page of this server",
            ));
        }
        let is_good =
            only(headers, &FORM_TOKEN).is_some_and(|shown| self.sessions.is_form_token(&form, shown));
        let message = "X-Form-Token: it must be the form_token of api/v1/session";
        if is_good { Ok(()) } else { Err(ApiRefusal::new(Code::Forbidden, message)) }
    }

    /// The form token that the visitor's page needs for changes.
    pub(super) fn form_token(&self, visitor: &Visitor) -> Option<String> {
        visitor.form().map(|form| self.sessions.form_token(&form))
    }

    /// Begins a session, and returns its cookie.
    pub(super) async fn sign_in(
        &self,
        client: &HttpClient,
        token: &str,
        called: &Authority,
        by_tls: bool,
    ) -> Result<String, ApiRefusal> {
        let token = self.token(client, token.as_bytes()).await?;
        tracing::info!(name = token.name, level = %token.level, host = %client.host, "signed in to the page");
        Ok(set_cookie(called, by_tls, &self.sessions.begin(token), LASTS))
    }

    /// Ends a session. Returns what deletes its cookie in the browser, with and without TLS.
    pub(super) fn sign_out(&self, visitor: &Visitor, called: &Authority) -> [String; 2] {
        if let Proof::Session(word, _) = &visitor.proof {
            self.sessions.end(word);
        }
        [true, false].map(|by_tls| set_cookie(called, by_tls, "", Duration::ZERO))
    }
}

/// Whether a proxy has passed the request on.
fn is_forwarded(head: &Parts) -> bool {
    let mut names = head.headers.keys().map(HeaderName::as_str);
    head.version < Version::HTTP_11
        || names.any(|name| name.starts_with(OF_OTHER_PROXIES) || OF_PROXIES.contains(&name))
}

/// The name of the cookie, without [`OF_HOST`].
fn cookie(called: &Authority) -> String {
    format!("{SESSION}{}", called.port_u16().unwrap_or_default())
}

fn set_cookie(called: &Authority, by_tls: bool, word: &str, lasts: Duration) -> String {
    let (of_host, secure) = if by_tls { (OF_HOST, "; Secure") } else { ("", "") };
    let (cookie, seconds) = (cookie(called), lasts.as_secs());
    format!("{of_host}{cookie}={word}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}")
}

/// The word of a session in the cookies. Looks for the cookie of TLS in any case, because a proxy may speak TLS for us.
fn session_of<'a>(headers: &'a HeaderMap, cookie: &str, is_secured: bool) -> Option<&'a str> {
    let cookies = || headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs =
        || cookies().flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let of_host = pairs().find(|(name, _)| name.strip_prefix(OF_HOST) == Some(cookie));
    let found = of_host.or_else(|| pairs().find(|(name, _)| *name == cookie && !is_secured));
    found.map(|(_, word)| word)
}
