//! Tests the states of one command for transitions in any order.

use proptest::prelude::*;
use serde_json::{Value, json};
use series::DeviceNo;

use super::lifecycle::{CommandTransition, apply, due_ms};
use super::record::{Command, CommandId, CommandKind, CommandState};

fn command(one_way: bool, retries: u32) -> Command {
    Command {
        id: CommandId(7),
        device: "d".into(),
        product: "p".into(),
        namespace: "default".into(),
        kind: CommandKind::Call,
        method: "m".into(),
        params: Value::Null,
        one_way,
        state: CommandState::Pending,
        timeout_ms: 5_000,
        retries,
        attempts: 0,
        created_at_ms: 1_000,
        expires_at_ms: 61_000,
        immediate: false,
        sent_at_ms: None,
        acknowledged_at_ms: None,
        finished_at_ms: None,
        result: None,
        code: None,
        message: None,
        created_by: "somebody".into(),
        batch: None,
        device_no: DeviceNo(3),
    }
}

fn answered(is_success: bool) -> CommandTransition {
    CommandTransition::Answered {
        is_success,
        result: Some(json!({"a": 1})),
        code: None,
        message: None,
    }
}

const SENT: CommandTransition = CommandTransition::Sent { expects_ack: true };
const SENT_UNWATCHED: CommandTransition = CommandTransition::Sent { expects_ack: false };

/// The states that a command passes through.
fn apply_all(
    mut command: Command,
    transitions: &[(u64, CommandTransition)],
) -> (Vec<CommandState>, Command) {
    let states = transitions.iter().map(|(at_ms, transition)| {
        apply(&mut command, transition.clone(), *at_ms);
        command.state
    });
    (states.collect(), command)
}

#[test]
fn a_command_that_is_answered_succeeds_or_fails() {
    use CommandState::*;
    let transitions = [
        (2_000, SENT),
        (2_100, CommandTransition::Acknowledged),
        (2_200, answered(true)),
        (9_000, CommandTransition::DeadlineReached),
    ];
    let (states, done) = apply_all(command(false, 0), &transitions);
    assert_eq!(states, [Sent, Acknowledged, Success, Success]);
    assert_eq!(done.result, Some(json!({"a": 1})));
    assert_eq!(
        (
            done.sent_at_ms,
            done.acknowledged_at_ms,
            done.finished_at_ms
        ),
        (Some(2_000), Some(2_100), Some(2_200))
    );
    let (states, _) = apply_all(
        command(false, 0),
        &[(2_000, SENT_UNWATCHED), (2_100, answered(false))],
    );
    assert_eq!(states, [Sent, Failed]);
}

#[test]
fn a_command_without_a_reply_times_out() {
    use CommandState::*;
    let (states, done) = apply_all(
        command(false, 0),
        &[
            (2_000, SENT),
            (6_999, CommandTransition::DeadlineReached),
            (7_000, CommandTransition::DeadlineReached),
        ],
    );
    assert_eq!(states, [Sent, Sent, Timeout]);
    let message = done.message.as_deref();
    assert_eq!(message, Some("no answer within 5000 ms, sent once"));
    let (states, _) = apply_all(
        command(false, 0),
        &[
            (60_999, CommandTransition::DeadlineReached),
            (61_000, CommandTransition::DeadlineReached),
        ],
    );
    assert_eq!(states, [Pending, Expired]);
    // A command that the client has acknowledged is not sent again.
    let acknowledged = [
        (2_000, SENT),
        (2_001, CommandTransition::Acknowledged),
        (7_000, CommandTransition::DeadlineReached),
    ];
    let (states, _) = apply_all(command(false, 3), &acknowledged);
    assert_eq!(states, [Sent, Acknowledged, Timeout]);
}

#[test]
fn a_command_is_retried_until_attempts_or_time_run_out() {
    use CommandState::*;
    let (states, done) = apply_all(
        command(false, 1),
        &[
            (2_000, SENT),
            (7_000, CommandTransition::DeadlineReached),
            (8_000, SENT),
            (13_000, CommandTransition::DeadlineReached),
        ],
    );
    assert_eq!(states, [Sent, Pending, Sent, Timeout]);
    assert_eq!(done.attempts, 2);
    // The reply to the first attempt arrives while the second is pending.
    let late = [
        (2_000, SENT),
        (7_000, CommandTransition::DeadlineReached),
        (7_500, answered(true)),
    ];
    let (states, _) = apply_all(command(false, 1), &late);
    assert_eq!(states, [Sent, Pending, Success]);
    let (states, _) = apply_all(
        command(false, 9),
        &[(58_000, SENT), (63_000, CommandTransition::DeadlineReached)],
    );
    assert_eq!(
        states,
        [Sent, Timeout],
        "the command has expired in the meantime"
    );
}

#[test]
fn a_one_way_command_succeeds_on_acknowledgement() {
    use CommandState::*;
    let (states, _) = apply_all(command(true, 0), &[(2_000, SENT_UNWATCHED)]);
    assert_eq!(states, [Success]);
    let (states, _) = apply_all(
        command(true, 0),
        &[(2_000, SENT), (2_500, CommandTransition::Acknowledged)],
    );
    assert_eq!(states, [Sent, Success]);
    let (states, _) = apply_all(
        command(true, 0),
        &[(2_000, SENT), (7_000, CommandTransition::DeadlineReached)],
    );
    assert_eq!(states, [Sent, Timeout]);
}

fn any_transitions() -> impl Strategy<Value = Vec<(u64, CommandTransition)>> {
    let transition = prop_oneof![
        2 => any::<bool>().prop_map(|is_watched| CommandTransition::Sent { expects_ack: is_watched }),
        1 => Just(CommandTransition::Acknowledged),
        1 => any::<bool>().prop_map(answered),
        1 => Just(CommandTransition::Undeliverable("no words".into())),
        1 => Just(CommandTransition::Cancelled("by somebody".into())),
        4 => Just(CommandTransition::DeadlineReached),
    ];
    prop::collection::vec((0..20_000_u64, transition), 0..40)
}

proptest! {
    /// A final state never changes. An open command has a due time. Only a sent command accepts a reply. A record
    /// survives encoding.
    #[test]
    fn every_sequence_of_states_is_valid(one_way: bool, retries in 0..4_u32, transitions in any_transitions()) {
        let mut known = command(one_way, retries);
        let mut now_ms = known.created_at_ms;
        for (passed_ms, transition) in transitions {
            now_ms += passed_ms;
            let before = known.clone();
            let has_changed = apply(&mut known, transition, now_ms);
            prop_assert_eq!(has_changed, known != before);
            if before.state.is_final() {
                prop_assert!(!has_changed);
            }
            prop_assert_eq!(known.state.is_final(), known.finished_at_ms.is_some());
            prop_assert_eq!(known.state.is_final(), due_ms(&known).is_none());
            prop_assert!(known.attempts <= retries + 1);
            prop_assert_eq!(known.attempts > 0, known.sent_at_ms.is_some());
            match known.state {
                CommandState::Sent | CommandState::Acknowledged | CommandState::Timeout => {
                    prop_assert!(known.attempts > 0);
                }
                CommandState::Expired => prop_assert!(now_ms >= known.expires_at_ms),
                _ => {}
            }
            let read = Command::decode(&known.encode());
            prop_assert_eq!(read.as_ref(), Some(&known));
        }
        // Without input the command reaches a final state.
        for _ in 0..=retries + 2 {
            let Some(due_ms) = due_ms(&known) else { break };
            now_ms = now_ms.max(due_ms);
            prop_assert!(apply(&mut known, CommandTransition::DeadlineReached, now_ms));
        }
        prop_assert!(known.state.is_final());
    }
}
