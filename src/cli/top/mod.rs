//! `meshctl top`: nodes, links and jobs on a terminal, as they are now. Owns the terminal, the keys and when the node
//! is asked; `view` decides what is shown.

mod view;

use std::io::{IsTerminal as _, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::CliContext;
use super::exit::{Exit, Failure};
use super::output::Interrupts;
use super::snapshot::SnapshotWatcher;
use view::{Key, View};

/// How often the keyboard thread checks whether it is still needed.
const KEYBOARD_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(super) struct Top {
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

impl Top {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        if !(context.output.is_terminal() && stdin().is_terminal()) {
            return Err(Failure::usage("this needs a terminal; meshctl status and meshctl events do not"));
        }
        let mut watcher = SnapshotWatcher::new(&context.client);
        let mut view = View::new(watcher.look().await?, context.output.now().time_zone().clone());
        let mut terminal = ratatui::try_init().map_err(|error| Failure::output(&error))?;
        let done = self.show(&mut terminal, &mut watcher, &mut view).await;
        ratatui::restore();
        done
    }

    async fn show(
        &self,
        terminal: &mut DefaultTerminal,
        watcher: &mut SnapshotWatcher<'_>,
        view: &mut View,
    ) -> Result<Exit, Failure> {
        let mut keys = Keyboard::listen();
        let mut interrupts = Interrupts::new();
        let mut ticks = interval(Duration::from_secs(self.interval));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            terminal.draw(|frame| view.draw(frame)).map_err(|error| Failure::output(&error))?;
            let look = async {
                ticks.tick().await;
                watcher.look().await
            };
            // Keys work even while the node does not answer.
            let mut look = std::pin::pin!(look);
            loop {
                let key = tokio::select! {
                    looked = &mut look => {
                        match looked {
                            Ok(snapshot) => view.update(snapshot),
                            Err(error) => view.lose(error.to_string()),
                        }
                        break;
                    }
                    key = keys.pressed.recv() => key,
                    failure = interrupts.next() => return Err(failure),
                };
                match key {
                    Some(Key::Quit) | None => return Ok(Exit::Success),
                    Some(key) => view.press(key),
                }
                terminal.draw(|frame| view.draw(frame)).map_err(|error| Failure::output(&error))?;
            }
        }
    }
}

/// The keyboard, read by a thread of its own.
struct Keyboard {
    pressed: mpsc::Receiver<Key>,
    is_over: Arc<AtomicBool>,
}

impl Keyboard {
    fn listen() -> Self {
        let (sender, pressed) = mpsc::channel(16);
        let is_over = Arc::<AtomicBool>::default();
        let over = is_over.clone();
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let key = match event::poll(KEYBOARD_EVERY) {
                    Ok(true) => event::read().map(|event| key(&event)),
                    Ok(false) => continue,
                    Err(error) => Err(error),
                };
                // Without a terminal there are no more keys.
                let Ok(key) = key else { break };
                if key.is_some_and(|key| sender.blocking_send(key).is_err()) {
                    break;
                }
            }
        });
        Self { pressed, is_over }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn key(event: &Event) -> Option<Key> {
    let key = match event {
        Event::Key(key) if key.kind == KeyEventKind::Press => key,
        // Another size needs another frame.
        Event::Resize(..) => return Some(Key::Redraw),
        _ => return None,
    };
    Some(match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
        KeyCode::Tab | KeyCode::Right => Key::NextTab,
        KeyCode::BackTab | KeyCode::Left => Key::LastTab,
        KeyCode::Char(digit @ '1'..='3') => Key::Tab(digit as usize - '1' as usize),
        KeyCode::Up | KeyCode::Char('k') => Key::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => Key::Move(1),
        KeyCode::PageUp => Key::Page(-1),
        KeyCode::PageDown | KeyCode::Char(' ') => Key::Page(1),
        KeyCode::Home => Key::Move(isize::MIN),
        KeyCode::End => Key::Move(isize::MAX),
        KeyCode::Char('!') => Key::OnlyWrong,
        _ => return None,
    })
}
