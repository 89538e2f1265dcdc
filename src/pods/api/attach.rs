//! Opening an attach stream: as a WebSocket if the server agrees on version 5 of the protocol, which can half-close
//! stdin, otherwise as SPDY. Owns that choice. `websocket` and `spdy` own what travels over the stream.

use http::{HeaderValue, Method, Response, StatusCode, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use serde_json::Value;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;

use super::failure::words;
use super::http::{HttpApi, request};
use super::spdy::SpdyStdin;
use super::websocket::WebSocketStdin;
use super::{AttachError, StdinStream, body};
use crate::pods::api_error::{ApiError, was_never_attached};

/// The WebSocket protocol that can half-close stdin.
const V5: &str = "v5.channel.k8s.io";
/// The protocol over SPDY.
const V4: &str = "v4.channel.k8s.io";
const PROTOCOL_VERSION: &str = "x-stream-protocol-version";

/// The connection after its upgrade.
pub(super) type AttachConnection = TokioIo<Upgraded>;

pub(super) async fn open(api: &HttpApi, path: &str) -> Result<Box<dyn StdinStream>, ApiError> {
    if !api.uses_spdy()
        && let Some(stream) = open_websocket(api, path).await?
    {
        return Ok(stream);
    }
    let stream = open_spdy(api, path).await?;
    api.use_spdy();
    Ok(stream)
}

/// None if the server does not offer version 5 over WebSockets, or the credential may not open a WebSocket.
async fn open_websocket(api: &HttpApi, path: &str) -> Result<Option<Box<dyn StdinStream>>, ApiError> {
    let mut request = request(Method::GET, path, Body::empty())?;
    let key = generate_key();
    let headers = request.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(V5));
    let key = HeaderValue::from_str(&key).map_err(|error| ApiError::Rejected(error.to_string()))?;
    headers.insert(header::SEC_WEBSOCKET_KEY, key);
    let response = api.send(request).await?;
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => {}
        StatusCode::BAD_REQUEST | StatusCode::FORBIDDEN | StatusCode::METHOD_NOT_ALLOWED => return Ok(None),
        _ => return Err(body::refusal(response).await),
    }
    let agreed = response.headers().get(header::SEC_WEBSOCKET_PROTOCOL).is_some_and(|agreed| agreed == V5);
    if !agreed {
        return Ok(None);
    }
    Ok(Some(Box::new(WebSocketStdin::new(upgraded(response).await?))))
}

async fn open_spdy(api: &HttpApi, path: &str) -> Result<Box<dyn StdinStream>, ApiError> {
    let mut request = request(Method::POST, path, Body::empty())?;
    let headers = request.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(V4));
    let response = api.send(request).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(body::refusal(response).await);
    }
    if response.headers().get(PROTOCOL_VERSION).is_none_or(|agreed| agreed != V4) {
        return Err(ApiError::Rejected(format!("the server does not know the attach protocol {V4}")));
    }
    Ok(Box::new(SpdyStdin::new(upgraded(response).await?)))
}

async fn upgraded(response: Response<Body>) -> Result<AttachConnection, ApiError> {
    let upgraded = hyper::upgrade::on(response).await;
    upgraded.map(TokioIo::new).map_err(|error| ApiError::Unreachable(words(&error).into()))
}

/// What the Status object at a stream's end says.
pub(super) fn outcome(status: &[u8]) -> Result<(), AttachError> {
    let Ok(status) = serde_json::from_slice::<Value>(status) else {
        return Err(AttachError::Broken(String::from_utf8_lossy(status).trim().to_owned()));
    };
    if status["status"] == "Success" {
        return Ok(());
    }
    let message =
        status["message"].as_str().unwrap_or("the attach stream failed without a message").to_owned();
    Err(match was_never_attached(&message) {
        true => AttachError::NeverAttached(message),
        false => AttachError::Broken(message),
    })
}
