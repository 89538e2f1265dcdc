//! A unit's owner in virtual time: a test for each defect of receptor's, then random histories (`world`).

mod end;
mod life;
mod removal;
mod streams;
mod world;

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::*;
use crate::pods::name::Owner;
use crate::pods::options::StreamMethod;
use crate::pods::pod_status::{Container, ContainerWaiting, PodPhase};
use crate::rpc::OutputBound;

/// A unit, and its outputs so far.
struct Rig {
    unit: Machine,
    now: Instant,
    said: Vec<(State, String)>,
    requests: usize,
}

fn settings() -> UnitSettings {
    UnitSettings {
        owner: Owner::new("n1", "abcd1234", "store"),
        prefix: "w-".into(),
        method: StreamMethod::Logger,
        has_stdin: true,
        max_stdout: None,
        pending_until: None,
        api_outage: Duration::from_secs(1800),
        first_pause: Duration::from_secs(1),
        quota_retry: false,
        delete_pod_on_restart: false,
        may_read_events: false,
        name: None,
        seed: 7,
    }
}

fn record() -> PodRecord {
    PodRecord { namespace: "ns".into(), ..PodRecord::default() }
}

impl Rig {
    fn new(settings: UnitSettings) -> Self {
        Self::with(Machine::start(settings, record()))
    }

    fn with(unit: Machine) -> Self {
        Self { unit, now: Instant::now(), said: Vec::new(), requests: 0 }
    }

    /// A unit whose pod is created, but not seen yet.
    fn created(settings: UnitSettings) -> Self {
        let mut rig = Self::new(settings);
        assert!(matches!(&rig.asks()[..], [ApiRequest::Watch, ApiRequest::Create(_)]));
        let pod = rig.pod(Container::Unknown);
        rig.unit.handle_created(rig.now, Ok(pod));
        assert_eq!(rig.asks(), []);
        assert_eq!(rig.last_said(), (State::Pending, "Pod created"));
        rig
    }

    /// A unit whose `worker` runs without stdin, and whose log stream is open.
    fn following() -> (Self, StreamId) {
        let mut rig = Self::created(UnitSettings { has_stdin: false, ..settings() });
        rig.watched(Container::Running);
        let stream = rig.opened_log(true);
        (rig, stream)
    }

    fn pod(&self, worker: Container) -> PodSeen {
        PodSeen {
            name: self.unit.record.pod_name.clone(),
            namespace: "ns".into(),
            uid: "u1".into(),
            owner: Some(self.unit.settings.owner.clone()),
            has_worker: true,
            node: "node-1".into(),
            phase: PodPhase::Pending,
            worker,
            ..PodSeen::default()
        }
    }

    fn watched(&mut self, worker: Container) {
        let pod = self.pod(worker);
        self.unit.handle_watched(self.now, pod);
    }

    /// Takes the unit's requests and records its other outputs.
    fn asks(&mut self) -> Vec<ApiRequest> {
        let mut requests = Vec::new();
        while let Some(output) = self.unit.poll_output() {
            match output {
                MachineOutput::Request(request) => requests.push(request),
                MachineOutput::Status(change) => {
                    if let Some((state, _)) = self.said.last() {
                        assert!(
                            change.state >= *state && !state.is_final(),
                            "{change:?} after {:?}",
                            self.said
                        );
                    }
                    self.said.push((change.state, change.detail));
                }
                MachineOutput::Waits(_) => {}
                MachineOutput::Released { .. } | MachineOutput::ReleasePending(_) => {
                    panic!("{output:?} was not asked for")
                }
            }
        }
        self.requests += requests.iter().filter(|request| costs(request)).count();
        requests
    }

    /// Takes the only request.
    fn asks_one(&mut self) -> ApiRequest {
        let mut requests = self.asks();
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests.remove(0)
    }

    fn last_said(&self) -> (State, &str) {
        self.said.last().map(|(state, detail)| (*state, detail.as_str())).unwrap()
    }

    /// Opens the log stream that the unit requests.
    fn opened_log(&mut self, follows: bool) -> StreamId {
        let requests = self.asks();
        let open = requests.iter().find_map(|request| match request {
            ApiRequest::OpenLog { stream, follow, .. } => Some((*stream, *follow)),
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

    /// Advances to the next timer.
    fn wake(&mut self) -> Timer {
        let (at, timer) = self.unit.poll_timeout().expect("nothing is waited for");
        self.now = self.now.max(at);
        self.unit.handle_timeout(self.now);
        timer
    }

    /// Advances the clock, with all timers on the way.
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

/// Whether a request goes to the API server on behalf of this unit only.
fn costs(request: &ApiRequest) -> bool {
    match request {
        ApiRequest::Create(_)
        | ApiRequest::GetPod
        | ApiRequest::Attach
        | ApiRequest::OpenLog { .. }
        | ApiRequest::GetEvents
        | ApiRequest::Delete(_) => true,
        ApiRequest::Watch | ApiRequest::SendStdin | ApiRequest::CloseAttach | ApiRequest::CloseLog(_) => {
            false
        }
    }
}

fn ended(exit_code: i32, reason: &str) -> Container {
    Container::Terminated(Terminated { exit_code, reason: reason.into(), message: String::new() })
}

fn waiting(reason: &str, message: &str) -> Container {
    Container::Waiting(ContainerWaiting { reason: reason.into(), message: message.into() })
}

fn busy() -> ApiError {
    ApiError::Busy {
        message: "the server is currently unable to handle the request".into(),
        retry_after: None,
    }
}

const LINE: &str = "2026-01-02T03:04:05.5Z hi\n";
