//! Who asks, and what he may do: a token, the session of a browser, or a client certificate says so. Owns how each is shown,
//! and what a change needs besides. A wrong token is answered late, and only so many at a time.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, Version};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::refusal::{ApiRefusal, Code};
use super::sessions::{BrowserSessions, LASTS};
use crate::http::answer::bearer;
use crate::http::hosts::{is_own_page, only};
use crate::http::server::HttpClient;
use crate::os::address::network_of;
use crate::os::places::Places;
use crate::tls::access::{AccessError, AccessToken, AccessTokens};
use crate::tls::{AccessLevel, Names};
use crate::work::{Caller, CallerName, Origin, Rights};

/// Begins the name of the cookie, which ends with the server's port: browsers keep those of all ports of a host together.
const SESSION: &str = "meshd-session-";
/// Stands before it where there is TLS: a server without TLS, of another port or name, can set no such cookie.
const OF_HOST: &str = "__Host-";
const FORM_TOKEN: HeaderName = HeaderName::from_static("x-form-token");
/// How long a wrong token waits for its answer, and how many of one host may.
const DELAY: Duration = Duration::from_secs(1);
const DELAYED: usize = 16;
/// What a proxy adds for clients that are not on this machine, and how all others begin. Old ones speak HTTP/1.0.
const OF_PROXIES: [&str; 6] =
    ["forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"];
const OF_OTHER_PROXIES: &str = "x-forwarded-";
/// Looks at the file of tokens at a time, and how long one may take: it may lie on a file system that hangs.
const LOOKS: usize = 2;
const LOOKED_WITHIN: Duration = Duration::from_secs(5);

pub(super) struct Gate {
    tokens: AccessTokens,
    client_level: AccessLevel,
    /// Whose certificates have it; empty: all but those of nodes.
    client_names: Vec<String>,
    /// The most that anybody may do.
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
    /// Nobody in particular.
    pub(super) fn nobody() -> Self {
        Self { level: AccessLevel::None, is_here: false, proof: Proof::None }
    }

    /// Their name, as tokens and certificates call them.
    pub(super) fn name(&self) -> Option<&str> {
        match &self.proof {
            Proof::None => None,
            Proof::Token(token) | Proof::Session(_, token) => Some(&token.name),
            Proof::Certificate(name) => Some(name),
        }
    }

    /// As who they submit jobs, and stand in the audit. No token's name has a colon.
    pub(super) fn caller(&self) -> Caller {
        let name = match &self.proof {
            Proof::None => String::new(),
            Proof::Token(token) | Proof::Session(_, token) => token.name.clone(),
            Proof::Certificate(name) => format!("cert:{name}"),
        };
        let caller = Caller::new(Origin::Tcp, true, CallerName::Web(name));
        if self.level >= AccessLevel::Admin { Caller { rights: Rights::Admin, ..caller } } else { caller }
    }

    /// What a form token of theirs belongs to. Only a browser adds what shows who asks to what a foreign page sends.
    fn form(&self) -> Option<String> {
        match &self.proof {
            Proof::None | Proof::Token(_) => None,
            Proof::Session(word, _) => Some(format!("session:{word}")),
            Proof::Certificate(name) => Some(format!("cert:{name}")),
        }
    }
}

impl Gate {
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
    /// A token that is wrong. A session that has ended is as good as none.
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

    /// Whether a certificate has a level. Those of nodes have the authority of the mesh as well, and are for links.
    fn knows(&self, names: &Names) -> bool {
        let is_named = match self.client_names.is_empty() {
            true => names.node_ids.is_empty(),
            false => self.client_names.contains(&names.subject),
        };
        is_named && self.client_level != AccessLevel::None
    }

    /// The line of a token that somebody shows.
    async fn token(&self, client: &HttpClient, shown: &[u8]) -> Result<AccessToken, ApiRefusal> {
        let shown = shown.to_vec();
        if !shown.is_empty()
            && let Some(token) = self.look(move |tokens| tokens.find(&shown)).await?
        {
            return Ok(token);
        }
        let Some(_place) = self.delayed.take(&network_of(client.host)) else {
            return Err(ApiRefusal::new(Code::TooMany, "too many wrong tokens: wait a second"));
        };
        tracing::debug!(host = %client.host, "a wrong token of the page's API");
        sleep(DELAY).await;
        Err(ApiRefusal::new(Code::Unauthorized, "there is no such token"))
    }

    async fn has(&self, token: &AccessToken) -> Result<bool, ApiRefusal> {
        let token = token.clone();
        self.look(move |tokens| tokens.has(&token)).await
    }

    /// Whether somebody could sign in.
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
                // One that hangs keeps its turn, so that there are never more threads in it.
                let _turn = turn;
                look(tokens)
            };
            tokio::task::spawn_blocking(look).await.ok()?.ok()
        };
        match timeout(LOOKED_WITHIN, looked).await {
            Ok(Some(found)) => Ok(found),
            // Who has shown no good token is not told of files.
            Ok(None) | Err(_) => {
                let message = "the node cannot use its file of tokens: meshd check says why";
                Err(ApiRefusal::new(Code::StoreAway, message))
            }
        }
    }

    /// Whether what a visitor has shown still allows as much.
    pub(super) async fn still_admits(&self, visitor: &Visitor) -> bool {
        match &visitor.proof {
            // Of a certificate that is revoked the connection is cut.
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
                "Origin: a change comes from a page of this server",
            ));
        }
        let is_good =
            only(headers, &FORM_TOKEN).is_some_and(|shown| self.sessions.is_form_token(&form, shown));
        let message = "X-Form-Token: it is the form_token of api/v1/session";
        if is_good { Ok(()) } else { Err(ApiRefusal::new(Code::Forbidden, message)) }
    }

    /// What a visitor's page needs for changes.
    pub(super) fn form_token(&self, visitor: &Visitor) -> Option<String> {
        visitor.form().map(|form| self.sessions.form_token(&form))
    }

    /// Begins a session: the cookie of it.
    ///
    /// # Errors
    /// As [`Self::identify`].
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

    /// Ends a session: what takes its cookie from the browser, whichever of the two it is.
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

/// The name of the cookie.
fn cookie(called: &Authority) -> String {
    format!("{SESSION}{}", called.port_u16().unwrap_or_default())
}

fn set_cookie(called: &Authority, by_tls: bool, word: &str, lasts: Duration) -> String {
    let (of_host, secure) = if by_tls { (OF_HOST, "; Secure") } else { ("", "") };
    let (cookie, seconds) = (cookie(called), lasts.as_secs());
    format!("{of_host}{cookie}={word}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}")
}

/// The word of a session in the cookies. Behind a proxy with TLS it is not known that there is TLS.
fn session_of<'a>(headers: &'a HeaderMap, cookie: &str, is_secured: bool) -> Option<&'a str> {
    let cookies = || headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs =
        || cookies().flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let of_host = pairs().find(|(name, _)| name.strip_prefix(OF_HOST) == Some(cookie));
    let found = of_host.or_else(|| pairs().find(|(name, _)| *name == cookie && !is_secured));
    found.map(|(_, word)| word)
}
