//! Sends the requests that a unit's machine asks for, and hands it the answers of the API server, the watch and the
//! pod's streams. Owns which answer belongs to which request; decides nothing.

use std::future::ready;

use serde_json::Value;

use super::stdin::attach_news;
use super::{PodDriver, now};
use crate::pods::api::{ApiAnswer, AttachError, LogStream, StdinStream};
use crate::pods::api_error::ApiError;
use crate::pods::check::missing_rights;
use crate::pods::machine::{ApiRequest, AttachNews, StreamId};
use crate::pods::pod_status::PodSeen;
use crate::pods::watch::WatchNews;

/// The result of a request.
pub(super) enum ApiNews {
    Created(Result<Value, ApiError>),
    /// The create was not sent.
    NotSent(ApiError),
    Got(Result<Value, ApiError>),
    /// The pod was got because the watch no longer shows it.
    LookedAt(Result<Value, ApiError>),
    Attached(u32, Result<Box<dyn StdinStream>, ApiError>),
    StdinEnded(u32, Result<(), AttachError>),
    LogOpened(StreamId, Result<LogStream, ApiError>),
    Event(Result<Option<String>, ApiError>),
    Deleted(Result<(), ApiError>),
    Unwatched(Result<(), ApiError>),
}

impl PodDriver {
    pub(super) fn ask(&mut self, request: ApiRequest) {
        let (api, pod) = (self.cluster.api.clone(), self.pod_name());
        match request {
            ApiRequest::Watch => {
                self.is_watching = true;
                self.follow();
            }
            ApiRequest::Create(name) => {
                self.follow();
                let Some(template) = &self.template else {
                    let gone = ApiError::Rejected("its definition cannot be used any more".into());
                    return self.machine.handle_not_sent(now(), gone);
                };
                let answer = self.explained(api.create(template.namespace(), &template.named(&name)));
                let check = self.check_server();
                let (permit, mut unwanted) = (self.unit.may_act(), self.is_unwanted.subscribe());
                let cancelled = async move { drop(unwanted.wait_for(|is_unwanted| *is_unwanted).await) };
                let may_be_sent = async move {
                    permit.await;
                    check.await
                };
                self.requests.spawn(async move {
                    let may_be_sent = tokio::select! {
                        biased;
                        may_be_sent = may_be_sent => may_be_sent,
                        () = cancelled => Err(ApiError::Rejected("the unit was cancelled before".into())),
                    };
                    match may_be_sent {
                        Ok(()) => ApiNews::Created(answer.await),
                        Err(error) => ApiNews::NotSent(error),
                    }
                });
            }
            // The pod is somebody else's and was never seen, so no create has checked the server.
            ApiRequest::GetPod if self.pod.adopted && self.pod.pod_uid.is_empty() => {
                let answer = self.explained(after(self.check_server(), api.get(&pod)));
                self.requests.spawn(async move { ApiNews::Got(answer.await) });
            }
            ApiRequest::GetPod => {
                let answer = self.explained(api.get(&pod));
                self.requests.spawn(async move { ApiNews::Got(answer.await) });
            }
            ApiRequest::Attach => {
                self.attach.number += 1;
                let (number, answer) = (self.attach.number, self.explained(api.attach(&pod)));
                let permit = self.unit.may_send();
                let task = self.requests.spawn(async move {
                    permit.await;
                    ApiNews::Attached(number, answer.await)
                });
                self.attach.task = Some(task);
            }
            ApiRequest::SendStdin => self.send_stdin(),
            ApiRequest::CloseAttach => self.close_attach(),
            ApiRequest::OpenLog { stream, since, follow } => {
                let answer = self.explained(api.open_log(&pod, since, follow));
                let task = self.requests.spawn(async move { ApiNews::LogOpened(stream, answer.await) });
                self.opening.insert(stream, task);
            }
            ApiRequest::CloseLog(stream) => {
                self.logs.remove(&stream);
                if let Some(task) = self.opening.remove(&stream) {
                    task.abort();
                }
            }
            ApiRequest::GetEvents if !self.cluster.may_read_events() => {
                self.machine.handle_event(now(), None)
            }
            ApiRequest::GetEvents => {
                let answer = api.last_event(&pod.namespace, &self.pod.pod_uid);
                self.requests.spawn(async move { ApiNews::Event(answer.await) });
            }
            ApiRequest::Delete(uid) => {
                let answer = api.delete(&pod, &uid);
                let permit = (!self.is_forced).then(|| self.unit.may_act());
                self.requests.spawn(async move {
                    if let Some(permit) = permit {
                        permit.await;
                    }
                    ApiNews::Deleted(answer.await)
                });
            }
        }
    }

    /// Refuses a server that is too old for following logs. A pod with TCP sends its output itself, so any server will
    /// do.
    fn check_server(&self) -> impl Future<Output = Result<(), ApiError>> + Send + use<> {
        let cluster = self.tcp.is_none().then(|| self.cluster.clone());
        async move {
            match cluster {
                Some(cluster) => cluster.check_server().await,
                None => Ok(()),
            }
        }
    }

    /// Makes a refusal name every missing right, because granting only the refused right would lead to the next
    /// refusal.
    fn explained<T: Send, A: Future<Output = Result<T, ApiError>> + Send>(
        &self,
        answer: A,
    ) -> impl Future<Output = Result<T, ApiError>> + Send + use<T, A> {
        let (api, namespace) = (self.cluster.api.clone(), self.pod.namespace.clone());
        let brings_output = self.tcp.is_some();
        async move {
            match answer.await {
                Err(ApiError::Forbidden(said)) => {
                    let missing = missing_rights(&*api, &namespace, brings_output).await.unwrap_or_default();
                    Err(ApiError::Forbidden(match missing.as_slice() {
                        [] => said,
                        missing => format!("{said}; its credential may not {}", missing.join(", ")),
                    }))
                }
                answer => answer,
            }
        }
    }

    /// Follows the pod under its present name.
    fn follow(&mut self) {
        let is_followed = self.watch.as_ref().is_some_and(|watch| watch.name() == self.pod.pod_name);
        if self.is_watching && !is_followed {
            self.watch = Some(self.cluster.follow(&self.pod_name(), !self.pod.adopted));
        }
    }

    pub(super) fn on_news(&mut self, news: ApiNews) {
        let now = now();
        match news {
            ApiNews::Created(answer) => self.machine.handle_created(now, seen(answer)),
            ApiNews::NotSent(error) => self.machine.handle_not_sent(now, error),
            ApiNews::Got(answer) => self.machine.handle_pod(now, seen(answer)),
            ApiNews::LookedAt(answer) => self.on_looked_at(answer),
            ApiNews::Attached(number, _) | ApiNews::StdinEnded(number, _) if number != self.attach.number => {
            }
            ApiNews::Attached(_, Ok(stream)) => {
                self.attach.stream = Some(stream);
                self.machine.handle_attach(now, AttachNews::Opened);
            }
            ApiNews::Attached(_, Err(error)) => self.machine.handle_attach(now, AttachNews::Refused(error)),
            ApiNews::StdinEnded(_, outcome) => {
                if self.attach.sent.take().is_some_and(|mut sent| sent.try_recv().is_ok()) {
                    self.machine.handle_attach(now, AttachNews::Sent);
                }
                self.machine.handle_attach(now, attach_news(outcome));
            }
            ApiNews::LogOpened(stream, answer) => {
                if self.opening.remove(&stream).is_none() {
                    return;
                }
                let (opened, answer) = match answer {
                    Ok(opened) => (Some(opened), Ok(())),
                    Err(error) => (None, Err(error)),
                };
                if answer.is_ok() {
                    // `worker` has run, so no other pod is made.
                    self.template = None;
                }
                self.machine.handle_log_opened(now, stream, answer);
                if let Some(opened) = opened.filter(|_| self.machine.wants_log(stream)) {
                    self.logs.insert(stream, opened);
                }
            }
            ApiNews::Event(answer) => {
                if matches!(answer, Err(ApiError::Forbidden(_))) {
                    self.cluster.note_events_refused();
                }
                self.machine.handle_event(now, answer.ok().flatten().as_deref());
            }
            ApiNews::Deleted(answer) => self.machine.handle_deleted(now, answer),
            ApiNews::Unwatched(refused) => self.machine.handle_unwatched(now, refused),
        }
    }

    pub(super) fn on_watched(&mut self, news: WatchNews) {
        let now = now();
        match news {
            WatchNews::Applied(pod) => self.machine.handle_watched(now, pod),
            WatchNews::Deleted(pod) => self.machine.handle_watched_gone(now, pod),
            // The list may be older than the pod, so the pod itself is asked for.
            WatchNews::Absent if self.machine.pod().is_some() => {
                let answer = self.cluster.api.get(&self.pod_name());
                self.requests.spawn(async move { ApiNews::LookedAt(answer.await) });
            }
            WatchNews::Absent => {}
            WatchNews::ServerIsBack => self.machine.handle_server_is_back(now),
            WatchNews::Refused(error) => {
                let refused = self.explained(ready(Err(error)));
                self.requests.spawn(async move { ApiNews::Unwatched(refused.await) });
            }
        }
    }

    fn on_looked_at(&mut self, answer: Result<Value, ApiError>) {
        match (answer, self.machine.pod().cloned()) {
            (Ok(pod), _) => self.machine.handle_watched(now(), PodSeen::read(&pod)),
            (Err(ApiError::NotFound(_)), Some(pod)) => self.machine.handle_watched_gone(now(), pod),
            // The next list will tell.
            (Err(_), _) => {}
        }
    }
}

fn seen(answer: Result<Value, ApiError>) -> Result<PodSeen, ApiError> {
    answer.map(|pod| PodSeen::read(&pod))
}

/// Asks for an answer once the server has passed a check.
async fn after<T>(
    check: impl Future<Output = Result<(), ApiError>>,
    answer: ApiAnswer<T>,
) -> Result<T, ApiError> {
    check.await?;
    answer.await
}
