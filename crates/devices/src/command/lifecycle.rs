//! How a command goes from state to state. Pure: what happened and the time go in, the command as it is then comes out.

use serde_json::Value;

use super::record::{Command, CommandState};

/// Something has happened to a command.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CommandTransition {
    /// It was handed to the device's connection. Whether the client will say that it has it.
    Sent {
        expects_ack: bool,
    },
    /// The device's client has it.
    Acknowledged,
    /// The device has answered.
    Answered {
        is_success: bool,
        result: Option<Value>,
        code: Option<String>,
        message: Option<String>,
    },
    /// The device is not where it would have heard it.
    Unreachable,
    /// It can never be told to the device.
    Undeliverable(String),
    /// Time has passed.
    DeadlineReached,
    Cancelled(String),
}

/// When something becomes of the command by itself.
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

/// `false`: it is too late for that, or too early, and the command stays as it is.
pub(super) fn apply(command: &mut Command, happened: CommandTransition, now_ms: u64) -> bool {
    use CommandState as State;
    let next = match (command.state, happened) {
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
        // The first try may be acknowledged when the next one waits already.
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
            Some("the device was not where it would have heard it".to_owned())
        }
        CommandState::Expired => Some(format!(
            "sent {}, and the device did not come again",
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
