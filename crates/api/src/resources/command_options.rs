//! The options of delivery that all requests for commands have.

use devices::command::{CommandAction, NewCommand};

use crate::problem_details::ProblemDetails;

const MAX_RETRIES: u32 = 10;

/// Options of delivery. [`command_input`] documents them.
pub(super) struct CommandOptions {
    pub(super) one_way: bool,
    pub(super) timeout_ms: Option<u64>,
    pub(super) expires_in_s: Option<u64>,
    pub(super) retries: u32,
}

impl CommandOptions {
    /// A command with these options, which [`check_options`] has still to accept.
    pub(super) fn command(self, action: CommandAction, created_by: String) -> NewCommand {
        NewCommand {
            action,
            one_way: self.one_way,
            timeout_ms: self.timeout_ms,
            expires_in_s: self.expires_in_s,
            retries: self.retries,
            created_by,
            batch: None,
        }
    }
}

/// Checks the options of delivery of a command.
pub(super) fn check_options(command: &NewCommand) -> Result<(), ProblemDetails> {
    if command.timeout_ms == Some(0) {
        let detail = "timeout_ms: expected at least 1.";
        return Err(ProblemDetails::invalid_field("timeout_ms", detail));
    }
    if command.retries > MAX_RETRIES {
        let detail = format!("retries: expected at most {MAX_RETRIES}.");
        return Err(ProblemDetails::invalid_field("retries", detail));
    }
    Ok(())
}

/// Defines a body type with its own fields and the options of delivery.
macro_rules! command_input {
    ($(#[$about:meta])* $name:ident { $($(#[$of_field:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields)]
        struct $name {
            $($(#[$of_field])* $field: $type,)*
            /// `true`: the device does not respond; the command succeeds when the device has received it.
            #[serde(default)]
            one_way: bool,
            /// Time limit of the response after sending, in milliseconds; default: the setting
            /// `commands.timeout_ms`.
            #[serde(default)]
            #[schemars(range(min = 1))]
            timeout_ms: Option<u64>,
            /// Waiting time for a disconnected device, in seconds; 0: no waiting; default: the setting
            /// `commands.expiry_s`.
            #[serde(default)]
            expires_in_s: Option<u64>,
            /// Number of retries without a response; the device may execute the command twice.
            #[serde(default)]
            #[schemars(range(max = 10))]
            retries: u32,
        }

        impl $name {
            fn options(&self) -> $crate::resources::command_options::CommandOptions {
                $crate::resources::command_options::CommandOptions {
                    one_way: self.one_way,
                    timeout_ms: self.timeout_ms,
                    expires_in_s: self.expires_in_s,
                    retries: self.retries,
                }
            }
        }
    };
}

pub(super) use command_input;
