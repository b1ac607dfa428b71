//! State machine of a command. Pure: transition and time in, changed command out.

use serde_json::Value;

use super::record::{Command, CommandState};

/// A transition of a command.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CommandTransition {
    /// The command was passed to the device's connection. `expects_ack`: the client will acknowledge it.
    Sent {
        expects_ack: bool,
    },
    /// The client of the device has acknowledged the command.
    Acknowledged,
    /// The device has replied.
    Answered {
        is_success: bool,
        result: Option<Value>,
        code: Option<String>,
        message: Option<String>,
    },
    /// The device is not connected or has no matching subscription.
    Unreachable,
    /// The command can never be sent to the device.
    Undeliverable(String),
    /// The due time is reached.
    DeadlineReached,
    Cancelled(String),
}

/// The time at which the command changes its state without input.
pub(super) fn due_ms(command: &Command) -> Option<u64> {
    match command.state {
        CommandState::Pending => Some(command.expires_at_ms),
        CommandState::Sent | CommandState::Acknowledged => {
            let sent_ms = command.sent_at_ms.unwrap_or(command.created_at_ms);
            Some(sent_ms.saturating_add(command.timeout_ms))
        }
        _ => None,
    }
}

/// Applies a transition. Returns `false` and leaves the command unchanged if the transition is too late or too early.
pub(super) fn apply(command: &mut Command, transition: CommandTransition, now_ms: u64) -> bool {
    use CommandState as State;
    let next = match (command.state, transition) {
        (state, _) if state.is_final() => return false,
        (
            State::Pending,
            CommandTransition::Sent {
                expects_ack: is_watched,
            },
        ) => {
            command.attempts += 1;
            command.sent_at_ms = Some(now_ms);
            match command.one_way && !is_watched {
                true => State::Success,
                false => State::Sent,
            }
        }
        (_, CommandTransition::Sent { .. }) => return false,
        (State::Acknowledged, CommandTransition::Acknowledged) => return false,
        // The first attempt may be acknowledged while the next one is pending.
        (_, CommandTransition::Acknowledged) if command.attempts == 0 => return false,
        (_, CommandTransition::Acknowledged) => {
            command.acknowledged_at_ms = Some(now_ms);
            match command.one_way {
                true => State::Success,
                false => State::Acknowledged,
            }
        }
        (_, CommandTransition::Answered { .. }) if command.attempts == 0 => return false,
        (
            _,
            CommandTransition::Answered {
                is_success,
                result,
                code,
                message,
            },
        ) => {
            (command.result, command.code, command.message) = (result, code, message);
            match is_success {
                true => State::Success,
                false => State::Failed,
            }
        }
        (State::Pending, CommandTransition::Unreachable) if command.immediate => State::Expired,
        (_, CommandTransition::Unreachable) => return false,
        (_, CommandTransition::Undeliverable(why)) => {
            command.message = Some(why);
            State::Failed
        }
        (_, CommandTransition::Cancelled(why)) => {
            command.message = Some(why);
            State::Cancelled
        }
        (state, CommandTransition::DeadlineReached) => {
            if due_ms(command).is_some_and(|due_ms| now_ms < due_ms) {
                return false;
            }
            let may_try = command.attempts <= command.retries && now_ms < command.expires_at_ms;
            match state {
                State::Pending => State::Expired,
                State::Sent if may_try => State::Pending,
                _ => State::Timeout,
            }
        }
    };
    command.state = next;
    if next.is_final() {
        command.finished_at_ms = Some(now_ms);
        if command.message.is_none() {
            command.message = failure_reason(command);
        }
    }
    true
}

fn failure_reason(command: &Command) -> Option<String> {
    match command.state {
        CommandState::Timeout => Some(format!(
            "no answer within {} ms, sent {}",
            command.timeout_ms,
            times(command.attempts)
        )),
        CommandState::Expired if command.attempts == 0 => {
            Some("the device was not reachable".to_owned())
        }
        CommandState::Expired => Some(format!(
            "sent {}; the device was not reachable again",
            times(command.attempts)
        )),
        _ => None,
    }
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}
