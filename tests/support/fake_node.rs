//! A control service that plays a script: one list of steps per connection, in the order of the connections.
//! It is strict: bytes that differ from the script, remaining steps and extra connections fail the test.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixListener,
    path::PathBuf,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

/// One step of a conversation, from the node's side.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// The node writes this.
    Say(String),
    /// The client must write exactly this line.
    Hear(String),
    /// The client must write exactly this and then close its write side.
    HearRest(Vec<u8>),
    /// The client must write exactly this, and may continue.
    HearBytes(Vec<u8>),
    /// Signals to the test that the script has come this far.
    Signal,
    /// The node neither reads nor writes nor closes until the test ends.
    Stall,
    /// The node discards input until the client closes.
    WaitForClose,
    /// The connection stays open while the next ones are served; then the client must close it.
    HoldOpen,
}

pub(crate) const GREETING: &str = "Receptor Control, node alpha\n";

pub(crate) fn say(text: &str) -> Step {
    Step::Say(text.to_owned())
}

pub(crate) fn hear(line: &str) -> Step {
    Step::Hear(line.to_owned())
}

/// A conversation that begins with the greeting.
pub(crate) fn greeted(steps: impl IntoIterator<Item = Step>) -> Vec<Step> {
    std::iter::once(say(GREETING)).chain(steps).collect()
}

/// The most common conversation: one request, one answer.
pub(crate) fn asked(question: &str, answer: &str) -> Vec<Step> {
    greeted([hear(question), say(&format!("{answer}\n"))])
}

pub(crate) struct FakeNode {
    dir: tempfile::TempDir,
    script: Option<JoinHandle<()>>,
    signals: mpsc::Receiver<()>,
    /// Dropped at the end of the test.
    running: Option<mpsc::Sender<()>>,
}

impl FakeNode {
    pub(crate) fn start(conversations: Vec<Vec<Step>>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let (signal, signals) = mpsc::channel();
        let (running, over) = mpsc::channel::<()>();
        let script = thread::spawn(move || {
            let mut held = Vec::new();
            for (number, steps) in conversations.into_iter().enumerate() {
                let (stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                let mut stream = BufReader::new(stream);
                for step in steps {
                    let context = format!("connection {number}, {step:?}");
                    match step {
                        Step::HoldOpen => {
                            held.push(stream);
                            break;
                        }
                        Step::Stall => drop(over.recv()),
                        step => play(&mut stream, step, &signal, &context),
                    }
                }
            }
            for mut stream in held {
                assert_eq!(rest(&mut stream), b"", "a held connection");
            }
        });
        Self { dir, script: Some(script), signals, running: Some(running) }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// Waits for the next `Signal` of the script.
    pub(crate) fn wait(&self) {
        self.signals.recv_timeout(Duration::from_secs(60)).expect("the script comes to its signal");
    }

    /// Waits for the end of the script; fails if the client did anything else.
    pub(crate) fn finish(mut self) {
        drop(self.running.take());
        let script = self.script.take().unwrap();
        // The script may still wait for a connection: an empty connection ends it.
        if !script.is_finished() {
            let deadline = std::time::Instant::now() + Duration::from_secs(2);
            while !script.is_finished() && std::time::Instant::now() < deadline {
                thread::yield_now();
            }
            drop(std::os::unix::net::UnixStream::connect(self.socket()));
        }
        script.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

fn play(
    stream: &mut BufReader<std::os::unix::net::UnixStream>,
    step: Step,
    signal: &mpsc::Sender<()>,
    context: &str,
) {
    match step {
        // The client may have disconnected; the test checks its output.
        Step::Say(text) => drop(stream.get_mut().write_all(text.as_bytes())),
        Step::Hear(expected) => {
            let mut line = String::new();
            stream.read_line(&mut line).expect(context);
            assert!(line.ends_with('\n'), "{context}");
            // The order of keys says nothing.
            match serde_json::from_str::<serde_json::Value>(&expected) {
                Ok(expected) => assert_eq!(
                    serde_json::from_str::<serde_json::Value>(&line).ok(),
                    Some(expected),
                    "{context}"
                ),
                Err(_) => assert_eq!(line.trim_end(), expected, "{context}"),
            }
        }
        Step::HearRest(expected) => assert!(rest(stream) == expected, "{context}"),
        Step::HearBytes(expected) => {
            let mut bytes = vec![0; expected.len()];
            stream.read_exact(&mut bytes).expect(context);
            assert!(bytes == expected, "{context}");
        }
        Step::Signal => signal.send(()).unwrap(),
        // A client that disconnects with unread input resets the connection.
        Step::WaitForClose => drop(std::io::copy(stream, &mut std::io::sink())),
        Step::HoldOpen | Step::Stall => unreachable!("handled by the caller"),
    }
}

fn rest(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A client that disconnects with unread input resets the connection.
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => panic!("{error}"),
        Ok(_) | Err(_) => bytes,
    }
}
