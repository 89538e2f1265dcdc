//! A simulated cluster with one unit: the server's state and actions, and the daemon's disk.

mod histories;

use std::collections::BTreeMap;

use super::*;
use crate::pods::log::cursor::Cursor;
use crate::pods::log::new_part;

/// The kind of unit.
#[derive(Debug, Clone, Copy)]
struct Kind {
    has_stdin: bool,
    delete_pod_on_restart: bool,
    may_read_events: bool,
    adopts: bool,
    pending_timeout: Option<u64>,
}

/// A pod on the server.
#[derive(Debug, Clone)]
struct Pod {
    seen: PodSeen,
    is_gone: bool,
    log: String,
    lines: u32,
    /// Streams that reached its stdin.
    attached: u32,
}

/// The state of an attach stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attach {
    None,
    Open,
    Sending,
    Sent,
}

#[derive(Debug)]
struct World {
    unit: Machine,
    settings: UnitSettings,
    now: Instant,
    pods: Vec<Pod>,
    /// Unanswered requests.
    asked: Vec<ApiRequest>,
    attach: Attach,
    /// The open streams: the time each was requested from, the bytes it has delivered, and whether it follows.
    streams: BTreeMap<StreamId, (Option<Timestamp>, usize, bool)>,
    created: BTreeMap<String, u32>,
    /// A create requested by a killed daemon, and until when the server may execute it.
    late: Option<(String, Instant)>,
    /// On disk.
    recorded: StatusChange,
    stdout: String,
    cursor: Cursor,
    is_released: bool,
    released: Option<bool>,
}

/// The fate of a request.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Served,
    /// The server executed it, but its answer is lost.
    AnswerLost,
    /// It never reached the server.
    NeverCame,
    Busy,
}

impl World {
    fn new(kind: Kind) -> Self {
        let now = Instant::now();
        let settings = UnitSettings {
            has_stdin: kind.has_stdin,
            delete_pod_on_restart: kind.delete_pod_on_restart,
            may_read_events: kind.may_read_events,
            pending_until: kind.pending_timeout.map(|seconds| now + Duration::from_secs(seconds)),
            ..settings()
        };
        let theirs = PodRecord { pod_name: "theirs".into(), adopted: true, ..record() };
        let record = if kind.adopts { theirs } else { record() };
        let mut world = Self {
            unit: Machine::start(settings.clone(), record.clone()),
            settings,
            now,
            pods: Vec::new(),
            asked: Vec::new(),
            attach: Attach::None,
            streams: BTreeMap::new(),
            created: BTreeMap::new(),
            late: None,
            recorded: StatusChange { state: State::Pending, detail: String::new(), record },
            stdout: String::new(),
            cursor: Cursor::default(),
            is_released: false,
            released: None,
        };
        if kind.adopts {
            world.create("theirs").unwrap();
            world.pods[0].seen.owner = None;
        }
        world.drain();
        world
    }

    /// Executes the unit's outputs, as the driver does.
    fn drain(&mut self) {
        while let Some(output) = self.unit.poll_output() {
            match output {
                MachineOutput::Status(change) => self.check(change),
                MachineOutput::Request(request) => self.request(request),
                MachineOutput::ReleasePending(_) | MachineOutput::Waits(_) => {}
                MachineOutput::Released { is_gone } => self.released = Some(is_gone),
            }
        }
    }

    /// The rules for everything that clients see.
    fn check(&mut self, change: StatusChange) {
        let before = &self.recorded;
        assert!(change.state >= before.state, "{change:?} after {before:?}");
        assert!(!before.state.is_final(), "{change:?} after {before:?}");
        if change.state == State::Succeeded {
            let pod =
                self.pods.iter().find(|pod| pod.seen.uid == change.record.pod_uid).expect("there was a pod");
            assert!(matches!(pod.seen.worker, Container::Terminated(_)), "worker has not ended");
            assert_eq!(self.stdout, texts(&pod.log), "all of its log");
        }
        self.recorded = change;
    }

    fn request(&mut self, request: ApiRequest) {
        match request {
            ApiRequest::Watch => {}
            ApiRequest::CloseLog(stream) => {
                self.streams.remove(&stream);
                self.asked
                    .retain(|asked| !matches!(asked, ApiRequest::OpenLog { stream: s, .. } if *s == stream));
            }
            ApiRequest::CloseAttach => {
                self.attach = Attach::None;
                self.asked.retain(|asked| *asked != ApiRequest::Attach);
            }
            ApiRequest::SendStdin => {
                assert_eq!(self.attach, Attach::Open);
                self.attach = Attach::Sending;
            }
            ApiRequest::Create(name) => {
                assert_eq!(name, self.recorded.record.pod_name, "a name is durable before it is asked for");
                self.asked.push(ApiRequest::Create(name));
            }
            ApiRequest::Attach => {
                assert!(self.recorded.record.stdin_begun, "an attach is durable before it is asked for");
                self.asked.push(ApiRequest::Attach);
            }
            other => {
                assert!(!self.asked.contains(&other), "{other:?} is asked for twice");
                self.asked.push(other);
            }
        }
    }

    fn wake(&mut self) {
        if let Some((at, timer)) = self.unit.poll_timeout() {
            // These two wait for open requests, because each request is answered within seconds.
            if !self.asked.is_empty() && matches!(timer, Timer::GiveUp | Timer::Outage) {
                return;
            }
            if self.late.as_ref().is_some_and(|(_, until)| *until <= at) {
                self.land();
            }
            self.now = self.now.max(at);
            self.unit.handle_timeout(self.now);
        }
    }

    fn land(&mut self) {
        if let Some((name, _)) = self.late.take() {
            // The pod may exist by now.
            drop(self.create(&name));
        }
    }

    fn living(&mut self) -> Option<&mut Pod> {
        self.pods.iter_mut().find(|pod| !pod.is_gone)
    }

    fn progress(&mut self) {
        let Some(pod) = self.living() else { return };
        let (worker, phase) = match &pod.seen.worker {
            Container::Unknown => (waiting("ContainerCreating", ""), PodPhase::Pending),
            Container::Waiting(_) => (Container::Running, PodPhase::Running),
            Container::Running => (ended(0, "Completed"), PodPhase::Succeeded),
            Container::Terminated(ended) => (Container::Terminated(ended.clone()), pod.seen.phase),
        };
        (pod.seen.worker, pod.seen.phase) = (worker, phase);
    }

    fn print(&mut self) {
        if let Some(pod) = self.living().filter(|pod| pod.seen.worker == Container::Running) {
            pod.lines += 1;
            // Pairs of lines share a timestamp.
            let stamp = Timestamp::from_second(1_000_000).unwrap()
                + Duration::from_millis(u64::from(pod.lines / 2) * 400);
            pod.log.push_str(&format!("{stamp} line {}\n", pod.lines));
        }
    }

    fn watch(&mut self) {
        let Some(pod) = self.pods.last().cloned() else { return };
        match pod.is_gone {
            true => self.unit.handle_watched_gone(self.now, pod.seen),
            false => self.unit.handle_watched(self.now, pod.seen),
        }
    }

    fn answer(&mut self, request: ApiRequest, fate: Fate) {
        let lost = || ApiError::Unreachable("connection reset".into());
        let error = match fate {
            Fate::Served => None,
            Fate::AnswerLost | Fate::NeverCame => Some(lost()),
            Fate::Busy => Some(busy()),
        };
        let is_done = matches!(fate, Fate::Served | Fate::AnswerLost);
        match request {
            ApiRequest::Create(name) => {
                let made = if is_done { self.create(&name) } else { Err(lost()) };
                self.unit.handle_created(self.now, error.map_or(made, Err));
            }
            ApiRequest::GetPod => {
                let found = self.get();
                self.unit.handle_pod(self.now, error.map_or(found, Err));
            }
            ApiRequest::Attach => self.attach(error),
            ApiRequest::OpenLog { stream, since, follow } => {
                let found = self.get().and_then(|pod| match pod.has_started() {
                    true => Ok(()),
                    false => Err(ApiError::Rejected("container worker is waiting to start".into())),
                });
                let answer = error.map_or(found, Err);
                if answer.is_ok() {
                    self.streams.insert(stream, (since, 0, follow));
                }
                self.unit.handle_log_opened(self.now, stream, answer);
            }
            ApiRequest::GetEvents => self.unit.handle_event(self.now, None),
            ApiRequest::Delete(uid) => {
                let has_name = self.get().is_ok();
                let found = self.pods.iter_mut().find(|pod| pod.seen.uid == uid && !pod.is_gone);
                let answer = match found {
                    Some(pod) => {
                        if is_done {
                            delete(pod);
                        }
                        Ok(())
                    }
                    None if has_name => Err(ApiError::Conflict("another UID".into())),
                    None => Err(ApiError::NotFound("not found".into())),
                };
                self.unit.handle_deleted(self.now, error.map_or(answer, Err));
            }
            ApiRequest::Watch | ApiRequest::SendStdin | ApiRequest::CloseAttach | ApiRequest::CloseLog(_) => {
                unreachable!()
            }
        }
    }

    fn create(&mut self, name: &str) -> Result<PodSeen, ApiError> {
        if self.pods.iter().any(|pod| pod.seen.name == name && !pod.is_gone) {
            return Err(ApiError::Conflict(format!("pods \"{name}\" already exists")));
        }
        assert!(self.pods.iter().all(|pod| pod.is_gone), "one pod at a time");
        *self.created.entry(name.to_owned()).or_default() += 1;
        let seen = PodSeen {
            name: name.to_owned(),
            namespace: "ns".into(),
            uid: format!("u{}", self.pods.len()),
            owner: Some(self.settings.owner.clone()),
            has_worker: true,
            ..PodSeen::default()
        };
        self.pods.push(Pod { seen: seen.clone(), is_gone: false, log: String::new(), lines: 0, attached: 0 });
        Ok(seen)
    }

    fn get(&self) -> Result<PodSeen, ApiError> {
        let name = &self.recorded.record.pod_name;
        let found = self.pods.iter().find(|pod| pod.seen.name == *name && !pod.is_gone);
        found
            .map(|pod| pod.seen.clone())
            .ok_or_else(|| ApiError::NotFound(format!("pods \"{name}\" not found")))
    }

    fn attach(&mut self, error: Option<ApiError>) {
        let pod = self.living();
        let news = match (error, pod) {
            (Some(error), _) => AttachNews::Refused(error),
            (None, Some(pod)) if pod.seen.worker == Container::Running => {
                pod.attached += 1;
                assert!(pod.attached == 1, "stdin closes with the first stream that was attached to it");
                self.attach = Attach::Open;
                AttachNews::Opened
            }
            (None, _) => AttachNews::Refused(ApiError::Rejected("container not running".into())),
        };
        self.unit.handle_attach(self.now, news);
    }

    fn go_on_attach(&mut self, goes_well: bool) {
        let (next, news) = match (self.attach, goes_well) {
            (Attach::None | Attach::Open, _) => return,
            (Attach::Sending, true) => (Attach::Sent, AttachNews::Sent),
            (Attach::Sent, true) => (Attach::None, AttachNews::Succeeded),
            (Attach::Sending | Attach::Sent, false) => {
                (Attach::None, AttachNews::Failed("broken pipe".into()))
            }
        };
        self.attach = next;
        self.unit.handle_attach(self.now, news);
    }

    /// The output of a stream requested from `since`.
    fn serve(&self, since: Option<Timestamp>) -> String {
        let Some(pod) = self.pods.last() else { return String::new() };
        let is_asked = |line: &&str| {
            let stamp: Timestamp = line.split(' ').next().unwrap().parse().unwrap();
            since.is_none_or(|since| stamp >= since)
        };
        pod.log.split_inclusive('\n').filter(is_asked).collect()
    }

    fn bring(&mut self, bytes: usize) {
        let wanted = self.streams.keys().copied().find(|stream| self.unit.wants_log(*stream));
        let Some(stream) = wanted else { return };
        let (since, at, _) = self.streams[&stream];
        let served = self.serve(since);
        let to = served.len().min(at + bytes);
        self.streams.get_mut(&stream).unwrap().1 = to;
        let mut out = Vec::new();
        let took = self.unit.handle_log(self.now, stream, &served.as_bytes()[at..to], &mut out);
        if !out.is_empty() {
            let fresh = new_part(&self.stdout.as_bytes()[took.at as usize..], &out)
                .expect("nothing else was written");
            self.stdout.push_str(std::str::from_utf8(fresh).unwrap());
        }
        self.cursor = self.unit.cursor().clone();
    }

    fn end_stream(&mut self, end: StreamEnd) {
        let wanted = self.streams.iter().find(|(stream, _)| self.unit.wants_log(**stream));
        let Some((stream, (since, at, _))) = wanted.map(|(stream, state)| (*stream, *state)) else { return };
        let has_all = at == self.serve(since).len();
        if end == StreamEnd::Broken || has_all {
            self.streams.remove(&stream);
            self.unit.handle_log_ended(self.now, stream, end);
        }
    }

    fn release(&mut self) {
        self.is_released = true;
        self.unit.handle_release(self.now, self.now + Duration::from_secs(7 * 24 * 3600), false);
    }

    fn kill(&mut self, fate: Fate) {
        // No create is delayed across two kills here, because only the sweep at a start handles that.
        self.land();
        for request in std::mem::take(&mut self.asked) {
            match (request, fate) {
                (ApiRequest::Create(name), Fate::Served) => drop(self.create(&name)),
                (ApiRequest::Create(name), Fate::AnswerLost) => {
                    self.late = Some((name, self.now + Duration::from_secs(59)));
                }
                (ApiRequest::Delete(uid), Fate::Served | Fate::AnswerLost) => {
                    self.pods.iter_mut().filter(|pod| pod.seen.uid == uid).for_each(delete);
                }
                _ => {}
            }
        }
        (self.attach, self.streams) = (Attach::None, BTreeMap::new());
        let StatusChange { state, detail, record } = self.recorded.clone();
        let stdout_size = self.stdout.len() as u64;
        let recorded = Recorded { state, detail, record, cursor: self.cursor.clone(), stdout_size };
        self.unit = Machine::restart(self.settings.clone(), recorded, self.now);
        if self.is_released && self.released.is_none() {
            self.release();
        }
    }
}

fn delete(pod: &mut Pod) {
    pod.is_gone = true;
}

/// The text of a log's lines.
fn texts(log: &str) -> String {
    log.split_inclusive('\n').map(|line| line.split_once(' ').unwrap().1).collect()
}
