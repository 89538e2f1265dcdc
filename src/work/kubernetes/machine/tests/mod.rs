//! A unit's owner in virtual time: each row of what receptor gets wrong, then random histories (`world`).

mod end;
mod life;
mod removal;
mod streams;
mod world;

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::*;
use crate::work::kubernetes::name::Owner;
use crate::work::kubernetes::options::StreamMethod;
use crate::work::kubernetes::pod_status::{Container, Phase, Waiting};

/// A unit, what it has asked for and what it has said.
struct Rig {
    unit: Machine,
    now: Instant,
    said: Vec<(State, String)>,
    requests: usize,
}

fn settings() -> Settings {
    Settings {
        owner: Owner::new("n1", "abcd1234", "store"),
        prefix: "w-".into(),
        method: StreamMethod::Logger,
        has_stdin: true,
        pending_until: None,
        api_outage: Duration::from_secs(1800),
        first_pause: Duration::from_secs(1),
        quota_retry: false,
        delete_pod_on_restart: false,
        may_read_events: false,
        seed: 7,
    }
}

fn facts() -> Facts {
    Facts { namespace: "ns".into(), ..Facts::default() }
}

impl Rig {
    fn new(settings: Settings) -> Self {
        Self::with(Machine::start(settings, facts()))
    }

    fn with(unit: Machine) -> Self {
        Self { unit, now: Instant::now(), said: Vec::new(), requests: 0 }
    }

    /// A unit whose pod is created and not yet seen.
    fn created(settings: Settings) -> Self {
        let mut rig = Self::new(settings);
        assert!(matches!(&rig.asks()[..], [Request::Watch, Request::Create(_)]));
        let pod = rig.pod(Container::Unknown);
        rig.unit.handle_created(rig.now, Ok(pod));
        assert_eq!(rig.asks(), []);
        assert_eq!(rig.last_said(), (State::Pending, "Pod created"));
        rig
    }

    /// A unit whose `worker` runs, without stdin, and whose log stream is open.
    fn following() -> (Self, StreamId) {
        let mut rig = Self::created(Settings { has_stdin: false, ..settings() });
        rig.watched(Container::Running);
        let stream = rig.opened_log(true);
        (rig, stream)
    }

    fn pod(&self, worker: Container) -> PodSeen {
        PodSeen {
            name: self.unit.facts.pod_name.clone(),
            namespace: "ns".into(),
            uid: "u1".into(),
            owner: Some(self.unit.settings.owner.clone()),
            has_worker: true,
            node: "node-1".into(),
            phase: Phase::Pending,
            worker,
            ..PodSeen::default()
        }
    }

    fn watched(&mut self, worker: Container) {
        let pod = self.pod(worker);
        self.unit.handle_watched(self.now, pod);
    }

    /// Takes what the unit asks for; what it says is kept.
    fn asks(&mut self) -> Vec<Request> {
        let mut requests = Vec::new();
        while let Some(output) = self.unit.poll_output() {
            match output {
                Output::Request(request) => requests.push(request),
                Output::Status(change) => {
                    if let Some((state, _)) = self.said.last() {
                        assert!(
                            change.state >= *state && !state.is_final(),
                            "{change:?} after {:?}",
                            self.said
                        );
                    }
                    self.said.push((change.state, change.detail));
                }
                Output::Released { .. } | Output::ReleasePending(_) => panic!("{output:?} was not asked for"),
            }
        }
        self.requests += requests.iter().filter(|request| costs(request)).count();
        requests
    }

    /// Takes the one request that there is.
    fn asks_one(&mut self) -> Request {
        let mut requests = self.asks();
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests.remove(0)
    }

    fn last_said(&self) -> (State, &str) {
        self.said.last().map(|(state, detail)| (*state, detail.as_str())).unwrap()
    }

    /// Opens the log stream that the unit asks for.
    fn opened_log(&mut self, follows: bool) -> StreamId {
        let requests = self.asks();
        let open = requests.iter().find_map(|request| match request {
            Request::OpenLog { stream, follow, .. } => Some((*stream, *follow)),
            _ => None,
        });
        let (stream, follow) = open.unwrap_or_else(|| panic!("no log in {requests:?}"));
        assert_eq!(follow, follows);
        self.unit.handle_log_opened(self.now, stream, Ok(()));
        stream
    }

    fn logs(&mut self, stream: StreamId, text: &str) -> String {
        let mut out = Vec::new();
        self.unit.handle_log(self.now, stream, text.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    /// Lets time pass to the next wake-up.
    fn wake(&mut self) -> Timer {
        let (at, timer) = self.unit.poll_timeout().expect("nothing is waited for");
        self.now = self.now.max(at);
        self.unit.handle_timeout(self.now);
        timer
    }

    /// Lets time pass, with all wake-ups in it.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.unit.poll_timeout().is_some_and(|(at, _)| at <= until) {
            self.wake();
        }
        self.now = until;
    }

    fn is_final(&self) -> bool {
        self.unit.state().is_final()
    }
}

/// Whether a request goes to the API server for this unit alone.
fn costs(request: &Request) -> bool {
    match request {
        Request::Create(_)
        | Request::GetPod
        | Request::Attach
        | Request::OpenLog { .. }
        | Request::GetEvents
        | Request::Delete(_) => true,
        Request::Watch | Request::SendStdin | Request::CloseAttach | Request::CloseLog(_) => false,
    }
}

fn ended(exit_code: i32, reason: &str) -> Container {
    Container::Terminated(Terminated { exit_code, reason: reason.into(), message: String::new() })
}

fn waiting(reason: &str, message: &str) -> Container {
    Container::Waiting(Waiting { reason: reason.into(), message: message.into() })
}

fn busy() -> ApiError {
    ApiError::Busy {
        message: "the server is currently unable to handle the request".into(),
        retry_after: None,
    }
}

const LINE: &str = "2026-01-02T03:04:05.5Z hi\n";
