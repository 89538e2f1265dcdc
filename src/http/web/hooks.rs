//! What comes to the hooks of saved jobs, without a session and without a token of this API. Owns how much of it is read, and
//! that who proves nothing learns nothing: not whether there is such a hook, and not by the time of the answer.

use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::Value;
use tokio::time::Instant;

use super::jobs::drain;
use super::refusal::{ApiRefusal, Code};
use super::{Web, WebRequest, whole};
use crate::http::answer::{self, HttpAnswer};
use crate::http::hosts::only;
use crate::os::address::network_of;
use crate::work::jobs::{HookDelivery, Hooked};

/// The longest body.
const LONGEST: usize = 1 << 20;
const JSON: &str = "application/json";

impl Web {
    /// Starts a saved job, if the request proves that its forge sent it.
    pub(super) async fn hook(&self, asked: WebRequest) -> Result<HttpAnswer, ApiRefusal> {
        let (began, controller) = (Instant::now(), self.controller()?);
        let WebRequest { client, arguments, headers, mut body, .. } = asked;
        let kind = only(&headers, &CONTENT_TYPE).and_then(|kind| kind.split(';').next());
        if !kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case(JSON)) {
            let why =
                format!("Content-Type: a hook takes {JSON}, which a forge sends if its settings say so");
            return Err(ApiRefusal::bad(why));
        }
        let place = self.deliveries.take(&network_of(client.host));
        let too_many = |why| ApiRefusal::new(Code::TooMany, why);
        let place = place.ok_or_else(|| too_many("too many deliveries are under way: try again"))?;
        let body = match whole(&mut body, LONGEST).await {
            Ok(body) => body,
            Err(refused) => {
                drain(&mut body).await;
                return Err(refused);
            }
        };
        let name = arguments.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let heard = controller.deliver(HookDelivery { name, headers, body }).await?;
        // Who waits for being refused must not keep others from being heard.
        drop(place);
        match heard {
            Hooked::Heard(heard) => {
                let status = if heard.started { StatusCode::ACCEPTED } else { StatusCode::OK };
                Ok(answer::json(status, &heard))
            }
            Hooked::TooMany => Err(too_many("this hook has started too many jobs: try again later")),
            Hooked::Stranger => {
                let why = "there is no such hook, or this does not come from its sender";
                Err(self.gate.refuse_late(&client, began, why).await)
            }
        }
    }
}
