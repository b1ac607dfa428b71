//! The terminal: set up, restored at the end and after a panic or a signal, and the keys that are typed.

use std::io::{IsTerminal as _, stdin, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use load_client::interrupt::Interrupt;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use super::screen_state::ScreenState;
use super::{ScreenCommand, view};

/// Whether the terminal must be restored.
static IS_OPEN: AtomicBool = AtomicBool::new(false);

/// Whether there is a terminal to draw on, and to read keys from.
pub(crate) fn is_available() -> bool {
    let is_capable =
        std::env::var_os("TERM").is_some_and(|name| !name.is_empty() && name != "dumb");
    is_capable && stdout().is_terminal() && stdin().is_terminal()
}

/// The alternate screen of the terminal, until it is dropped.
#[derive(Debug)]
pub(crate) struct RunScreen {
    terminal: DefaultTerminal,
}

impl RunScreen {
    /// Also lets a panic of any thread, and the second signal, restore the terminal.
    pub(crate) fn open(interrupt: &Interrupt) -> anyhow::Result<Self> {
        interrupt.before_exit(restore);
        IS_OPEN.store(true, Ordering::SeqCst);
        let terminal = ratatui::try_init()
            .inspect_err(|_| restore())
            .context("cannot use the terminal for the screen; --no-screen does without it")?;
        Ok(Self { terminal })
    }

    pub(crate) fn draw(&mut self, state: &ScreenState<'_>) -> anyhow::Result<()> {
        let drawn = self.terminal.draw(|frame| view::draw(frame, state));
        drawn.context("cannot write to the terminal")?;
        Ok(())
    }

    /// Waits for a key; returns what it asks for, if anything.
    pub(crate) fn wait(&mut self, time: Duration) -> anyhow::Result<Option<ScreenCommand>> {
        if !event::poll(time).context("cannot read from the terminal")? {
            return Ok(None);
        }
        let event = event::read().context("cannot read from the terminal")?;
        Ok(command_of(&event))
    }
}

impl Drop for RunScreen {
    fn drop(&mut self) {
        restore();
    }
}

/// Leaves the screen; of no effect without one. A terminal that is gone needs no restoration.
fn restore() {
    if IS_OPEN.swap(false, Ordering::SeqCst) {
        let _ = ratatui::try_restore();
    }
}

fn command_of(event: &Event) -> Option<ScreenCommand> {
    let Event::Key(key) = event else {
        return None;
    };
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let has_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c' | 'd') if has_control => Some(ScreenCommand::Stop),
        _ if has_control || key.modifiers.contains(KeyModifiers::ALT) => None,
        KeyCode::Char('p' | ' ') => Some(ScreenCommand::Pause),
        KeyCode::Char('+' | '=') | KeyCode::Up => Some(ScreenCommand::Faster),
        KeyCode::Char('-') | KeyCode::Down => Some(ScreenCommand::Slower),
        KeyCode::Char('n') | KeyCode::Right => Some(ScreenCommand::NextPhase),
        KeyCode::Char('q') => Some(ScreenCommand::Stop),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn keys_have_commands() {
        let command = |code, modifiers| command_of(&Event::Key(KeyEvent::new(code, modifiers)));
        let none = KeyModifiers::NONE;
        assert_eq!(
            command(KeyCode::Char('p'), none),
            Some(ScreenCommand::Pause)
        );
        assert_eq!(
            command(KeyCode::Char('+'), KeyModifiers::SHIFT),
            Some(ScreenCommand::Faster)
        );
        assert_eq!(
            command(KeyCode::Char('n'), none),
            Some(ScreenCommand::NextPhase)
        );
        // In raw mode the terminal makes no signal of it.
        assert_eq!(
            command(KeyCode::Char('c'), KeyModifiers::CONTROL),
            Some(ScreenCommand::Stop)
        );
        assert_eq!(command(KeyCode::Char('c'), none), None);
        assert_eq!(command(KeyCode::Char('n'), KeyModifiers::CONTROL), None);
        assert_eq!(command_of(&Event::Resize(80, 24)), None);
    }
}
